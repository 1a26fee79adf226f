"""What the application on Ray Serve loses while replicas are killed and scaled, and what it costs beside one server.

A replica is killed again and again under the ledger's load; a load that needs two replicas is followed by a low one;
and single calls go to Ray and to a stand-alone server in turn, one at a time, while both run all the time.
"""

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import psutil

from latebind.bench.client import Line, answered, encode, poisson, written
from latebind.bench.ledger import networks
from latebind.bench.ledger import report as ledger_report
from latebind.bench.ledger.books import Fault as Lost
from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.faults import Fault, Injected
from latebind.bench.ledger.play import Played, play
from latebind.bench.ledger.questions import KINDS, LONGEST, MARKS, WIDTH, WORDS, Mix, Protocol, Questions
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.server import cpu_seconds, tree
from latebind.bench.statistics import ratio_of_means, ratio_of_quantiles
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
SETTINGS = "[cluster]\nup_after = 2\ndown_after = 5\n"
LIVE, METADATA = (
    "live",
    "metadata",
)  # the frontend alone answers the first; a replica's frontend the second, without its engine
ALONE, RAY = "alone", "on Ray"
ASKED = ("affine", "slow", "words")  # models whose single calls are timed
WARM_UP = 50  # calls of each kind that do not count
BLOCK = 20  # calls that are resampled together
BETWEEN = 0.005  # seconds between two single calls
SECONDS = 10.0  # deadline of a call


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


def ledger(folder: Path, plan: Killing, tell: Progress, *, seed: int, options: list[str]) -> Found:
    """Serve the models of the ledger on Ray, ask in an open loop, and kill the busiest replica so many times."""
    mix, serve = Mix(seed=seed), ["--on", "ray", "--replicas", str(plan.replicas), *options]
    with networks.serving(folder, tuple(mix.models), serve) as target:
        killer = Killer(target.process, target.http, plan.replicas, plan.times)

        async def ask() -> Played:
            arrivals = poisson(plan.rate, Random(mix.seed))
            played = await play(target, Questions(mix), arrivals, plan.requests, inject=[killer], tell=tell)
            await killer.recovered()
            return played

        found = Killed(asyncio.run(ask()), tuple(killer.recoveries), plan.times)
    tables = {
        "what must never be": ledger_report.fault_rows(found.played),
        "how requests ended": ledger_report.end_rows(found.played),
        "replicas killed": kill_rows(found),
        "client and server": ledger_report.client_rows(found.played),
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


@dataclass(slots=True)
class Watch:
    """Looks how many replicas there are, while requests are sent. `seen` are times of the loop, and how many from then.

    It does nothing to them, so `done` stays empty.
    """

    port: int
    seen: list[tuple[float, int]] = field(default_factory=list)
    done: list[Injected] = field(default_factory=list)

    async def run(self, requests: int, ledger: Ledger) -> None:
        """Look until cancelled."""
        del requests, ledger
        loop = asyncio.get_running_loop()
        while True:
            count = len(await asyncio.to_thread(known, self.port))
            if not self.seen or self.seen[-1][1] != count:
                self.seen.append((loop.time(), count))
            await asyncio.sleep(LOOK)


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests a second for so many seconds, first high, then low."""

    high: float = 200.0
    low: float = 4.0
    high_seconds: float = 40.0
    low_seconds: float = 60.0

    @property
    def requests(self) -> int:
        """How many there are."""
        return round(self.high * self.high_seconds + self.low * self.low_seconds)

    def times(self, random: Random) -> Iterator[float]:
        """Yield the arrival times."""
        time = 0.0
        while True:
            time += random.expovariate(self.high if time < self.high_seconds else self.low)
            yield time


@dataclass(frozen=True, slots=True)
class Scaled:
    """What came of it; `replicas` are seconds since the first request, and how many there were from then on."""

    plan: Load
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


def scale(folder: Path, plan: Load, tell: Progress, *, seed: int, options: list[str]) -> Found:
    """Serve on one replica, which may become two, and ask: from one replica to two and back."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "scale.toml"
    settings.write_text(SETTINGS)
    protocols = (Protocol.JSON, Protocol.BINARY)
    mix = Mix(models=("slow",), protocols=protocols, largest=1, deadlines=(0.1,), seed=seed)
    serve = ["--on", "ray", "--replicas", "1", "--max-replicas", "2", "--config", str(settings), *options]
    with networks.serving(folder, tuple(mix.models), serve) as target:
        watch = Watch(target.http)
        arrivals = plan.times(Random(mix.seed))
        played = asyncio.run(play(target, Questions(mix), arrivals, plan.requests, inject=[watch], tell=tell))
    found = Scaled(plan, played, tuple((max(0.0, at - played.began), count) for at, count in watch.seen))
    tables: dict[str, Rows] = {
        "from one replica to two and back": scale_summary(found),
        "replicas": [{"second": f"{at:.1f}", "replicas": count} for at, count in found.replicas],
        "how requests ended": ledger_report.end_rows(played),
    }
    return Found(tables, problems=scale_verdict(found))


def scale_summary(found: Scaled) -> Rows:
    """Return how long both ways took, and what was lost."""
    faults = found.played.ledger.faults
    return [
        {
            "to two replicas s": _told(found.up),
            "back to one s after the load fell": _told(found.down),
            "requests": found.played.ledger.asked_count,
            **{str(fault): faults[fault] for fault in Lost},
        }
    ]


def scale_verdict(found: Scaled) -> list[str]:
    """Return the requirements that did not hold."""
    missing = [what for what, at in (("two replicas", found.up), ("one replica again", found.down)) if at is None]
    return [*found.played.ledger.evidence, *(f"there never were {what}" for what in missing)]


@dataclass(slots=True)
class Taken:
    """Seconds of one kind of call on one side, as the client saw them, and those of them in the engine."""

    whole: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)


def latency(folder: Path, tell: Progress, *, rounds: int, calls: int, seed: int, options: list[str]) -> Found:
    """Start both servers and ask them, kind by kind, for each call one side after the other, in an order that is drawn.

    The difference is that of ingress, replica and two hops more; what the engine takes longer is the engine's.
    """
    tell("starting", 0.0)
    random, ray = Random(seed), ["--on", "ray", "--replicas", "1", *options]
    with ExitStack() as stack:
        targets = {
            ALONE: stack.enter_context(networks.serving(folder / "one", ASKED, options)),
            RAY: stack.enter_context(networks.serving(folder / "ray", ASKED, ray)),
        }
        lines = {side: Line(f"http://127.0.0.1:{target.http}") for side, target in targets.items()}
        for line in lines.values():
            stack.callback(line.close)
        requests = {kind: request(kind, lines[ALONE].host) for kind in (LIVE, METADATA, *ASKED)}
        taken = {side: {kind: Taken() for kind in requests} for side in lines}
        for data in requests.values():
            for line in lines.values():
                for _ in range(WARM_UP):
                    line.ask(data)
        before = {side: _cpu(target.process) for side, target in targets.items()}
        for number in in_rounds(rounds):
            for kind, data in requests.items():
                tell(f"round {number + 1}, {kind}", number / rounds)
                for _ in range(calls):
                    for side in random.sample(list(lines), len(lines)):
                        time.sleep(BETWEEN)
                        _ask(lines[side], data, kind, taken[side][kind])
        after = {side: _cpu(target.process) for side, target in targets.items()}
    asked = sum(len(one.whole) for one in taken[RAY].values())
    cpu: Rows = [
        {"side": side, "process": name, "CPU ms of a call": _ms((seconds - before[side].get(name, 0.0)) / asked)}
        for side in after
        for name, seconds in sorted(after[side].items())
    ]
    kinds = [latency_row(kind, taken[ALONE][kind], taken[RAY][kind], seed) for kind in requests]
    return Found({"one call at a time, on Ray over alone": kinds, "time in processors": cpu})


def latency_row(kind: str, alone: Taken, ray: Taken, seed: int) -> dict[str, object]:
    """Return what the calls of one kind took on both sides, paired; medians too, for one stall moves a mean."""
    here, there = np.array(alone.whole), np.array(ray.whole)
    engines = float(np.median(ray.engine)) - float(np.median(alone.engine))
    longer = float(np.median(there)) - float(np.median(here))
    return {
        "call": kind,
        "alone ms": _ms(here.mean()),
        "median": _ms(float(np.median(here))),
        "on Ray ms": _ms(there.mean()),
        "its median": _ms(float(np.median(there))),
        "mean, times": str(ratio_of_means(there, here, block=BLOCK, seed=seed)),
        "p99, times": str(ratio_of_quantiles(there, here, 0.99, block=BLOCK, seed=seed)),
        "longer by ms": _ms(longer),
        "of it the engine": _ms(engines),
        "ingress and replica": _ms(longer - engines),
    }


def _ask(line: Line, data: bytes, kind: str, taken: Taken) -> None:
    reply, seconds = line.ask(data)
    if reply.status != 200:
        raise ConfigError(f"{kind} was answered {reply.status}: {bytes(reply.data[:200])!r}")
    taken.whole.append(seconds)
    taken.engine.append(answered(reply, seconds).engine_seconds if kind in KINDS else 0.0)


def request(kind: str, host: str) -> bytes:
    """Return a call as it is sent. The host is that of either side: a port counts for nothing."""
    if kind in {LIVE, METADATA}:
        path = "/v2/health/live" if kind == LIVE else "/v2"
        return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    about = KINDS[kind]
    row = (
        np.arange(WIDTH, dtype=np.float32) if about.dtype == "float32" else MARKS + np.arange(LONGEST) % (WORDS - MARKS)
    )
    return written(host, kind, encode({about.input: row.astype(about.dtype)[None]}, timeout=SECONDS))


def _cpu(process: int) -> dict[str, float]:
    """Return the CPU seconds of the processes of a server by what they are."""
    named = {one.pid: name for name, one in actors(process)}
    found: dict[str, float] = {}
    for one in tree(process):
        name = "engine" if one.name() == ENGINE else named.get(one.pid)
        name = name or ("frontend" if one.pid == process else "Ray")
        times = one.cpu_times()
        found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _told(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f}"
