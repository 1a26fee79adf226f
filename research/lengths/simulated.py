"""Policies on requests of different lengths on the virtual clock, by mix of lengths, load and side."""

import gzip
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from latebind.batching.costs import Estimate
from latebind.domain.actions import Outcome, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Grid, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.simulation.driver import Simulator
from latebind.simulation.lengths import by_quarter, why_padded
from latebind.simulation.workloads import Arrival, poisson
from research.lengths.costs import Measured
from research.sides import Side, graph

ALLOWED = 10.0  # times what a request takes alone on average
WARM_UP = 0.05  # of the requests: the queue is empty when they come
SPECIAL = 2  # tokens that a tokenizer adds to a text
LONG_TAIL, MEDIAN, SPREAD = (5, 400), 24.0, 1.0  # a lognormal, cut
DRAWN = 20_000
POLICIES = "research.lengths.policies"
OURS, FIXED = "ours", "fixed"  # kinds of sides


def text_lengths(file: Path) -> tuple[int, ...]:
    """Return the tokens of each line of a text, or of its last column: words and signs, and what a tokenizer adds."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} has no text: {error}") from None
    found = [len(re.findall(r"\w+|[^\w\s]", line.rpartition("\t")[2])) + SPECIAL for line in lines if line.strip()]
    if not found:
        raise ConfigError(f"{file} has no lines")
    return tuple(found)


def long_tail() -> tuple[int, ...]:
    """Return lengths from 5 to 400 tokens, few of them long."""
    drawn = MEDIAN * np.exp(SPREAD * np.random.default_rng(0).standard_normal(DRAWN))
    return tuple(int(one) for one in np.clip(np.rint(drawn), *LONG_TAIL))


def sides(max_batch: int) -> list[Side]:
    """Return the baselines, each with its settings, with and without shedding; and ours, which shed."""
    found = []
    for sheds in (True, False):
        behind = "" if sheds else ", unshed"
        for size in (4, 16):
            found.append(Side(f"first come({size}){behind}", graph(size, shed=sheds), ("first come",)))
        for size in (4, 8):
            found.append(Side(f"sorted({size}){behind}", _policy("Sorted", size, sheds), ("sorted",)))
        found.append(Side(f"fixed(8){behind}", graph(8, shed=sheds), (FIXED,)))
        for tokens in (128, 256):
            policy = PolicyConfig(f"{POLICIES}:Budget", max_batch, tokens / 1e3, shed=sheds)
            found.append(Side(f"budget({tokens}){behind}", policy, ("budget",)))
        for size in (8, max_batch):
            found.append(Side(f"programme({size}){behind}", _policy("Programme", size, sheds), ("programme",)))
    return [*found, *[Side(name, PolicyConfig(name, max_batch), (OURS,)) for name in ("late", "lazy+")]]


def _policy(name: str, size: int, sheds: bool) -> PolicyConfig:
    return PolicyConfig(f"{POLICIES}:{name}", size, shed=sheds)


@dataclass(frozen=True, slots=True)
class Task:
    """One run: `requests` whose lengths are drawn from a `mix`, at a `load` of the capacity."""

    mix: str
    load: float
    side: Side
    seed: int = 0
    requests: int = 2_000


@dataclass(frozen=True, slots=True)
class Figures:
    """The share of all requests answered in time, by quarter of their lengths too; the mean seconds of the answered.

    `padding` is tokens run over tokens of the rows that ran.
    """

    in_time: float
    mean: float
    padding: float
    quarters: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one run."""

    task: Task
    figures: Figures


@dataclass(frozen=True, slots=True)
class Scene:
    """What is simulated: measured costs, and the lengths of each mix. Lengths beyond the largest measured are cut.

    Where it `packs`, batches of all sides but those of fixed length take what their rows have in all.
    """

    costs: Measured
    mixes: Mapping[str, tuple[int, ...]]
    max_batch: int = 32
    packs: bool = False

    def served(self) -> ServedModel:
        """Return the model."""
        served = self.costs.served(self.max_batch)
        return replace(served, spec=replace(served.spec, packs=self.packs))

    def lengths(self, mix: str) -> tuple[int, ...]:
        """Return the lengths to draw from."""
        return tuple([min(length, self.costs.most) for length in self.mixes[mix]])

    def alone(self, mix: str) -> float:
        """Return the mean seconds that a request takes alone."""
        estimate = self._estimate()
        return float(np.mean([estimate.whole(1, length) for length in self.lengths(mix)]))

    def allowed(self, mix: str) -> float:
        """Return the seconds that a request may take."""
        return ALLOWED * self.alone(mix)

    def capacity(self, mix: str) -> float:
        """Return the requests a second where each runs without padding, in the batch that suits its length best."""
        estimate = self._estimate()
        return 1.0 / float(np.mean([estimate.work(self.max_batch, length) for length in self.lengths(mix)]))

    def bound(self, mix: str, load: float) -> float:
        """Return the share of requests that no policy can exceed in time: the shortest, each at its least work.

        Those are left out that would be late even alone.
        """
        estimate, lengths = self._estimate(), np.sort(self.lengths(mix))
        allowed, time = self.allowed(mix), 1.0 / (load * self.capacity(mix))
        alone, work = (
            np.array([of(length) for length in lengths.tolist()])
            for of in (partial(estimate.whole, 1), partial(estimate.work, self.max_batch))
        )
        return float(np.mean((alone <= allowed) & (np.cumsum(work) / len(lengths) <= time * (1.0 + 1e-9))))

    def in_batches(self, mix: str, load: float) -> float:
        """Return the share in time where requests come evenly and are answered in batches of one size, without padding.

        The batches follow each other, each of the size that is best. One that takes T seconds has the requests that
        came while the one before ran, without those that would be late in it.
        """
        estimate, allowed, rate = self._estimate(), self.allowed(mix), load * self.capacity(mix)
        lengths = Counter(self.lengths(mix))
        found = 0.0
        for size in range(1, self.max_batch + 1):
            takes = sum(count * estimate.whole(size, length) for length, count in lengths.items()) / lengths.total()
            found = max(found, min(size / takes, rate * min(1.0, max(0.0, allowed / takes - 1.0))))
        return found / rate

    def why_padded(self, mix: str) -> str:
        """Return what the costs say of padding."""
        return why_padded(ModelCosts(self.costs.stages), self.lengths(mix), self.max_batch)

    def _estimate(self) -> Estimate:
        served = self.served()
        return Estimate(served.spec, served.costs)


class Padded(Simulator):
    """Counts the tokens of rows, and those that ran."""

    tokens = computed = 0

    def _run(self, action: Run, now: float) -> None:
        lengths = [self._arrivals[i].inputs for i in action.requests]
        self.tokens += sum(lengths)
        self.computed += sum(lengths) if self._specs[action.model].packs else len(lengths) * max(lengths)
        super()._run(action, now)


def run(task: Task, scene: Scene) -> Result:
    """Run one task."""
    pairs = tuple([(length, 1) for length in scene.lengths(task.mix)])
    rate, allowed, random = task.load * scene.capacity(task.mix), scene.allowed(task.mix), Random(task.seed)
    calls = poisson(scene.served(), rate=rate, requests=task.requests, allowed=allowed, random=random, lengths=pairs)
    return Result(task, played(list(calls), task.side, scene, allowed=allowed, warm_up=WARM_UP))


def played(calls: Sequence[Arrival], side: Side, scene: Scene, *, allowed: float, warm_up: float = 0.0) -> Figures:
    """Play calls to one worker under the policy of a side; the share `warm_up` of them, the first, does not count."""
    served, own = scene.served(), [call.inputs for call in calls]
    if FIXED in side.kinds:
        calls = [replace(call, inputs=scene.costs.most) for call in calls]
    if OURS not in side.kinds:
        served = _in_one_stage(served)
        calls = [replace(call, leaves_at=0) for call in calls]
    simulator = Padded(SchedulerConfig((served,), 1, side.policy))
    records = simulator.run(calls)
    simulator.scheduler.check()
    counted = [record for record in records if record.request >= warm_up * len(records)]
    answered = [record for record in counted if record.outcome is Outcome.ANSWERED]
    latencies = np.array([record.latency for record in answered] or [np.inf])
    in_time = sum(record.latency <= allowed for record in answered)
    computed = simulator.computed if FIXED not in side.kinds else scene.costs.most * len(answered)
    tokens = simulator.tokens if FIXED not in side.kinds else sum(own[one.request] for one in answered)
    return Figures(
        in_time / len(counted), float(latencies.mean()), computed / max(1, tokens), by_quarter(counted, own, allowed)
    )


def _in_one_stage(served: ServedModel) -> ServedModel:
    """Return the model as one stage, for a policy that never acts between stages: for that it is the same."""
    grids = served.costs.stages
    lengths = grids[0].lengths
    curves = []
    for length in lengths:
        batches = grids[0].curves[lengths.index(length)].batches
        curves.append(Curve(batches, tuple(served.costs.remaining(0, batch, length) for batch in batches)))
    costs = ModelCosts((Grid(lengths, tuple(curves)),))
    return replace(served, spec=replace(served.spec, stages=1), costs=costs)
