"""Ends the server with requests in flight: which get an answer, its exit code, and what it leaves behind. Linux."""

import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from latebind.bench.server import Launched, launched
from research.faults.clients import Clients, session
from research.faults.models import SLOW_WIDTH, build_slow

LAYERS, REPEATS = 4, 128
LEFT_SECONDS = 1.0  # after the exit in which children may still end


@dataclass(frozen=True, slots=True)
class Ending:
    """One time: statuses of the requests in flight, the exit code, the seconds until then, processes left."""

    statuses: dict[int, int]
    code: int
    seconds: float
    left: int


def run(times: int, *, in_flight: int, layers: int = LAYERS, repeats: int = REPEATS) -> list[Ending]:
    """Start a server, send so many requests for a slow model, tell it to end while they run; so many times."""
    with tempfile.TemporaryDirectory() as folder:
        build_slow(Path(folder), layers=layers, repeats=repeats)
        return [_once(Path(folder), in_flight) for _ in range(times)]


def _once(root: Path, in_flight: int) -> Ending:
    with launched(root, "--deadline-ms", "30000") as server:
        children = _children(server.process.pid)
        statuses, begun = asyncio.run(_ask_and_end(server, in_flight))
        code = server.process.wait(timeout=60)
        return Ending(statuses, code, time.monotonic() - begun, _left(children))


async def _ask_and_end(server: Launched, in_flight: int) -> tuple[dict[int, int], float]:
    """Tell the server to end as soon as the first of the requests has its answer; the others wait or run then."""
    async with session(server.url) as connections:
        clients = Clients(connections, "slow", SLOW_WIDTH)
        tasks = [asyncio.create_task(clients.ask()) for _ in range(in_flight)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        server.process.terminate()
        begun = time.monotonic()
        asked = await asyncio.gather(*tasks)
    return dict(Counter(one.status for one in asked)), begun


def _children(process: int) -> list[int]:
    """Return the processes that this one has started."""
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def _left(processes: list[int]) -> int:
    """Return how many of them are there yet, after a while."""
    until = time.monotonic() + LEFT_SECONDS
    while (left := sum(Path(f"/proc/{one}").exists() for one in processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return left
