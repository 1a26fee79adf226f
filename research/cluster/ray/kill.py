"""Kills a replica again and again under the ledger's load: what is lost, and how soon there are as many again."""

import asyncio
import signal
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from latebind.bench.client import poisson
from latebind.bench.ledger import own
from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.inject import Fault, Injected
from latebind.bench.ledger.play import Played, Target, play
from latebind.bench.ledger.questions import Mix, Questions
from latebind.bench.rounds import Progress
from research.cluster.ray.replicas import LOOK, busiest_replica, engines, known

PAUSE = 0.02
MOST = 60.0  # seconds to wait for a replica in the place of one that was killed
AROUND = 12.0  # seconds after a kill in which silence is looked for
ENGINE_SECONDS = 5.0  # that the engine of a killed replica may take to end, once another one is there


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill: at which request and time of the loop, seconds until there were as many replicas again.

    `engine_left`: whether the engine of the killed replica lived on.
    """

    request: int
    at: float
    seconds: float
    engine_left: bool


@dataclass(slots=True)
class Killer:
    """Kills the busiest replica so many times, evenly over the requests."""

    process: int
    port: int
    replicas: int
    times: int
    done: list[Injected] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    _recovering: "asyncio.Task[None] | None" = None

    async def run(self, requests: int, ledger: Ledger) -> None:
        """Wait for the right request each time, kill, and wait for another replica."""
        for number in range(self.times):
            at = requests * (number + 1) // (self.times + 1)
            while ledger.asked_count < at:
                await asyncio.sleep(PAUSE)
            self._recovering = asyncio.create_task(self._kill(ledger.asked_count))
            await asyncio.shield(self._recovering)

    async def recovered(self) -> None:
        """Wait for the last recovery, which the requests may not have lasted for."""
        if self._recovering is not None:
            await self._recovering

    async def _kill(self, request: int) -> None:
        before = await asyncio.to_thread(known, self.port)
        replica, running = busiest_replica(self.process), list(engines(self.process))
        loop = asyncio.get_running_loop()
        replica.send_signal(signal.SIGKILL)
        at = loop.time()
        self.done.append(Injected(Fault.KILL, request, f"kill -9 of replica {replica.pid}"))
        while loop.time() - at < MOST:
            now = await asyncio.to_thread(known, self.port)
            if len(now) >= self.replicas and now - before:
                break
            await asyncio.sleep(LOOK)
        seconds = loop.time() - at
        until = loop.time() + ENGINE_SECONDS
        while not (ended := any(not one.is_running() for one in running)) and loop.time() < until:
            await asyncio.sleep(LOOK)
        self.recoveries.append(Recovery(request, at, seconds, engine_left=not ended))


@dataclass(frozen=True, slots=True)
class Killed:
    """The outcome; `times` kills were planned."""

    played: Played
    recoveries: tuple[Recovery, ...]
    times: int

    @property
    def silences(self) -> list[float]:
        """For each kill the longest time after it in which no right answer came."""
        good = self.played.ledger.good
        ends = sorted(due + seconds for due, seconds in zip(good.due, good.seconds, strict=True))
        found = []
        for one in self.recoveries:
            after = [one.at, *(end for end in ends if one.at < end < one.at + AROUND)]
            found.append(max((b - a for a, b in pairwise(after)), default=AROUND))
        return found


def run(
    folder: Path, mix: Mix, *, requests: int, rate: float, replicas: int, times: int, options: list[str], tell: Progress
) -> Killed:
    """Serve the models of `mix` on Ray and ask, in an open loop of `rate` requests a second."""
    serve = ["--on", "ray", "--replicas", str(replicas), *options]
    with own.serving(folder, tuple(mix.models), serve) as target:
        killer = Killer(target.process, target.http, replicas, times)
        return asyncio.run(_ask(target, mix, requests, rate, killer, tell))


async def _ask(target: Target, mix: Mix, requests: int, rate: float, killer: Killer, tell: Progress) -> Killed:
    arrivals = poisson(rate, Random(mix.seed))
    played = await play(target, Questions(mix), arrivals, requests, inject=[killer], tell=tell)
    await killer.recovered()
    return Killed(played, tuple(killer.recoveries), killer.times)
