"""Sends requests at their times, without waiting for answers, until every one has ended. Root of the ledger's tasks.

Meanwhile it watches from outside how much memory the server's processes take. Tables of what was played are at the end.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol as Interface

import numpy as np
import psutil

from latebind.bench.ledger.books import Fault, Ledger
from latebind.bench.ledger.clients import Client, HttpClient, RpcClient
from latebind.bench.ledger.faults import Injected
from latebind.bench.ledger.questions import Protocol, Questions
from latebind.bench.rounds import Progress
from latebind.bench.server import resident, tree
from latebind.cli.console import Row, Rows
from latebind.prompt import be_prompt, be_usual

PATIENCE = 15.0  # seconds past its deadline after which a request counts as lost
PAUSE, LINGER = 0.02, 0.1
LOOK = 16  # requests after which clients are heard even if all are due
LOOK_SECONDS = 1.0  # between two looks at the server's memory
MB = 1e6
SETTLING, LAST = 0.1, 0.1  # shares of those looks: before everything has been used once, and at the end


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server listens. `process` is its first process, 0 where it is not ours to look at."""

    host: str
    http: int
    grpc: str | None = None
    process: int = 0


class Injecting(Interface):
    """Acts on the server while requests are sent, or watches it; `done` has what it did."""

    done: list[Injected]

    async def run(self, requests: int, ledger: Ledger) -> None:
        """Act; it is cancelled when all requests have ended."""


@dataclass(slots=True)
class Played:
    """The outcome: the ledger, seconds from the first request to the last end, and how late requests were sent.

    `memory` has seconds from the beginning and bytes, shared pages counted once; nothing for a server that is not ours.
    """

    ledger: Ledger
    began: float = 0.0
    seconds: float = 0.0
    late: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    injected: Sequence[Injected] = ()


async def play(
    target: Target,
    questions: Questions,
    times: Iterator[float],
    requests: int,
    *,
    inject: Sequence[Injecting] = (),
    patience: float = PATIENCE,
    on_progress: Progress = lambda text, share: None,
) -> Played:
    """Send so many requests at these times (seconds from now) and return when all have ended or are lost."""
    loop = asyncio.get_running_loop()
    played = Played(Ledger())
    async with _connected(target, played.ledger, patience) as clients:
        played.began = loop.time()
        beside = [loop.create_task(one.run(requests, played.ledger)) for one in inject]
        beside.append(loop.create_task(_watch(target.process, played, requests, on_progress)))
        for number, time in zip(range(requests), times, strict=False):
            due = played.began + time
            wait = due - loop.time()
            if wait > 0 or not number % LOOK:
                await asyncio.sleep(max(0.0, wait))
            question = questions[number]
            played.ledger.ask(question, due)
            clients[question.protocol].send(question)
            played.late.append(loop.time() - due)
        while played.ledger.open:
            await asyncio.sleep(PAUSE)
        played.seconds = loop.time() - played.began
        for task in beside:
            task.cancel()
        ended = await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.sleep(LINGER)  # an answer that nobody asked for may still come
    for error in ended:
        if isinstance(error, Exception):
            raise error
    played.injected = tuple(done for one in inject for done in one.done)
    return played


@asynccontextmanager
async def _connected(target: Target, ledger: Ledger, patience: float) -> AsyncIterator[dict[Protocol, Client]]:
    """Yield a client for each protocol that the target speaks.

    It is prompt meanwhile: what computes beside it would be taken for a slow server.
    """
    http = HttpClient(target.host, target.http, ledger, patience)
    clients: dict[Protocol, Client] = {Protocol.JSON: http, Protocol.BINARY: http}
    if target.grpc is not None:
        clients[Protocol.GRPC] = RpcClient(target.grpc, ledger, patience)
    be_prompt()
    try:
        yield clients
    finally:
        be_usual()
        for client in set(clients.values()):
            await client.close()


async def _watch(process: int, played: Played, requests: int, on_progress: Progress) -> None:
    """Report progress, and record the server's memory if it is on this machine, at intervals."""
    loop = asyncio.get_running_loop()
    while True:
        on_progress(
            f"{played.ledger.asked_count:,} requests, {played.ledger.open} open", played.ledger.asked_count / requests
        )
        if process:
            # On a thread, for the system takes 20 ms to count the pages, and requests are due meanwhile.
            played.memory.append((loop.time() - played.began, await asyncio.to_thread(taken, process)))
        await asyncio.sleep(LOOK_SECONDS)


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
    settled, end = sizes[int(SETTLING * len(sizes)) :], max(1, int(LAST * len(sizes)))
    return int(np.median(settled[-end:]) - np.median(settled[:end])) if len(settled) else 0


def fault_rows(played: Played) -> Rows:
    """Return how often each thing was that must never be."""
    faults = played.ledger.faults
    return [{"requests": played.ledger.asked_count, **{str(fault): faults[fault] for fault in Fault}}]


def end_rows(played: Played) -> Rows:
    """Return how requests ended, and how long after they were to be sent."""
    rows: Rows = []
    for name, times in (*played.ledger.times.items(), ("right and in time", played.ledger.good)):
        if len(times.seconds):
            p50, p99 = np.percentile(times.seconds, [50, 99]) * 1e3
            rows.append(
                {
                    "end": str(name),
                    "requests": len(times.seconds),
                    "share": f"{len(times.seconds) / played.ledger.asked_count:.1%}",
                    "a second": round(len(times.seconds) / played.seconds, 1),
                    "p50 ms": round(float(p50), 2),
                    "p99 ms": round(float(p99), 2),
                }
            )
    return rows


def client_rows(played: Played) -> Rows:
    """Return by how much the client was late, which counts in all latencies, and what the server took in memory."""
    sizes = [size for _, size in played.memory]
    late = float(np.percentile(played.late, 99)) if played.late else 0.0
    row: Row = {"sent late by, p99 ms": round(late * 1e3, 2)}
    if sizes:
        row |= {
            "memory MB at first": round(sizes[0] / MB, 1),
            "at last": round(sizes[-1] / MB, 1),
            "at most": round(max(sizes) / MB, 1),
            "grown by": round(growth(played.memory) / MB, 1),
        }
    return [row]


def tables(played: Played) -> dict[str, Rows]:
    """Return all tables of what was played, by title."""
    return {
        "how requests ended": end_rows(played),
        "what must never be": fault_rows(played),
        "client and server": client_rows(played),
        "what was done to the server": [
            {"fault": str(one.fault), "at request": one.request, "what": one.what} for one in played.injected
        ],
    }
