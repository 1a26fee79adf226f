"""Both forms of the trace are read alike; what is no trace is told."""

from pathlib import Path

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from research.mcache.azure import read_trace
from research.mcache.traces import Service

SERVICES = [Service((1, 0, 2), "http"), Service((0, 5, 0), "timer")]


def test_a_day_as_published_and_the_same_as_arrays_are_the_same_services(tmp_path: Path) -> None:
    table, arrays = tmp_path / "day.csv", tmp_path / "day.npz"
    table.write_text(
        "HashOwner,HashApp,HashFunction,Trigger,1,2,3\na,b,c,http,1,0,2\na,b,d,timer,0,5,0\na,b,e,queue,7,7,7\n"
    )
    np.savez(arrays, counts=np.array([[1, 0, 2], [0, 5, 0], [7, 7, 7]]), trigger=np.array(["http", "timer", "queue"]))
    assert read_trace(table) == read_trace(arrays) == SERVICES


@pytest.mark.parametrize(("name", "text"), [("a.csv", "x,y\n1,2\n"), ("a.npz", "nothing"), ("b.csv", "Trigger,1\n")])
def test_what_is_no_trace_is_told(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match="give a day's CSV file"):
        read_trace(file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no trace"):
        read_trace(tmp_path / "gone.csv")


def test_counts_that_are_not_whole_are_told_and_not_cut_down(tmp_path: Path) -> None:
    file = tmp_path / "day.npz"
    np.savez(file, counts=np.array([[0.5, 1.5]]), trigger=np.array(["http"]))
    with pytest.raises(ConfigError, match="its counts are float64, no whole numbers"):
        read_trace(file)
