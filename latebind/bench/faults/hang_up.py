"""Clients that leave while a slow model runs: whoever comes after them waits for a stage at most."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from latebind.bench.faults.clients import Asked, Clients, session
from latebind.bench.faults.models import SLOW_WIDTH, build_slow
from latebind.bench.server import serving
from latebind.program.build import Progress, tell_nobody

LEAVING = 6
WARM_UP, ALONE = 1, 2  # requests


@dataclass(frozen=True, slots=True)
class Report:
    """Seconds of a request alone, and of the seventh each time; `stages` are those of the model."""

    stages: int
    alone: float
    seventh: list[float]

    @property
    def late(self) -> list[float]:
        """By how many stages the seventh was later than alone, each time."""
        return [(seconds - self.alone) / (self.alone / self.stages) for seconds in self.seventh]


def run(times: int, *, layers: int, repeats: int, progress: Progress = tell_nobody) -> Report:
    """Have six clients leave in the middle of the first stage and a seventh come at once; so many times."""
    with tempfile.TemporaryDirectory() as folder:
        build_slow(
            Path(folder), layers=layers, repeats=repeats, progress=lambda doing, share: progress(doing, 0.8 * share)
        )
        progress("clients come and leave", 0.8)
        with serving(Path(folder), "--deadline-ms", "60000") as url:
            return asyncio.run(_run(url, times))


async def _run(url: str, times: int) -> Report:
    async with session(url) as connections:
        clients = Clients(connections, "slow", SLOW_WIDTH)
        alone = [await _answered(clients) for _ in range(WARM_UP + ALONE)][WARM_UP:]
        stages, least = alone[0].stages, min(one.ended - one.sent for one in alone)
        return Report(stages, least, [await _after_others(clients, least / stages) for _ in range(times)])


async def _after_others(clients: Clients, stage: float) -> float:
    leaving = [asyncio.create_task(clients.ask()) for _ in range(LEAVING)]
    await asyncio.sleep(0.5 * stage)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    seventh = await _answered(clients)
    return seventh.ended - seventh.sent


async def _answered(clients: Clients) -> Asked:
    asked = await clients.ask()
    if asked.status != 200:
        raise RuntimeError(f"a request was answered {asked.status}: see the server's messages above")
    return asked
