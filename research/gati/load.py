"""Depth by the load: answers that are right and in time, over loads, beside fixed thresholds and SuperServe's rule.

For each seed the caches are calibrated on a random half of the rows, and the other half is the traffic: which of these
rows leaves where at which level, and whether rightly, is known from the real lookups. When they run is simulated with
the scheduler of the server and costs that were measured on this machine (`load_live` asks engines). All sides get the
same arrivals.

Whether a class of answers has kept its promise is a question with chance in it. Somebody who promised exactly the truth
would be under it in nearly half of all runs. So beside how often a class was under, there is how often it would be by
chance if its promise held exactly, and how often it was so far under as happens in one of twenty runs. Rows that come
again show nothing new: the chance is that of the distinct rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.bench.subject import Subject, copied
from latebind.cli.console import Rows as TableRows
from latebind.domain.actions import Outcome, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Level
from latebind.domain.errors import ConfigError
from latebind.learned.build import Builder
from latebind.learned.metadata import StoredCaches, levels_down_to, overload, read_caches, with_caches
from latebind.learned.promise import Promise
from latebind.repository.directory import ModelDirectory
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from research.live import WAITING
from research.sides import Figures

OURS, FIXED, AT_FLOOR = "levels", "fixed", "fixed at the floor"
SHED_FIRST = "fixed, shed first"  # drops nobody who has started, as ours: fixed thresholds that keep their promise too
SLACK_FIT, TO_THE_END, COMPACTED = "slack-fit", "slack-fit, to the end", "slack-fit, batches of late"
NONE_DROPPED = "levels, none dropped"  # ours without the level for overload
POLICIES = {
    FIXED: "late",
    SLACK_FIT: "research.gati.superserve:SlackFit",
    TO_THE_END: "research.gati.superserve:ToTheEnd",
    COMPACTED: "research.gati.superserve:Compacted",
    AT_FLOOR: "late",
    SHED_FIRST: "late",
    NONE_DROPPED: "late",
    OURS: "late",
}
LOADS = (0.6, 1.0, 1.4, 2.0)
STEADY, BURSTS = "steady", "bursts"
BURST_SECONDS, BURST_TIMES = 5.0, 3.0  # bursts of so many seconds at so many times the mean rate
BURST_SHARE = 0.2  # of the time
PERIOD = BURST_SECONDS / BURST_SHARE
LIKELY = 0.05  # chance below which a class is under its promise by more than chance
QUARTERS = ("shortest", "second", "third", "longest")
Bools = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Levels:
    """Where each row of the traffic leaves at each level, `(levels, rows)`, and whether its answer is wrong there.

    The last entry is at the thresholds of the target alone.
    """

    left_at: Numbers
    wrong: Bools
    fidelities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A model as calibrated on one half of the rows, in a folder of models, and what the `traffic` does at each level.

    `lengths` are those of the rows; None where all are alike.
    """

    repository: Path
    served: ServedModel
    fixed: ServedModel
    at_floor: ServedModel
    shed_first: ServedModel
    none_dropped: ServedModel
    levels: Levels
    traffic: Numbers
    lengths: Numbers | None


@dataclass(frozen=True, slots=True)
class Played:
    """What became of N requests: the fidelity that each answer was promised, NaN without one; who was right, in time.

    `rows` are the numbers of their rows among all. `dropped` counts those that had started and were not answered;
    live, nobody knows. They were sent `behind` seconds after they were due, in the mean.
    """

    promised: Figures
    right: Bools
    in_time: Bools
    rows: Numbers
    dropped: int = 0
    behind: float = 0.0

    @property
    def answered(self) -> Bools:
        """Whether each has an answer."""
        return ~np.isnan(self.promised)

    @property
    def good(self) -> float:
        """The share of requests that have a right answer in time."""
        return float((self.right & self.in_time).mean())


@dataclass(frozen=True, slots=True)
class Cells:
    """The loads and the patterns of arrivals that are compared, and the seconds from a request to its deadline."""

    loads: tuple[float, ...]
    patterns: tuple[str, ...]
    allowed: float

    @property
    def every(self) -> list["Cell"]:
        """All loads in all patterns."""
        return [(pattern, load) for pattern in self.patterns for load in self.loads]


Cell = tuple[str, float]  # a pattern of arrivals, and a load
Half = dict[Cell, dict[str, Played]]  # by side
Blocks = dict[Cell, dict[str, list[Played]]]  # by side, in the order of seeds
COLUMNS = ("promised", "right", "in_time", "rows")


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

    @property
    def alone(self) -> float:
        """Seconds that a request takes alone, without lookups."""
        return sum(self.builder.stages)

    @contextmanager
    def case(self, seed: int) -> Iterator[Case]:
        """Calibrate on one half of the rows, drawn by the seed; the other half is the traffic."""
        half, traffic = np.array_split(np.random.default_rng(seed).permutation(len(self.rows)), 2)
        with TemporaryDirectory(prefix="latebind-") as folder:
            there = copied(self.subject.repository, self.subject.model, Path(folder))
            report = self.builder.calibrate(there, self.trained, self.rows.take(torch.from_numpy(half)))
            program, caches = self.builder.program, report.caches
            if not caches.lookups:
                raise ConfigError(f"no lookup pays on half of the rows: {report.warning}")
            served = ServedModel(*with_caches(program.spec, program.costs, caches, floor=self.floor), below=self.below)
            fixed = ServedModel(*with_caches(program.spec, program.costs, caches))
            kept = tuple([level for level in served.costs.levels if not level.dropped])
            none_dropped = replace(served, costs=replace(served.costs, levels=kept))
            lowest = replace(fixed, costs=replace(fixed.costs, hit_rates=kept[-1].hit_rates))
            one = replace(fixed.costs, levels=(Level(caches.target, fixed.costs.hit_rates),), target=0)
            first = replace(fixed, costs=one)
            lengths = None if self.rows.lengths is None else self.rows.lengths.numpy()
            yield Case(
                Path(folder),
                served,
                fixed,
                lowest,
                first,
                none_dropped,
                self._levels(caches, traffic),
                traffic,
                lengths,
            )

    def _levels(self, caches: StoredCaches, traffic: Numbers) -> Levels:
        """Return what the rows of the traffic do at each level."""
        chosen = levels_down_to(caches, self.floor)
        own = {one.name: one.threshold for one in caches.lookups}
        if (crowded := overload([one.target for one in chosen])) is not None:
            chosen = *chosen, replace(chosen[crowded[0]], target=chosen[-1].target)
        found = [self._left(thresholds, traffic) for thresholds in (*(one.thresholds for one in chosen), own)]
        fidelities = *(one.target for one in chosen), caches.target
        return Levels(np.array([left for left, _ in found]), np.array([wrong for _, wrong in found]), fidelities)

    def _left(self, thresholds: Mapping[str, float], traffic: Numbers) -> tuple[Numbers, Bools]:
        seen, last = self.seen, self.builder.program.spec.stages - 1
        left, wrong = np.full(len(traffic), last), np.zeros(len(traffic), np.bool_)
        here = np.ones(len(traffic), np.bool_)
        for place, one in enumerate(self.trained):
            hit = here & (seen.scores[place, traffic] >= thresholds.get(one.name, np.inf))
            left[hit], wrong[hit] = one.stage, ~seen.right[place, traffic][hit]
            here &= ~hit
        return left, wrong


# Simulated ------------------------------------------------------------------------------------------------------------


class Noted(Simulator):
    """A simulation that notes at which level each request runs."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.levels: dict[int, int] = {}

    def _run(self, action: Run, now: float) -> None:
        if action.stage == 0:
            self.levels.update(zip(action.requests, action.levels or (-1,) * len(action.requests), strict=True))
        super()._run(action, now)


def play(case: Case, side: str, arrivals: Sequence[tuple[float, int]], allowed: float) -> Played:
    """Play arrivals, each a time and a row of the traffic, to one side."""
    own = {FIXED: case.fixed, AT_FLOOR: case.at_floor, SHED_FIRST: case.shed_first, NONE_DROPPED: case.none_dropped}
    model = own.get(side, case.served)
    left, name, last = case.levels.left_at, model.spec.name, len(case.levels.left_at) - 1
    fidelities = case.levels.fidelities
    alone_at = fidelities.index(fidelities[last - 1]) if side == AT_FLOOR else last  # without levels
    levels = slice(last, None) if side == SHED_FIRST else slice(0, last)
    lengths = np.ones(len(case.traffic), np.int64) if case.lengths is None else case.lengths[case.traffic]
    calls = [
        Arrival(
            time,
            name,
            allowed,
            int(left[alone_at, row]),
            int(lengths[row]),
            levels=tuple(left[levels, row].tolist()),
            sizes=int(lengths[row]),
        )
        for time, row in arrivals
    ]
    simulator = Noted(SchedulerConfig((model,), 1, PolicyConfig(POLICIES[side])))
    rows = np.array([row for _, row in arrivals])
    promised, in_time = np.full(len(rows), np.nan), np.zeros(len(rows), np.bool_)
    right, dropped = np.zeros(len(rows), np.bool_), 0
    for record in simulator.run(calls):
        number = record.request
        level = simulator.levels.get(number)
        if record.outcome is not Outcome.ANSWERED:
            dropped += level is not None
            continue
        at = alone_at if level is None or level < 0 else levels.start + level
        promised[number] = case.levels.fidelities[at]
        right[number] = not case.levels.wrong[at, rows[number]]
        in_time[number] = record.latency <= allowed
    return Played(promised, right, in_time, case.traffic[rows], dropped)


def capacity(case: Case, random: Random, requests: int) -> float:
    """Return how many requests a second fixed thresholds answer with always enough to do."""
    traffic, name, left = case.traffic, case.fixed.spec.name, case.levels.left_at[-1]
    wanted = []
    for row in [random.randrange(len(traffic)) for _ in range(requests)]:
        length = 1 if case.lengths is None else int(case.lengths[traffic[row]])
        wanted.append(Arrival(0.0, name, 1e6, int(left[row]), length, sizes=length))
    simulator = Simulator(SchedulerConfig((case.fixed,), 1, PolicyConfig("late")))
    records = simulator.run_closed(wanted, clients=WAITING * case.fixed.spec.max_batch)
    return len(records) / max(record.ended for record in records)


def drawn(pattern: str, rate: float, requests: int, rows: int, random: Random) -> list[tuple[float, int]]:
    """Draw Poisson arrivals with a mean rate, each with a row; in bursts the rate is three times the mean.

    All rows come before any comes again.
    """
    found, time, deck = list[tuple[float, int]](), 0.0, list[int]()
    calm = (1.0 - BURST_TIMES * BURST_SHARE) / (1.0 - BURST_SHARE)
    while len(found) < requests:
        times = 1.0 if pattern == STEADY else BURST_TIMES if time % PERIOD < BURST_SECONDS else calm
        time += random.expovariate(rate * times)
        if not deck:
            deck = random.sample(range(rows), rows)
        found.append((time, deck.pop()))
    return found


def simulated(trial: Trial, cells: Cells, sides: Sequence[str], seed: int, *, requests: int) -> Half:
    """Return what became of the requests of each side on one half of the rows."""
    half: Half = {}
    with trial.case(seed) as case:
        most = capacity(case, Random(f"{seed} capacity"), 2_000)
        for pattern, load in cells.every:
            random = Random(f"{seed} {pattern} {load}")
            count = requests if pattern == STEADY else max(requests, round(load * most * PERIOD))
            arrivals = drawn(pattern, load * most, count, len(case.traffic), random)
            half[pattern, load] = {side: play(case, side, arrivals, cells.allowed) for side in sides}
    return half


# Halves, one after another --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder with a file for each half, from which a later run goes on; `of` says what all of them are of."""

    folder: Path
    of: str

    def read(self, seed: int) -> Half | None:
        """Return what became of the requests on one half, None if that is not there.

        Raises `ConfigError` for a file that is of something else.
        """
        path = self._path(seed)
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["of"]) != self.of:
                raise ConfigError(f"{path} is of {stored['of']}, not of {self.of}: take another folder")
            half: Half = {}
            for place, (pattern, load, side) in enumerate(stored["names"].tolist()):
                promised, right, in_time, rows, told = (stored[f"{place} {name}"] for name in (*COLUMNS, "told"))
                played = Played(promised, right, in_time, rows, int(told[0]), float(told[1]))
                half.setdefault((pattern, float(load)), {})[side] = played
        return half

    def write(self, seed: int, half: Half) -> None:
        """Store what became of the requests on one half."""
        names, arrays = list[tuple[str, str, str]](), dict[str, Any]()
        for (pattern, load), sides in half.items():
            for side, played in sides.items():
                arrays |= {f"{len(names)} {column}": getattr(played, column) for column in COLUMNS}
                arrays[f"{len(names)} told"] = np.array([played.dropped, played.behind])
                names.append((pattern, repr(load), side))
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._path(seed).with_suffix(".part.npz")
        np.savez_compressed(unfinished, of=np.array(self.of), names=np.array(names), **arrays)
        unfinished.replace(self._path(seed))

    def _path(self, seed: int) -> Path:
        return self.folder / f"{seed}.npz"


def halves(seeds: Sequence[int], half: Callable[[int], Half], shelf: Shelf | None, tell: Progress) -> Blocks:
    """Return what became of the requests of each side on all halves, of which some may be on a shelf already."""
    blocks: Blocks = {}
    for number, seed in enumerate(seeds):
        found = None if shelf is None else shelf.read(seed)
        if found is None:
            tell(f"seed {seed}", number / len(seeds))
            found = half(seed)
            if shelf is not None:
                shelf.write(seed, found)
        for cell, sides in found.items():
            for side, played in sides.items():
                blocks.setdefault(cell, {}).setdefault(side, []).append(played)
    return blocks


# What is told ---------------------------------------------------------------------------------------------------------


def by_load(blocks: Blocks) -> TableRows:
    """Return answers right and in time by load and side, and ours over the others, paired by seeds."""
    table = TableRows()
    for (pattern, load), played in blocks.items():
        good = {side: np.array([one.good for one in some]) for side, some in played.items()}
        told: dict[str, object] = {"arrivals": pattern, "load": f"{load:.0%}"}
        told |= {side: f"{shares.mean():.3f}" for side, shares in good.items()}
        if OURS in good:
            others = [side for side in good if side != OURS]
            told |= {f"over {side}": str(ratio_of_means(good[OURS], good[side])) for side in others}
            ours = joined(played[OURS])
            answered = ours.answered
            told["mean fidelity"] = f"{ours.right[answered].mean():.4f}" if answered.any() else ""
            told["promised"] = f"{ours.promised[answered].mean():.4f}" if answered.any() else ""
            told["dropped"] = f"{ours.dropped / len(answered):.1%}" if ours.dropped else ""
        # A client that cannot keep up spends the time until the deadline itself: such a row says nothing.
        behind = max(one.behind for some in played.values() for one in some)
        told["sent late, ms"] = f"{1e3 * behind:.2f}" if behind else ""
        table.append(told)
    return table


def kept(blocks: Blocks, side: str = OURS) -> TableRows:
    """Return what each class of promise kept, over all loads of a run, and what all answers together kept."""
    runs = by_run(blocks, side)
    fidelities = sorted({float(one) for run in runs for one in np.unique(run.promised[run.answered])}, reverse=True)
    table = TableRows()
    for fidelity in fidelities:
        masks = [run.promised == fidelity for run in runs]
        table.append({"promised": f"{fidelity:g}"} | _kept(runs, masks))
    if len(fidelities) > 1:
        table.append({"promised": "in the mean"} | _kept(runs, [run.answered for run in runs]))
    return table


def kept_by_length(blocks: Blocks, lengths: Numbers, side: str = OURS) -> TableRows:
    """Return what was kept for the shortest quarter of the rows and for each longer one, by class of promise."""
    runs = by_run(blocks, side)
    edges = np.quantile(lengths, [0.25, 0.5, 0.75])
    table = TableRows()
    for quarter, name in enumerate(QUARTERS):
        here = [np.searchsorted(edges, lengths[run.rows]) == quarter for run in runs]
        told: dict[str, object] = {"length": name}
        told["answered"] = f"{np.mean([run.answered[mask].mean() for run, mask in zip(runs, here, strict=True)]):.1%}"
        masks = [run.answered & mask for run, mask in zip(runs, here, strict=True)]
        table.append(told | _kept(runs, masks))
    return table


def by_run(blocks: Blocks, side: str) -> list[Played]:
    """Return what became of the requests of a side at all loads, for each seed."""
    each = [played[side] for played in blocks.values()]
    return [joined(some) for some in zip(*each, strict=True)]


def joined(parts: Sequence[Played]) -> Played:
    """Return several outcomes as one."""
    promised, right, in_time, rows = (np.concatenate([getattr(one, name) for one in parts]) for name in COLUMNS)
    return Played(promised, right, in_time, rows, sum(one.dropped for one in parts))


def _kept(runs: Sequence[Played], masks: Sequence[Bools]) -> dict[str, object]:
    """Return how many answers there were of a class, the realized fidelity, and how often it was under the promise."""
    counts, wrongs, under, by_chance, unlikely = list[int](), list[int](), 0, 0.0, 0
    for run, mask in zip(runs, masks, strict=True):
        if not mask.any():
            continue
        may = 1.0 - run.promised[mask]
        wrong = ~run.right[mask]
        counts.append(len(wrong))
        wrongs.append(int(wrong.sum()))
        under += wrongs[-1] > may.sum() + 1e-9
        _, first = np.unique(run.rows[mask], return_index=True)  # of distinct rows, which are a sample
        bad, share = int(wrong[first].sum()), float(may[first].mean())
        by_chance += float(binom.sf(np.floor(share * len(first) + 1e-9), len(first), share))
        unlikely += float(binom.sf(bad - 1, len(first), share)) < LIKELY
    total = sum(counts)
    return {
        "answers": total,
        "fewest of a run": min(counts),
        "realized": f"{1.0 - sum(wrongs) / total:.4f}",
        "runs under it": f"{under} of {len(counts)}",
        "by chance, if exact": f"{by_chance:.1f}",
        f"with a chance under {LIKELY:g}": unlikely,
    }
