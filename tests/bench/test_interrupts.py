"""A benchmark that is interrupted: what it has written stays, and it leaves no process behind."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from latebind.bench.rounds import in_parallel
from latebind.cli.bench import STATUS

PATIENCE = 120.0  # with a machine that has much else to do


def test_whatever_ends_a_pool_of_processes_early_leaves_none_of_them_and_no_thread() -> None:
    def interrupt(text: str, share: float) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        in_parallel(time.sleep, [0.0] + [PATIENCE] * 5, name=str, progress=interrupt, processes=2)
    assert set(threading.enumerate()) == before
    assert multiprocessing.active_children() == []


def test_parts_that_have_ended_are_written_and_no_process_is_left(tmp_path: Path) -> None:
    # Whoever runs tests in the background has interrupts ignored, and so would what is started.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    file = tmp_path / "figures.json"
    words = ["--part", "bound", "--part", "loads", "--load", "1", "--seeds", "2", "--requests", "100"]
    command = [sys.executable, "-m", "research", "batching", *words, "--processes", "2", "--json", str(file)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    signal.signal(signal.SIGINT, before)
    with started as run:
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
    assert "interrupted: only the results so far" in errors
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):  # all of its group have ended, and were reaped
        os.killpg(run.pid, 0)
