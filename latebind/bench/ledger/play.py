"""Sends requests at their times, whatever becomes of them, until every one has ended. Root of the ledger's tasks."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol as Interface

from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.http import HttpClient
from latebind.bench.ledger.inject import Injected
from latebind.bench.ledger.memory import Memory
from latebind.bench.ledger.questions import Protocol, Question, Questions
from latebind.bench.rounds import Progress
from latebind.prompt import be_prompt, be_usual

PATIENCE = 15.0  # seconds past its deadline after which a request counts as lost
SWEEP = 0.5  # seconds between two looks for those
LINGER = 0.1
LOOK = 16  # requests after which clients are heard even if all are due


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


class Client(Interface):
    """Sends requests and records their outcomes in its ledger."""

    def send(self, question: Question) -> None:
        """Send a request."""

    def give_up(self, numbers: set[int]) -> None:
        """Stop waiting for these requests."""


@dataclass(slots=True)
class Played:
    """The outcome: the ledger, seconds from the first request to the last end, and how late requests were sent."""

    ledger: Ledger
    began: float = 0.0
    seconds: float = 0.0
    late: list[float] = field(default_factory=list)
    memory: Sequence[tuple[float, int]] = ()
    injected: Sequence[Injected] = ()


async def play(
    target: Target,
    questions: Questions,
    times: Iterator[float],
    requests: int,
    *,
    inject: Sequence[Injecting] = (),
    patience: float = PATIENCE,
    tell: Progress = lambda text, share: None,
) -> Played:
    """Send so many requests at these times (seconds from now) and return when all have ended or are lost."""
    loop = asyncio.get_running_loop()
    played = Played(Ledger(questions))
    async with connected(target, played.ledger) as clients, Memory(target.process) as memory:
        played.began = loop.time()
        faults = [loop.create_task(one.run(requests, played.ledger)) for one in inject]
        sweeper = loop.create_task(_sweep(played.ledger, clients, patience, requests, tell))
        await _send(clients, questions, times, requests, played)
        while played.ledger.open:
            await asyncio.sleep(0.02)
        played.seconds = loop.time() - played.began
        for task in (sweeper, *faults):
            task.cancel()
        ended = await asyncio.gather(sweeper, *faults, return_exceptions=True)
        await asyncio.sleep(LINGER)  # an answer that nobody asked for may still come
    for error in ended:
        if isinstance(error, Exception):
            raise error
    played.memory = memory.samples
    played.injected = tuple(done for one in inject for done in one.done)
    return played


@asynccontextmanager
async def connected(target: Target, ledger: Ledger) -> AsyncIterator[dict[Protocol, Client]]:
    """Yield a client for each protocol that the target speaks.

    It is prompt meanwhile: what computes beside it would be taken for a slow server.
    """
    be_prompt()
    try:
        async with _connected(target, ledger) as clients:
            yield clients
    finally:
        be_usual()


@asynccontextmanager
async def _connected(target: Target, ledger: Ledger) -> AsyncIterator[dict[Protocol, Client]]:
    http = HttpClient(target.host, target.http, ledger)
    clients: dict[Protocol, Client] = {Protocol.JSON: http, Protocol.BINARY: http}
    if target.grpc is None:
        yield clients
        http.close()
        return
    from latebind.bench.ledger.rpc import RpcClient  # noqa: PLC0415  (grpc is optional)

    rpc = RpcClient(target.grpc, ledger)
    yield {**clients, Protocol.GRPC: rpc}
    http.close()
    await rpc.close()


async def _send(
    clients: dict[Protocol, Client], questions: Questions, times: Iterable[float], requests: int, played: Played
) -> None:
    loop = asyncio.get_running_loop()
    for number, time in zip(range(requests), times, strict=False):
        due = played.began + time
        wait = due - loop.time()
        if wait > 0 or not number % LOOK:
            await asyncio.sleep(max(0.0, wait))
        question = questions[number]
        played.ledger.ask(question, due)
        clients[question.protocol].send(question)
        played.late.append(loop.time() - due)


async def _sweep(
    ledger: Ledger, clients: dict[Protocol, Client], patience: float, requests: int, tell: Progress
) -> None:
    """Give up requests whose answer is long overdue, at intervals."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP)
        lost = ledger.overdue(loop.time() - patience)
        for number in lost:
            ledger.lose(number, f"none came for {patience:g} s after its deadline")
        for client in set(clients.values()):
            client.give_up(set(lost))
        tell(f"{ledger.asked_count:,} requests, {ledger.open} open", ledger.asked_count / requests)
