"""What the application on Ray Serve loses while replicas are killed, again and again, under the ledger's load."""

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from random import Random

import psutil

from latebind.bench.client import poisson
from latebind.bench.ledger import networks
from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.faults import Fault, Injected
from latebind.bench.ledger.play import Played, client_rows, end_rows, fault_rows, play
from latebind.bench.ledger.questions import Mix, Questions
from latebind.bench.rounds import Progress
from latebind.bench.server import cpu_seconds, tree
from latebind.cli.console import Rows
from latebind.domain.errors import ConfigError
from latebind.engine.client import NAME as ENGINE
from research.evaluation import Found

ACTOR = re.compile(r"^ray::\S*ServeReplica:latebind:(\w+)")
NAMED = re.compile(r'replica="([^"]+)"')
LOOK = 0.2  # seconds between two looks at which replicas there are
PATIENCE = 5.0  # for one look
PAUSE = 0.02
MOST = 60.0  # seconds to wait for a replica in the place of one that was killed
MOST_RECOVERY = 10.0  # seconds that a recovery should take at most
AROUND = 12.0  # seconds after a kill in which silence is looked for
ENGINE_SECONDS = 5.0  # that the engine of a killed replica may take to end, once another one is there


def actors(process: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yield what Ray Serve runs of the application under a process: `ingress` or `replica`, and its process."""
    for one in tree(process):
        with suppress(psutil.NoSuchProcess):
            found = ACTOR.match(" ".join(one.cmdline()))
            if found:
                yield found[1], one


def busiest_replica(process: int) -> psutil.Process:
    """Return the replica that has computed most, with all that it started. Raises `ConfigError` without one."""
    found = {one: cpu_seconds(one.pid) for name, one in actors(process) if name == "replica"}
    if not found:
        raise ConfigError(f"process {process} has no replica: it serves on no Ray of this machine")
    return max(found, key=found.__getitem__)


def engines(process: int) -> Iterator[psutil.Process]:
    """Yield the engines of all replicas, which are no children of these."""
    for one in tree(process):
        with suppress(psutil.NoSuchProcess):
            if one.name() == ENGINE:
                yield one


def known(port: int) -> frozenset[str]:
    """Return the names of the replicas whose figures the ingress has; none if it does not answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/metrics")
        return frozenset(NAMED.findall(connection.getresponse().read().decode()))
    except (OSError, HTTPException):
        return frozenset()
    finally:
        connection.close()


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


@dataclass(frozen=True, slots=True)
class Killing:
    """So many requests at a rate (a second) to so many replicas, one of which is killed so many times."""

    requests: int
    rate: float
    replicas: int
    times: int


def ledger(folder: Path, plan: Killing, on_progress: Progress, *, seed: int, options: list[str]) -> Found:
    """Serve the models of the ledger on Ray, ask in an open loop, and kill the busiest replica so many times."""
    mix, serve = Mix(seed=seed), ["--on", "ray", "--replicas", str(plan.replicas), *options]
    with networks.serving(folder, tuple(mix.models), serve) as target:
        killer = Killer(target.process, target.http, plan.replicas, plan.times)

        async def ask() -> Played:
            arrivals = poisson(plan.rate, Random(mix.seed))
            played = await play(
                target, Questions(mix), arrivals, plan.requests, inject=[killer], on_progress=on_progress
            )
            await killer.recovered()
            return played

        found = Killed(asyncio.run(ask()), tuple(killer.recoveries), plan.times)
    tables = {
        "what must never be": fault_rows(found.played),
        "how requests ended": end_rows(found.played),
        "replicas killed": kill_rows(found),
        "client and server": client_rows(found.played),
    }
    return Found(tables, problems=kill_verdict(found))


def kill_rows(found: Killed) -> Rows:
    """Return each kill: how long nobody was answered right, and how long until there were as many replicas again."""
    return [
        {
            "at request": one.request,
            "longest without a right answer s": f"{silence:.2f}",
            "as many replicas again s": f"{one.seconds:.2f}",
            "its engine": "left behind" if one.engine_left else "ended",
        }
        for one, silence in zip(found.recoveries, found.silences, strict=True)
    ]


def kill_verdict(found: Killed) -> list[str]:
    """Return the requirements that did not hold."""
    slow = [one for one in found.recoveries if one.seconds >= MOST_RECOVERY]
    left = [one for one in found.recoveries if one.engine_left]
    missing = found.times - len(found.recoveries)
    return [
        *found.played.ledger.evidence,
        *([f"{missing} replicas were not killed: the requests ended before; send more"] if missing else []),
        *(f"the replica killed at request {one.request} was replaced after {one.seconds:.1f} s" for one in slow),
        *(f"the engine of the replica killed at request {one.request} lived on" for one in left),
    ]
