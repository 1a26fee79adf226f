"""Runs simulations in several processes at a time."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

CHUNK = 8  # tasks that a process takes at a time, at most

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[str, float], None]


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
    most = processes or len(os.sched_getaffinity(0))
    done: list[Result] = []
    with ProcessPoolExecutor(most, initializer=_ignore_interrupts) as pool:
        chunk = max(1, min(CHUNK, len(tasks) // (4 * most)))
        try:
            for task, found in zip(tasks, pool.map(run, tasks, chunksize=chunk), strict=True):
                done.append(found)
                progress(name(task), len(done) / len(tasks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    return done


def _ignore_interrupts() -> None:
    """Leave it to the process that started this one to end it: a terminal interrupts both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
