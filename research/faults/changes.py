"""What clients get while a server ends, or other clients hang up. Linux."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from latebind.bench.rounds import Progress
from latebind.bench.server import Launched, launched, serving
from latebind.cli.console import Row
from latebind.domain.actions import Outcome, Reply, Run
from latebind.domain.eventlog import Entry, read_log
from latebind.domain.events import StageDone
from research.faults.models import SLOW_WIDTH, Asked, Clients, build_slow, session

IN_FLIGHT, LAYERS, REPEATS = 32, 4, 128  # of a server that is told to end: requests, and the size of its model
LEFT_SECONDS = 1.0  # after the exit in which children may still end
LEAVING, LEAVING_LAYERS, LEAVING_REPEATS = 6, 12, 4096  # clients that hang up, and the size of their model
WARM_UP, ALONE = 1, 2  # requests


@dataclass(frozen=True, slots=True)
class Behind:
    """What the seventh client waited for: `stages` that ended after the others had left and before it began.

    That took `seconds`; the stage that ran as they left takes `stage` seconds in all.
    """

    stages: int
    seconds: float
    stage: float


def counted(counts: dict[int, int]) -> str:
    """Write each value with how often it came, as `0: 20`."""
    return ", ".join(f"{value}: {count}" for value, count in sorted(counts.items())) or "0"


def terminate(times: int, tell: Progress, *, in_flight: int = IN_FLIGHT) -> Row:
    """Start a server, send so many requests for a slow model, and tell it to end while they run; so many times."""
    statuses, codes, seconds, processes = Counter[int](), Counter[int](), list[float](), 0
    with tempfile.TemporaryDirectory() as folder:
        build_slow(Path(folder), layers=LAYERS, repeats=REPEATS)
        for number in range(times):
            tell(f"{number} of {times}", number / times)
            with launched(Path(folder), "--deadline-ms", "30000") as server:
                children = _children(server.process.pid)
                some, begun = asyncio.run(_ask_and_end(server, in_flight))
                codes[server.process.wait(timeout=60)] += 1
                seconds.append(time.monotonic() - begun)
                processes += _left(children)
                statuses += some
    return {
        "answered": statuses[200],
        "not answered": statuses.total() - statuses[200],
        "exit codes": counted(codes),
        "seconds to the end, median": f"{median(seconds):.2f}",
        "longest": f"{max(seconds):.2f}",
        "processes left": processes,
    }


async def _ask_and_end(server: Launched, in_flight: int) -> tuple[Counter[int], float]:
    """Tell the server to end as soon as the first of the requests has its answer; the others wait or run then."""
    async with session(server.url) as connections:
        clients = Clients(connections, "slow", SLOW_WIDTH)
        tasks = [asyncio.create_task(clients.ask()) for _ in range(in_flight)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        server.process.terminate()
        begun = time.monotonic()
        asked = await asyncio.gather(*tasks)
    return Counter(one.status for one in asked), begun


def _children(process: int) -> list[int]:
    """Return the processes that this one has started."""
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def _left(processes: list[int]) -> int:
    """Return how many of them are there yet, after a while."""
    until = time.monotonic() + LEFT_SECONDS
    while (left := sum(Path(f"/proc/{one}").exists() for one in processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def hang_up(times: int, tell: Progress, *, layers: int = LEAVING_LAYERS, repeats: int = LEAVING_REPEATS) -> Row:
    """Let six clients hang up in the first stage while a seventh asks, so many times: it waits for one stage."""
    with tempfile.TemporaryDirectory() as folder:
        build_slow(Path(folder), layers=layers, repeats=repeats, progress=lambda text, share: tell(text, 0.8 * share))
        tell("clients come and leave", 0.8)
        log = Path(folder) / "events.jsonl"
        with serving(Path(folder), "--deadline-ms", "60000", "--event-log", str(log)) as url:
            stages, alone, sevenths = asyncio.run(_left_behind(url, times))
        with log.open("rb") as file:
            behind = behind_others(read_log(file)[1], [left for left, _ in sevenths])
    seconds = [took for _, took in sevenths]
    return {
        "stages": stages,
        "alone s": f"{alone:.2f}",
        "a stage s": f"{alone / stages:.2f}",
        "the seventh s, median": f"{median(seconds):.2f}",
        "longest": f"{max(seconds):.2f}",
        "ended before it began: stages, median": f"{median(one.stages for one in behind):g}",
        "most": max(one.stages for one in behind),
        "it began after s, median": f"{median(one.seconds for one in behind):.3f}",
        "most s": f"{max(one.seconds for one in behind):.3f}",
        "the stage that ran s, most": f"{max(one.stage for one in behind):.3f}",
    }


def behind_others(entries: Iterable[Entry], left: Sequence[float]) -> list[Behind]:
    """Return what the last requests that were answered waited for, one for each time at which others had `left`."""
    begun, ends, answered = dict[int, float](), list[tuple[float, float]](), list[int]()
    since = 0.0
    for entry in entries:
        if isinstance(entry.event, StageDone):
            ends.append((since, entry.now))
        for action in entry.actions:
            if isinstance(action, Run):
                since = entry.now
                begun.update({request: entry.now for request in action.requests if action.stage == 0})
            elif isinstance(action, Reply) and action.outcome is Outcome.ANSWERED:
                answered.append(action.request)
    found = []
    for time_left, request in zip(left, answered[-len(left) :], strict=True):
        before = [(start, end) for start, end in ends if time_left < end <= begun[request]]
        stage = before[0][1] - before[0][0] if before else 0.0
        found.append(Behind(len(before), begun[request] - time_left, stage))
    return found


async def _left_behind(url: str, times: int) -> tuple[int, float, list[tuple[float, float]]]:
    async with session(url) as connections:
        clients = Clients(connections, "slow", SLOW_WIDTH)
        alone = [await _answered(clients) for _ in range(WARM_UP + ALONE)][WARM_UP:]
        stages, least = alone[0].stages, min(one.ended - one.sent for one in alone)
        return stages, least, [await _after_others(clients, least / stages) for _ in range(times)]


async def _after_others(clients: Clients, stage: float) -> tuple[float, float]:
    """Return when the others left, and the seconds until the seventh had its answer."""
    leaving = [asyncio.create_task(clients.ask()) for _ in range(LEAVING)]
    await asyncio.sleep(0.5 * stage)
    for task in leaving:
        task.cancel()
    left = time.monotonic()  # the clock of the engine's log
    await asyncio.gather(*leaving, return_exceptions=True)
    seventh = await _answered(clients)
    return left, seventh.ended - seventh.sent


async def _answered(clients: Clients) -> Asked:
    asked = await clients.ask()
    if asked.status != 200:
        raise RuntimeError(f"a request was answered {asked.status}: see the server's messages above")
    return asked
