"""Measures latency on Ray beside the stand-alone server at low load, and where the difference goes.

Both run all the time. Calls go to one and the other in turn, one at a time. A third way is to the stand-alone server
through a process that only passes bytes on (`bare.py`): what that adds, no ingress could save.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import Line, answered, encode, written
from latebind.bench.ledger import own
from latebind.bench.ledger.questions import KINDS, LONGEST, MARKS, WIDTH, WORDS
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.server import tree
from latebind.bench.statistics import Interval, ratio_of_means, ratio_of_quantiles
from latebind.domain.errors import ConfigError
from latebind.engine.client import NAME as ENGINE
from research.cluster.ray.bare import HOST, passing_on
from research.cluster.ray.replicas import actors

LIVE, METADATA = "live", "metadata"  # the door alone answers the first; a replica's door the second, without its engine
ALONE, BARE, RAY = "alone", "through a process", "on Ray"
WARM_UP = 50  # calls of each kind that do not count
BLOCK = 20  # calls that are resampled together
P99 = 0.99
SECONDS = 10.0  # deadline of a call


@dataclass(frozen=True, slots=True)
class Plan:
    """So many rounds, in each of which every model is asked so often on either side, `pause` seconds apart."""

    models: tuple[str, ...] = ("affine", "slow", "words")
    rounds: int = 5
    calls: int = 200
    pause: float = 0.005
    seed: int = 0


@dataclass(slots=True)
class Taken:
    """Seconds of one kind of call on one side, as the client saw them, and those of them in the engine."""

    whole: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Usual:
    """Seconds of one kind of call on one side: the mean, the median, and the median of those in the engine."""

    mean: float
    median: float
    engine: float

    @classmethod
    def of(cls, taken: Taken) -> "Usual":
        """Return those of calls."""
        return cls(float(np.mean(taken.whole)), float(np.median(taken.whole)), float(np.median(taken.engine)))


@dataclass(frozen=True, slots=True)
class Compared:
    """One kind of call on all sides, and what it takes on Ray over what it takes alone."""

    kind: str
    alone: Usual
    bare: Usual
    ray: Usual
    mean: Interval
    p99: Interval


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome; `cpu` is the CPU seconds of a call, by side and process."""

    plan: Plan
    kinds: tuple[Compared, ...]
    cpu: Mapping[str, Mapping[str, float]]

    def of(self, kind: str) -> Compared:
        """Return what came of this kind of call."""
        return next(one for one in self.kinds if one.kind == kind)


def run(folder: Path, plan: Plan, *, options: list[str], tell: Progress) -> Found:
    """Start both and ask."""
    tell("starting", 0.0)
    ray = ["--on", "ray", "--replicas", "1", *options]
    with (
        own.serving(folder / "one", plan.models, options) as alone,
        own.serving(folder / "ray", plan.models, ray) as on_ray,
        passing_on(alone.http) as port,
        _lines({ALONE: alone.http, BARE: port, RAY: on_ray.http}) as lines,
    ):
        requests = {kind: _request(kind, lines[ALONE].host) for kind in (LIVE, METADATA, *plan.models)}
        for data in requests.values():
            for line in lines.values():
                _ask_often(line, data)
        before = {name: _cpu(target.process) for name, target in ((ALONE, alone), (RAY, on_ray))}
        taken = _rounds(lines, requests, plan, tell)
        after = {name: _cpu(target.process) for name, target in ((ALONE, alone), (RAY, on_ray))}
    calls = sum(len(one.whole) for one in taken[RAY].values())
    asked = {ALONE: 2 * calls, RAY: calls}  # what comes through `bare.py` comes to the stand-alone server
    cpu = {
        side: {who: (now - before[side].get(who, 0.0)) / asked[side] for who, now in after[side].items()}
        for side in asked
    }
    kinds = tuple(compared(kind, {side: taken[side][kind] for side in taken}, plan.seed) for kind in requests)
    return Found(plan, kinds, cpu)


def compared(kind: str, taken: Mapping[str, Taken], seed: int) -> Compared:
    """Return what the calls of one kind took on all sides, pair by pair."""
    here, there = _array(taken[ALONE].whole), _array(taken[RAY].whole)
    mean = ratio_of_means(there, here, block=BLOCK, seed=seed)
    p99 = ratio_of_quantiles(there, here, P99, block=BLOCK, seed=seed)
    alone, bare, ray = (Usual.of(taken[side]) for side in (ALONE, BARE, RAY))
    return Compared(kind, alone, bare, ray, mean, p99)


def _rounds(
    lines: Mapping[str, Line], requests: Mapping[str, bytes], plan: Plan, tell: Progress
) -> dict[str, dict[str, Taken]]:
    """Ask kind by kind, and for each call one side after the other, in an order that is drawn."""
    random, sides = Random(plan.seed), list(lines)
    taken = {side: {kind: Taken() for kind in requests} for side in sides}
    for number in in_rounds(plan.rounds):
        for kind, data in requests.items():
            tell(f"round {number + 1}, {kind}", number / plan.rounds)
            for _ in range(plan.calls):
                for side in random.sample(sides, len(sides)):
                    time.sleep(plan.pause)
                    _ask(lines[side], data, kind, taken[side][kind])
    return taken


def _ask(line: Line, data: bytes, kind: str, taken: Taken) -> None:
    reply, seconds = line.ask(data)
    if reply.status != 200:
        raise ConfigError(f"{kind} was answered {reply.status}: {bytes(reply.data[:200])!r}")
    taken.whole.append(seconds)
    taken.engine.append(answered(reply, seconds).engine_seconds if kind in KINDS else 0.0)


def _ask_often(line: Line, data: bytes) -> None:
    for _ in range(WARM_UP):
        line.ask(data)


def _request(kind: str, host: str) -> bytes:
    """Return a call as it is sent. The host is that of either side: a port counts for nothing."""
    if kind in {LIVE, METADATA}:
        path = "/v2/health/live" if kind == LIVE else "/v2"
        return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    about = KINDS[kind]
    row = (
        np.arange(WIDTH, dtype=np.float32) if about.dtype == "float32" else MARKS + np.arange(LONGEST) % (WORDS - MARKS)
    )
    return written(host, kind, encode({about.input: row.astype(about.dtype)[None]}, timeout=SECONDS))


@contextmanager
def _lines(ports: Mapping[str, int]) -> Iterator[dict[str, Line]]:
    lines = {side: Line(f"http://{HOST}:{port}") for side, port in ports.items()}
    try:
        yield lines
    finally:
        for line in lines.values():
            line.close()


def _cpu(process: int) -> dict[str, float]:
    """Return the CPU seconds of the processes of a server by what they are."""
    named = {one.pid: name for name, one in actors(process)}
    found: dict[str, float] = {}
    for one in tree(process):
        name = "engine" if one.name() == ENGINE else named.get(one.pid)
        name = name or ("door" if one.pid == process else "Ray")
        times = one.cpu_times()
        found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def _array(values: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
