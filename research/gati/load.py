"""Depth by the load: answers that are right and in time, over loads, beside fixed thresholds and SuperServe's rule.

For each seed the caches are calibrated on a random half of the rows, and the other half is the traffic: which of these
rows leaves where at which level, and whether rightly, is known from the real lookups. When they run is simulated with
the scheduler of the server and costs that were measured on this machine. All sides get the same arrivals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.bench.rounds import Progress
from latebind.bench.statistics import median_interval
from latebind.bench.subject import Subject, copied
from latebind.cli.console import Rows as TableRows
from latebind.domain.actions import Outcome, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.learned.build import Builder
from latebind.learned.promise import Promise
from latebind.learned.stored import StoredCaches, levels_down_to, read_caches, with_caches
from latebind.repository.directory import ModelDirectory
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival

OURS, FIXED, AT_FLOOR, SLACK_FIT = "levels", "fixed", "fixed at the floor", "slack-fit"
POLICIES = {OURS: "late", FIXED: "late", AT_FLOOR: "late", SLACK_FIT: "research.gati.superserve:SlackFit"}
STEADY, BURSTS = "steady", "bursts"
BURST_SECONDS, BURST_TIMES = 5.0, 3.0  # bursts of so many seconds at so many times the mean rate
BURST_SHARE = 0.2  # of the time
CLIENTS = 16  # that saturate, to measure the capacity
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Levels:
    """Where each row of the traffic leaves at each level, `(levels, rows)`, and whether its answer is wrong there."""

    left_at: NDArray[np.int64]
    wrong: Bools
    fidelities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A model as calibrated on one half of the rows, and what the rows of the other half do."""

    served: ServedModel
    fixed: ServedModel
    at_floor: ServedModel
    levels: Levels
    target: int


class Noted(Simulator):
    """A simulation that notes at which level each request runs."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.levels: dict[int, int] = {}

    def _run(self, action: Run, now: float) -> None:
        if action.stage == 0:
            self.levels.update(zip(action.requests, action.levels, strict=False))
        super()._run(action, now)


@dataclass(frozen=True, slots=True)
class Played:
    """One run of one side: requests, those right and in time, mean seconds, and by level those answered and wrong."""

    requests: int
    good: int
    mean: float
    answered: Mapping[int, int]
    wrong: Mapping[int, int]


class Trial:
    """The rows of a subject and its trained lookups, to be calibrated on any half of them."""

    def __init__(self, subject: Subject, promise: Promise, *, floor: float, below: float, backend: str | None) -> None:
        directory = ModelDirectory.open(subject.path)
        if (caches := read_caches(directory)) is None or not caches.every:
            raise ConfigError(f"{subject.model} has no learned caches: build them with data first")
        self.subject, self.floor, self.below = subject, floor, below
        self.builder = Builder.of(directory, replace(promise, aside=False), threads=1, backend=backend)
        self.trained, self.rows = self.builder.stored_caches(directory, subject.samples())
        self.seen = self.builder.observe(self.trained, self.rows).seen
        self.names = [one.name for one in self.trained]

    def case(self, seed: int) -> Case:
        """Calibrate on one half of the rows, drawn by the seed; the other half is the traffic."""
        half, traffic = np.array_split(np.random.default_rng(seed).permutation(len(self.rows)), 2)
        with TemporaryDirectory(prefix="latebind-") as folder:
            there = copied(self.subject.repository, self.subject.model, Path(folder))
            report = self.builder.calibrate(there, self.trained, self.rows.take(torch.from_numpy(half)))
        program, caches = self.builder.program, report.caches
        if not caches.lookups:
            raise ConfigError(f"no lookup pays on half of the rows: {report.warning}")
        spec, costs = with_caches(program.spec, program.costs, caches, floor=self.floor)
        levels = self._levels(caches, traffic)
        served = ServedModel(spec, costs, below=self.below)
        fixed = ServedModel(*with_caches(program.spec, program.costs, caches))
        lowest = replace(fixed, costs=replace(fixed.costs, hit_rates=costs.levels[-1].hit_rates))
        return Case(served, fixed, lowest, levels, costs.target)

    def _levels(self, caches: StoredCaches, traffic: NDArray[np.int64]) -> Levels:
        """Return what the rows of the traffic do at each level; the last entry is at the thresholds of the target."""
        chosen = levels_down_to(caches, self.floor)
        own = {one.name: one.threshold for one in caches.lookups}
        found = [self._left(thresholds, traffic) for thresholds in (*(one.thresholds for one in chosen), own)]
        fidelities = *(one.target for one in chosen), caches.target
        return Levels(np.array([left for left, _ in found]), np.array([wrong for _, wrong in found]), fidelities)

    def _left(self, thresholds: Mapping[str, float], traffic: NDArray[np.int64]) -> tuple[NDArray[np.int64], Bools]:
        seen, last = self.seen, self.builder.program.spec.stages - 1
        left, wrong = np.full(len(traffic), last), np.zeros(len(traffic), np.bool_)
        here = np.ones(len(traffic), np.bool_)
        for place, one in enumerate(self.trained):
            hit = here & (seen.scores[place, traffic] >= thresholds.get(one.name, np.inf))
            left[hit], wrong[hit] = one.stage, ~seen.right[place, traffic][hit]
            here &= ~hit
        return left, wrong


def play(case: Case, side: str, arrivals: Sequence[tuple[float, int]], allowed: float) -> Played:
    """Play arrivals, each a time and a row of the traffic, to one side."""
    model = {FIXED: case.fixed, AT_FLOOR: case.at_floor}.get(side, case.served)
    fixed_at = {FIXED: -1, AT_FLOOR: len(case.levels.left_at) - 2}.get(side)
    left, name = case.levels.left_at, model.spec.name
    calls = [
        Arrival(time, name, allowed, int(left[-1 if fixed_at is None else fixed_at, row]), levels=tuple(left[:-1, row]))
        for time, row in arrivals
    ]
    simulator = Noted(SchedulerConfig((model,), 1, PolicyConfig(POLICIES[side])))
    records = simulator.run(calls)
    answered, wrong, good, seconds = dict[int, int](), dict[int, int](), 0, 0.0
    for record in records:
        if record.outcome is not Outcome.ANSWERED:
            continue
        level = simulator.levels[record.request] if fixed_at is None else fixed_at
        level = case.target if level == -1 else level
        is_wrong = bool(case.levels.wrong[level if fixed_at != -1 else -1, arrivals[record.request][1]])
        answered[level], wrong[level] = answered.get(level, 0) + 1, wrong.get(level, 0) + is_wrong
        good += not is_wrong and record.latency <= allowed
        seconds += record.latency
    return Played(len(records), good, seconds / max(1, sum(answered.values())), answered, wrong)


def capacity(case: Case, random: Random, requests: int) -> float:
    """Return how many requests a second fixed thresholds answer to clients that each wait for their answer."""
    rows = case.levels.left_at.shape[1]
    name, left = case.fixed.spec.name, case.levels.left_at[-1]
    wanted = [Arrival(0.0, name, 1e6, int(left[random.randrange(rows)])) for _ in range(requests)]
    records = Simulator(SchedulerConfig((case.fixed,), 1, PolicyConfig("late"))).run_closed(wanted, clients=CLIENTS)
    return len(records) / max(record.ended for record in records)


def drawn(pattern: str, rate: float, requests: int, rows: int, random: Random) -> list[tuple[float, int]]:
    """Draw Poisson arrivals with a mean rate, each with a row; in bursts the rate is three times the mean."""
    found, time = list[tuple[float, int]](), 0.0
    calm = (1.0 - BURST_TIMES * BURST_SHARE) / (1.0 - BURST_SHARE)
    period = BURST_SECONDS / BURST_SHARE
    while len(found) < requests:
        times = 1.0 if pattern == STEADY else BURST_TIMES if time % period < BURST_SECONDS else calm
        time += random.expovariate(rate * times)
        found.append((time, random.randrange(rows)))
    return found


def compare(
    trial: Trial,
    *,
    loads: Sequence[float],
    patterns: Sequence[str],
    deadline: float,
    requests: int,
    seeds: Sequence[int],
    tell: Progress,
) -> tuple[TableRows, TableRows]:
    """Return answers right and in time by load, and by class of promise how often they kept it."""
    sides = (FIXED, SLACK_FIT, AT_FLOOR, OURS)
    shares: dict[tuple[str, float, str], list[float]] = {}
    means: dict[tuple[str, float], list[float]] = {}
    classes: dict[float, list[tuple[int, int]]] = {}
    alone = sum(trial.builder.stages)
    for number, seed in enumerate(seeds):
        tell(f"seed {seed}", number / len(seeds))
        case = trial.case(seed)
        rows = case.levels.left_at.shape[1]
        most = capacity(case, Random(f"{seed} capacity"), 2_000)
        answered, wrong = dict[int, int](), dict[int, int]()
        for pattern in patterns:
            for load in loads:
                arrivals = drawn(pattern, load * most, requests, rows, Random(f"{seed} {pattern} {load}"))
                for side in sides:
                    played = play(case, side, arrivals, deadline * alone)
                    shares.setdefault((pattern, load, side), []).append(played.good / played.requests)
                    if side == OURS:
                        total = sum(played.answered.values())
                        kept = total - sum(played.wrong.values())
                        means.setdefault((pattern, load), []).append(kept / max(1, total))
                        for level, count in played.answered.items():
                            answered[level] = answered.get(level, 0) + count
                            wrong[level] = wrong.get(level, 0) + played.wrong[level]
        for level, count in answered.items():
            classes.setdefault(case.levels.fidelities[level], []).append((count, wrong[level]))
    table = TableRows()
    for (pattern, load), fidelity in means.items():
        own = {side: np.array(shares[pattern, load, side]) for side in sides}
        told: dict[str, object] = {"arrivals": pattern, "load": f"{load:.0%}"}
        told |= {side: f"{own[side].mean():.3f}" for side in sides}
        for side in sides[:-1]:
            told[f"over {side}"] = str(median_interval((own[OURS] / own[side]).tolist(), seed=0))
        table.append(told | {"mean fidelity": f"{np.mean(fidelity):.4f}"})
    promises = TableRows(
        {
            "promised": f"{fidelity:g}",
            "answers": sum(count for count, _ in runs),
            "realised": f"{1 - sum(bad for _, bad in runs) / sum(count for count, _ in runs):.4f}",
            "runs under it": f"{sum(bad > (1 - fidelity) * count + 1e-9 for count, bad in runs)} of {len(runs)}",
        }
        for fidelity, runs in sorted(classes.items(), reverse=True)
    )
    return table, promises
