"""A thread that computes in the background yields its core, though a call of a library does not return meanwhile."""

import hashlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from latebind.adaptation.yielding import YIELD_SECONDS, yielding_often

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs timers of Linux")

COMPUTED_SECONDS = 0.3
BUSY = "while True: pass"


@pytest.fixture
def core() -> Iterator[int]:
    """A core on which another process computes without end."""
    number = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", BUSY]) as other:
        os.sched_setaffinity(other.pid, {number})
        yield number
        other.kill()


def switches_a_second(core: int, *, wanted: bool) -> float:
    """Return how often a thread beside that process is switched, in a second that it computes for itself."""
    found = []

    def compute() -> None:
        os.sched_setaffinity(0, {core})
        data = bytes(1 << 22)
        with yielding_often(wanted):
            before = resource.getrusage(resource.RUSAGE_THREAD)
            begun = time.thread_time()
            while time.thread_time() - begun < COMPUTED_SECONDS:
                hashlib.sha256(data)  # takes milliseconds, in which Python runs nothing
            after = resource.getrusage(resource.RUSAGE_THREAD)
            took = time.thread_time() - begun
        switched = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
        found.append(switched / took)

    thread = Thread(target=compute)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_yields_within_long_calls(core: int) -> None:
    often = switches_a_second(core, wanted=True)
    assert often > 0.2 / YIELD_SECONDS
    assert often > 2 * switches_a_second(core, wanted=False)  # on a crowded machine it is switched often anyway


def test_it_yields_no_longer_behind_the_block() -> None:
    def waits() -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        time.sleep(1000 * YIELD_SECONDS)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

    with yielding_often():
        assert any(waits() > 5 for _ in range(50))  # on a crowded machine many signals come together
    assert any(waits() <= 3 for _ in range(50))  # once for the sleep, and where another thread has Python's lock


def test_pauses_and_files_are_as_without(tmp_path: Path) -> None:
    path = tmp_path / "written"
    with yielding_often():
        begun = time.monotonic()
        time.sleep(50 * YIELD_SECONDS)
        assert time.monotonic() - begun >= 50 * YIELD_SECONDS
        with path.open("wb") as file:
            for _ in range(200):
                file.write(os.urandom(1 << 16))
                file.flush()
        assert path.stat().st_size == 200 << 16
