"""A benchmark that is interrupted: it ends behind its round, tells what it has, and leaves no process behind."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from latebind.bench.rounds import STATUS, in_parallel, in_rounds, interrupted, interruptible
from latebind.bench.subject import Setting, Subject
from research.contest import Plan, Report, on_engines
from research.sides import SERIAL, Side, graph

PATIENCE = 120.0  # with a machine that has much else to do


def test_the_first_interrupt_ends_behind_the_round_and_the_second_at_once() -> None:
    with interruptible():
        played = []
        for number in in_rounds(5):
            if number == 1:
                signal.raise_signal(signal.SIGINT)
            played.append(number)
        assert played == [0, 1]
        assert interrupted()
        assert list(in_rounds(5)) == [0]  # what is told later has a round of its own all the same
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not interrupted()
    assert list(in_rounds(3)) == [0, 1, 2]


def test_outside_of_rounds_an_interrupt_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)  # none, where whoever runs the tests does so in the background
    with interruptible(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_engines_that_are_interrupted_tell_of_the_rounds_that_were_played(models: Path) -> None:
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    sides = {name: Side(name, graph(size)) for name, size in ((SERIAL, 1), ("GraphB(0, 8)", 8))}
    report, plan = Report(sides, (SERIAL,), ()), Plan((0.5,), (10.0,), 100, 0.05)

    def interrupt(text: str, share: float) -> None:
        del share
        if "capacity" in text:
            signal.raise_signal(signal.SIGINT)

    with interruptible():
        subject, part = Subject(models, "chain", {"image": images}), partial(report.measure, plan)
        on_engines(subject, sides, part, Setting(paced=0.02), tell=interrupt)
    (blocks,) = report.blocks.values()
    assert {len(some) for some in blocks.values()} == {1}
    assert all(report.found().tables.values())


def test_whatever_ends_a_pool_of_processes_early_leaves_none_of_them_and_no_thread() -> None:
    def interrupt(text: str, share: float) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        in_parallel(time.sleep, [0.0] + [PATIENCE] * 5, name=str, progress=interrupt, processes=2)
    assert set(threading.enumerate()) == before
    assert multiprocessing.active_children() == []


def test_parts_that_have_ended_are_written_and_no_process_is_left(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ["--part", "bound", "--part", "loads", "--load", "1", "--seeds", "2", "--requests", "100"]
    command = [sys.executable, "-m", "research", "batching", *words, "--processes", "2", "--json", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as run:
        until = time.monotonic() + PATIENCE
        while not (file.exists() and file.read_text().endswith("}\n")):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == STATUS, errors
    assert "bound" in json.loads(file.read_text())
    assert "means over those of the best GraphB" in output
    assert "interrupted: what is printed and written" in errors
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):  # all of its group have ended, and were reaped
        os.killpg(run.pid, 0)
