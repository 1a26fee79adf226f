"""Progress of a benchmark, and running parts of it in several processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[str, float], None]  # called with the next step, and the share (0 to 1) that is done


def in_parallel(
    run: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    name: Callable[[Task], str],
    progress: Progress,
    processes: int = 0,
) -> list[Result]:
    """Run tasks on all cores, or in `processes` processes; the results are in the order of the tasks.

    Whatever ends this early, such as an interrupt, ends the processes, whatever they are doing.
    """
    done: list[Result] = []
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0)), initializer=_ignore_interrupts) as pool:
        try:
            # The first one forks all processes. An interrupt just then would be lost in Python, with a lock held.
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
    """Leave it to the parent process to end this one: a terminal interrupts both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
