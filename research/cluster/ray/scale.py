"""Scales from one replica to two under load, and back: what is lost meanwhile, and how long it takes."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from latebind.bench.ledger import own
from latebind.bench.ledger.play import Played, play
from latebind.bench.ledger.questions import Mix, Questions
from latebind.bench.rounds import Progress
from research.cluster.ray.replicas import Watch

SETTINGS = "[cluster]\nup_after = {up:g}\ndown_after = {down:g}\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """So many requests a second for so many seconds, first high, then low; after how long Ray is to scale."""

    high: float = 200.0
    low: float = 4.0
    high_seconds: float = 40.0
    low_seconds: float = 60.0
    up: float = 2.0
    down: float = 5.0

    @property
    def requests(self) -> int:
        """How many there are."""
        return round(self.high * self.high_seconds + self.low * self.low_seconds)


@dataclass(frozen=True, slots=True)
class Scaled:
    """What came of it; `replicas` are seconds since the first request, and how many there were from then on."""

    plan: Plan
    played: Played
    replicas: tuple[tuple[float, int], ...]

    @property
    def up(self) -> float | None:
        """Seconds from the first request until two replicas were there."""
        return next((at for at, count in self.replicas if count >= 2), None)

    @property
    def down(self) -> float | None:
        """Seconds from the fall of the load until one was there again."""
        if self.up is None:
            return None
        later = (at for at, count in self.replicas if at > self.plan.high_seconds and count == 1)
        return next((at - self.plan.high_seconds for at in later), None)


def run(folder: Path, mix: Mix, plan: Plan, *, options: list[str], tell: Progress) -> Scaled:
    """Serve on one replica, which may become two, and ask."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "scale.toml"
    settings.write_text(SETTINGS.format(up=plan.up, down=plan.down))
    serve = ["--on", "ray", "--replicas", "1", "--max-replicas", "2", "--config", str(settings), *options]
    with own.serving(folder, tuple(mix.models), serve) as target:
        watch = Watch(target.http)
        times = _times(plan, Random(mix.seed))
        played = asyncio.run(play(target, Questions(mix), times, plan.requests, inject=[watch], tell=tell))
    seen = tuple((max(0.0, at - played.began), count) for at, count in watch.seen)
    return Scaled(plan, played, seen)


def _times(plan: Plan, random: Random) -> Iterator[float]:
    """Yield the arrival times."""
    time = 0.0
    while True:
        time += random.expovariate(plan.high if time < plan.high_seconds else plan.low)
        yield time
