"""Clients hang up while a slow model runs: a client that comes after them must wait for one stage at most."""

import asyncio
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from latebind.bench.server import serving
from latebind.domain.actions import Outcome, Reply, Run
from latebind.domain.eventlog import Entry, read_log
from latebind.domain.events import StageDone
from latebind.program.build import Progress, ignore_progress
from research.faults.clients import Asked, Clients, session
from research.faults.models import SLOW_WIDTH, build_slow

LEAVING = 6
WARM_UP, ALONE = 1, 2  # requests


@dataclass(frozen=True, slots=True)
class Behind:
    """What the seventh client waited for: `stages` that ended after the others had left and before it began.

    That took `seconds`; the stage that ran as they left takes `stage` seconds in all.
    """

    stages: int
    seconds: float
    stage: float


@dataclass(frozen=True, slots=True)
class Report:
    """Seconds of a request alone, and of the seventh each time; `stages` are those of the model."""

    stages: int
    alone: float
    seventh: list[float]
    behind: list[Behind]


def run(times: int, *, layers: int, repeats: int, progress: Progress = ignore_progress) -> Report:
    """Let six clients hang up in the middle of the first stage while a seventh sends a request, `times` times."""
    with tempfile.TemporaryDirectory() as folder:
        build_slow(
            Path(folder), layers=layers, repeats=repeats, progress=lambda doing, share: progress(doing, 0.8 * share)
        )
        progress("clients come and leave", 0.8)
        log = Path(folder) / "events.jsonl"
        with serving(Path(folder), "--deadline-ms", "60000", "--event-log", str(log)) as url:
            stages, alone, sevenths = asyncio.run(_run(url, times))
        with log.open("rb") as file:
            behind = behind_others(read_log(file)[1], [left for left, _ in sevenths])
        return Report(stages, alone, [seconds for _, seconds in sevenths], behind)


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


async def _run(url: str, times: int) -> tuple[int, float, list[tuple[float, float]]]:
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
