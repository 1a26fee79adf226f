"""Who is to blame for crashes: whoever ran, too often in too short a time."""

import os
from pathlib import Path

from latebind.engine.crashes import Crashes
from latebind.engine.running import map_running, marking_loading, models_of, read_running, worker_place
from latebind.engine.slots import create_file


def test_the_third_crash_within_a_minute_is_one_too_many() -> None:
    crashes = Crashes(3, 60.0)
    assert [crashes.happened(["a"], now) for now in (0.0, 30.0, 59.0)] == [[], [], ["a"]]


def test_crashes_of_long_ago_do_not_count() -> None:
    crashes = Crashes(3, 60.0)
    assert [crashes.happened(["a"], now) for now in (0.0, 30.0, 61.0)] == [[], [], []]


def test_each_model_is_counted_by_itself() -> None:
    crashes = Crashes(2, 60.0)
    assert [crashes.happened(names, 0.0) for names in (["a", "b"], ["c"], ["b"])] == [[], [], ["b"]]


def test_what_is_forgotten_begins_again() -> None:
    crashes = Crashes(2, 60.0)
    crashes.happened(["a"], 0.0)
    crashes.forget("a")
    assert crashes.happened(["a"], 1.0) == []


def test_whoever_has_the_file_reads_which_models_run_once_each() -> None:
    file = create_file()
    running = map_running(file, 4)
    for worker, model in ((0, 3), (2, 1), (3, 3)):
        running.begin(worker_place(worker), model, 0, 1.0)
    assert models_of(read_running(file)) == (0, 2)
    for worker in (0, 2, 3):
        running.rest(worker_place(worker))
    assert models_of(read_running(file)) == ()
    os.close(file)


def test_while_models_are_loaded_the_first_place_tells_which() -> None:
    file = create_file()
    running = map_running(file, 2)
    loaded = [models_of(read_running(file)) for _ in marking_loading([Path("a"), Path("b")], running)]
    assert loaded == [(0,), (1,)]
    assert models_of(read_running(file)) == ()
    os.close(file)
