"""How a benchmark goes on and ends: its rounds, its progress, what runs beside it, and who interrupts it.

The first SIGINT (Ctrl-C) lets the round under way come to its end, so that every side has been asked equally often, and
what was measured by then is kept. A second one, or one where no rounds are played, ends at once. Commands then exit
with `STATUS`.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TypeVar

STATUS = 128 + signal.SIGINT  # what shells expect of a process that SIGINT ended
SAID = b"interrupted: ends after the round under way; interrupt again to end at once\n"

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[str, float], None]  # told what is done next, and the share (0 to 1) that is done


class Interrupts:
    """Hears SIGINT while a benchmark runs."""

    def __init__(self) -> None:
        self.heard = False
        self.playing = False  # a round, which is to come to its end

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Note an interrupt, or raise `KeyboardInterrupt` where nothing waits for the end of a round."""
        first, self.heard = not self.heard, True
        if not (first and self.playing):
            raise KeyboardInterrupt
        os.write(sys.stderr.fileno(), SAID)  # a print may be under way, and is not to be entered twice


_HERE: ContextVar[Interrupts | None] = ContextVar("interrupts", default=None)


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Hear SIGINT within the block; in another thread than the main one, which alone hears signals, nothing changes."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before, token = signal.signal(signal.SIGINT, interrupts.hear), _HERE.set(interrupts)
    try:
        yield interrupts
    finally:
        _HERE.reset(token)
        signal.signal(signal.SIGINT, before)


def interrupted() -> bool:
    """Tell whether the benchmark that runs here is to end."""
    here = _HERE.get()
    return here is not None and here.heard


def in_rounds(count: int) -> Iterator[int]:
    """Yield the numbers of `count` rounds, or of fewer if somebody interrupts, but of the first in any case."""
    here = _HERE.get() or Interrupts()
    outer = here.playing  # rounds within a round end with that one
    try:
        for number in range(count):
            if number and here.heard:
                return
            here.playing = True
            yield number
            here.playing = outer
    finally:
        here.playing = outer


def in_parallel(
    run: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    name: Callable[[Task], str],
    progress: Progress,
    processes: int = 0,
) -> list[Result]:
    """Run tasks on all cores, or so many processes; the results are in the order of the tasks.

    Whatever ends this early, as an interrupt does, ends the processes with what they have not begun or finished.
    """
    done: list[Result] = []
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0)), initializer=_ignore_interrupts) as pool:
        try:
            # The first one forks all processes. Python drops an interrupt that comes just then, with a locked lock.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            futures = [pool.submit(run, task) for task in tasks]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for task, future in zip(tasks, futures, strict=True):
                done.append(future.result())
                progress(name(task), len(done) / len(tasks))
        except BaseException:
            # The pool's thread finds itself without processes and ends; leaving the block waits for it. It may neither
            # be left to the interpreter's exit, which writes to a pipe that it is just closing, nor find futures that
            # were cancelled, on which it fails.
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    return done


def _ignore_interrupts() -> None:
    """Leave it to the process that started this one to end it: a terminal interrupts both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
