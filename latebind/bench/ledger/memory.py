"""Watches, from outside, the memory of a server's processes while it is under load."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import psutil

from latebind.bench.memory import resident
from latebind.bench.server import tree

INTERVAL = 1.0  # seconds
SETTLING = 0.1  # share of the samples that come before everything has been used once
END = 0.1  # share of the samples that are the end


class Memory:
    """Samples of the memory of a process and all that come from it, while it is entered. Shared pages count once.

    `samples` are seconds from the beginning and bytes; there are none for process 0.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._task: asyncio.Task[None] | None = None
        self.samples: list[tuple[float, int]] = []

    async def __aenter__(self) -> Self:
        if self._process:
            self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            # On a thread, for the system takes 20 ms to count the pages, and requests are due meanwhile.
            self.samples.append((loop.time() - began, await asyncio.to_thread(taken, self._process)))
            await asyncio.sleep(INTERVAL)


def taken(process: int) -> int:
    """Return the bytes that a process and all that come from it have in memory."""
    found = 0
    for one in tree(process):
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError, KeyError):
            found += resident(one.pid).whole
    return found


def growth(samples: Sequence[tuple[float, int]]) -> int:
    """Return how many bytes more there were at the end than when everything had been used once: medians."""
    sizes = np.array([size for _, size in samples])
    settled, end = sizes[int(SETTLING * len(sizes)) :], max(1, int(END * len(sizes)))
    return int(np.median(settled[-end:]) - np.median(settled[:end])) if len(settled) else 0
