"""Runs simulations in several processes at a time."""

import os
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
    """Run tasks on all cores, or so many processes; the results are in the order of the tasks."""
    most = processes or len(os.sched_getaffinity(0))
    done: list[Result] = []
    with ProcessPoolExecutor(most) as pool:
        chunk = max(1, min(CHUNK, len(tasks) // (4 * most)))
        for task, found in zip(tasks, pool.map(run, tasks, chunksize=chunk), strict=True):
            done.append(found)
            progress(name(task), len(done) / len(tasks))
    return done
