"""Engines of several sides with one model, asked in turn: saturated, or with the same requests for each."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from latebind.bench.client import Array
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.subject import Setting
from latebind.domain.config import ServedModel
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from research.live.asked import Asked
from research.live.pace import WARM_UP, Pace
from research.live.played import Played
from research.live.requests import PATIENCE, Visit
from research.live.rows import Rows
from research.live.sides import SERIAL, Side, started

Stretches = Sequence[Sequence[float]]  # seconds at which requests are sent, each since it began
Visits = dict[str, tuple[float, Visit]]  # by side


@dataclass(slots=True)
class Session:
    """A contest of engines under way. `served` is the model without learned caches, as `build` measured it."""

    served: ServedModel
    sides: Mapping[str, Side]
    rows: Rows
    asked: Mapping[str, Asked]
    pace: Pace

    @property
    def alone(self) -> float:
        """Seconds that one request after another takes, at the mean pace so far."""
        return self.pace.mean

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, tell: Progress
    ) -> dict[str, list[float]]:
        """Return for each side and round the time a request takes with always enough to do.

        In units of what one takes serially; asked for as many as that are in so many seconds.
        """
        requests = max(WARM_UP, round(seconds / self.alone))
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in in_rounds(rounds):
            tell("saturation", number / rounds)
            for name in random.sample(list(names), len(names)):
                here = await self.pace.take()
                most = self.sides[name].largest_batch(self.served.spec)
                found[name].append(await self.asked[name].throughput(requests, most) / here)
        return found

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float = PATIENCE
    ) -> dict[str, Played]:
        """Return the outcomes of requests at these times on each side, with the same rows for all.

        Times, what is allowed and seconds are those at the pace at which a request takes `alone` seconds serially.
        """
        first, found = self.rows.next, {}
        for name in random.sample(list(names), len(names)):
            slower, self.rows.next = await self.pace.take() / alone, first
            played = await self.asked[name].play([slower * time for time in times], allowed=slower * allowed)
            found[name] = played.at_pace(slower)
        return {name: found[name] for name in names}

    async def visits(self, names: Sequence[str], stretches: Stretches, random: Random, *, alone: float) -> Visits:
        """Return what clients saw of calibrations and blocks, in turn, on each side: the same rows and times for all.

        And how many times slower the machine was than where a request takes `alone` seconds serially: times keep to
        that.
        """
        first, found = self.rows.next, {}
        for name in random.sample(list(names), len(names)):
            slower, self.rows.next = await self.pace.take() / alone, first
            sent = [await self.asked[name].send([slower * time for time in times]) for times in stretches]
            found[name] = slower, Visit(sent[::2], sent[1::2])
        return {name: found[name] for name in names}


@asynccontextmanager
async def session(
    path: Path,
    sides: Mapping[str, Side],
    inputs: Mapping[str, Array],
    setting: Setting,
    *,
    known: int,
    cores: tuple[int, ...] = (),
    logs: Mapping[str, Path] | None = None,
) -> AsyncIterator[Session]:
    """Start an engine for each side, on `cores` or that of the setting, and warm them up; it may write a log.

    `serial` must be among them: it gives the pace, and the right answers to the first `known` rows.
    """
    served = ServedModel(*read_spec_and_costs(ModelDirectory.open(path)))
    rows = Rows(served.spec, inputs)
    async with AsyncExitStack() as stack:
        asked = {
            name: Asked(await started(stack, path, side, setting, cores, (logs or {}).get(name)), rows)
            for name, side in sides.items()
        }
        await asked[SERIAL].saturate(min(rows.count, known), 1)
        for name, side in sides.items():
            batches = side.largest_batch(served.spec) if served.spec.kinds else 1
            await asked[name].saturate(WARM_UP * batches, WARM_UP)
        pace = await Pace.of(asked[SERIAL], served, setting.paced)
        await pace.take()
        yield Session(served, sides, rows, asked, pace)
