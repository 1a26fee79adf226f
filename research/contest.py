"""Sides that take turns on one model, by load and deadline: one description, played to live engines or simulated.

The speed of a machine that others share changes within seconds, by a third and more. So before each block of a live
session, its serial engine answers some requests one after another. The time that they take is the pace: arrivals and
deadlines are scaled to it, and results are given at the mean pace of the whole run. The best baseline of a kind in a
round is the one that was best in all other rounds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typer import Option

from latebind.bench import subject as bench
from latebind.bench.client import Array, past
from latebind.bench.report import Plot
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.bench.statistics import Interval, mean_interval, ratio_of_means
from latebind.cli.bench.options import Subject, Tuning
from latebind.cli.console import Row, Rows
from latebind.domain.actions import Outcome
from latebind.domain.config import SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Grid, ModelCosts
from latebind.heap import settle
from latebind.learned.metadata import read_caches, with_caches
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival, leaving_stage
from research import live, plots
from research.evaluation import Conditions, Floats, Found, Load, SideName
from research.live import WAITING, Asked, started
from research.sides import SERIAL, Figures, Side, alone, least, most

KNOWN = 1_000  # rows whose right answers are asked for first, one after another; more are not sent
WARM_UP = 40  # requests
CAPACITY_ROUNDS = 4
UNLIMITED = 1 << 30  # requests that may wait
FOR_EVER = 1e9  # seconds
STEEP_GAIN, STEEP_AT = 13.0, 32  # so many times as long as together, one by one, so many take that wait for weights

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Played:
    """The outcomes of N requests in the order of sending, live or simulated, over `span` seconds.

    `seconds` are those between the engine's hearing of a request and its answer, inf where it was refused or dropped;
    answers after `allowed` seconds are late. `early` tells who left before the last stage, `alike` whose answer is the
    right one, `promised` the fidelity of each answer, and `rows` the number of each row; simulated, nobody knows. They
    were sent `behind` seconds after they were due, in the mean.
    """

    seconds: Figures
    early: Flags
    alike: Flags | None = None
    span: float = 1.0
    allowed: float = inf
    promised: Figures = field(default_factory=lambda: np.empty(0))
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    behind: float = 0.0

    @property
    def in_time(self) -> Flags:
        """Whether each request was answered by its deadline."""
        return self.seconds <= self.allowed

    @property
    def fidelity(self) -> float:
        """The share of answers that are right; NaN if there are none or if that is not known."""
        right = None if self.alike is None else self.alike[np.isfinite(self.seconds)]
        return nan if right is None or not len(right) else float(right.mean())


def joined(parts: Sequence[Played]) -> Played:
    """Return several outcomes joined, one after another."""
    alike = [part.alike for part in parts if part.alike is not None]
    return Played(
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.early for part in parts]),
        np.concatenate(alike) if len(alike) == len(parts) else None,
        sum(part.span for part in parts),
    )


class Contest(Protocol):
    """Sides that are ready to answer requests for one model: `Session` live, `Simulated` on a virtual clock."""

    @property
    def alone(self) -> float:
        """Seconds that the base model takes for one request after another."""

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, on_progress: Progress
    ) -> dict[str, list[float]]:
        """Return for each side and round the time per request with always enough to do, in units of `alone`."""

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float
    ) -> dict[str, Played]:
        """Return the outcomes of requests at these times, each due `allowed` seconds later, on each side."""


Measure = Callable[[Contest, Random, Progress], Coroutine[Any, Any, None]]


# Live -----------------------------------------------------------------------------------------------------------------


class Session:
    """A contest of live engines under way. `served` is the model without learned caches, as `build` measured it."""

    def __init__(
        self, served: ServedModel, sides: Mapping[str, Side], rows: live.Rows, asked: Mapping[str, Asked], paced: float
    ) -> None:
        self.served, self.sides, self.rows, self.asked = served, sides, rows, asked
        self._name = served.spec.name
        self._paced = paced
        self._requests = 0  # by which the pace is taken
        self._typical = 1.0  # by profile, the mean of all rows over the mean of those
        self._paces: list[float] = []

    @property
    def alone(self) -> float:
        """Seconds that one request after another takes, at the mean pace so far."""
        return float(np.mean(self._paces))

    async def pace(self) -> float:
        """Return the seconds per request now, one after another, always by the same rows."""
        serial, spec = self.asked[SERIAL], self.served.spec
        if not self._requests:
            took = await serial.saturate(self._name, WARM_UP, 1)
            self._requests = max(WARM_UP // 4, round(self._paced / took))
            paced = self.rows.lengths(spec, range(1, self._requests + 1))  # between the first and the last asked for
            self._typical = alone(self.served, self.rows.lengths(spec)) / alone(self.served, paced)
        self.rows.next, following = 0, self.rows.next
        self._paces.append(self._typical * await serial.saturate(self._name, self._requests, 1))
        self.rows.next = following
        return self._paces[-1]

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, on_progress: Progress
    ) -> dict[str, list[float]]:
        """Return the times over as many requests as are answered serially in so many seconds, in whole batches."""
        requests = max(WARM_UP, round(seconds / self.alone))
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            on_progress("saturation", number / rounds)
            for name in random.sample(list(names), len(names)):
                here = await self.pace()
                waiting = WAITING * self.sides[name].largest_batch(self.served.spec)
                count = -(-requests // waiting) * waiting
                found[name].append(await self.asked[name].saturate(self._name, count, waiting) / here)
        return found

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float
    ) -> dict[str, Played]:
        """Return the outcomes, with the same rows for all.

        Times, what is allowed and seconds are those at the pace at which a request takes `alone` seconds serially.
        """
        first, found = self.rows.next, {}
        for name in random.sample(list(names), len(names)):
            slower, self.rows.next = await self.pace() / alone, first
            sent = [(slower * at, self._name) for at in times]
            calls = await self.asked[name].play(sent, allowed=slower * allowed)
            found[name] = Played(
                np.array([call.inside / slower for call in calls]),
                np.array([call.early for call in calls]),
                np.array([call.right for call in calls]),
                times[-1],
                allowed,
                np.array([call.promised for call in calls]),
                np.array([call.row for call in calls]),
                float(np.mean([call.sent - call.due for call in calls])),
            )
        return {name: found[name] for name in names}


@asynccontextmanager
async def session(
    path: Path,
    sides: Mapping[str, Side],
    inputs: Mapping[str, Array | Sequence[Array]],
    setting: bench.Setting,
    cores: tuple[int, ...] = (),
) -> AsyncIterator[Session]:
    """Start an engine for each side, on `cores` or that of the setting, and warm them up.

    `serial` must be among them: it gives the pace, and the right answers to all rows.
    """
    served = ServedModel(*read_spec_and_costs(ModelDirectory.open(path)))
    rows, name = live.Rows(inputs), served.spec.name
    async with AsyncExitStack() as stack:
        asked = {
            side: Asked(await started(stack, (path,), one, setting, cores=cores), rows) for side, one in sides.items()
        }
        await asked[SERIAL].one_by_one(name, range(rows.count))
        for side, one in sides.items():
            batches = one.largest_batch(served.spec) if served.spec.kinds else 1
            await asked[side].saturate(name, WARM_UP * batches, WARM_UP)
        here = Session(served, sides, rows, asked, setting.paced)
        await here.pace()
        settle()  # a collection stops the client for 0.2 s where a trained model is in memory: ten deadlines
        yield here


def on_engines(
    subject: bench.Subject,
    sides: Mapping[str, Side],
    part: Measure,
    setting: bench.Setting,
    *,
    seed: int = 0,
    on_progress: Progress,
    cores: tuple[int, ...] = (),
) -> None:
    """Run a part on live engines: one for each side, on the same cores, asked in turn for the same rows."""

    async def held() -> None:
        on_progress(f"starting {len(sides)} engines", 0.0)
        async with session(subject.path, sides, subject.rows(0, KNOWN), setting, cores) as here:
            await part(here, Random(setting.seed + seed), on_progress)

    with pinned(setting.frontend_cores):
        asyncio.run(held())


# Simulated ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """A model as a scheduler knows it, without and with its learned caches."""

    whole: ServedModel
    exits: ServedModel

    @classmethod
    def read(cls, repository: Path, model: str, *, steep: bool = False) -> "Costs":
        """Read what `build` measured; where it is `steep`, a batch gains as where weights come from memory."""
        (path,) = find_models(repository, [model])
        directory = ModelDirectory.open(path)
        spec, costs = read_spec_and_costs(directory)
        early, cached = with_caches(spec, costs, read_caches(directory))
        if steep:
            costs, cached = steeper(costs), steeper(cached)
        return cls(ServedModel(spec, costs, UNLIMITED), ServedModel(early, cached, UNLIMITED))


def steeper(costs: ModelCosts) -> ModelCosts:
    """Return costs by which one row takes what it takes, and 32 rows 2.5 times as long."""
    fixed = (STEEP_AT - STEEP_AT / STEEP_GAIN) / (STEEP_AT - 1)

    def like(curve: Curve) -> Curve:
        return Curve((1, 64), (curve.at(1), curve.at(1) * (fixed + (1.0 - fixed) * 64)))

    lookups = {stage: like(curve) for stage, curve in costs.lookups.items()}
    stages = tuple(Grid(one.lengths, tuple(map(like, one.curves))) for one in costs.stages)
    return replace(costs, stages=stages, lookups=lookups)


class Simulated:
    """A contest on a virtual clock. As many workers run at a time as there are `cores`."""

    def __init__(self, costs: Costs, sides: Mapping[str, Side], cores: int = 1) -> None:
        self._costs = costs
        self._sides = sides
        self._cores = cores

    @property
    def alone(self) -> float:
        """Seconds that the base model takes for one request after another, with an answer of average length."""
        whole = self._costs.whole
        return alone(whole, [(steps, steps) for steps in whole.costs.output_steps])

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, on_progress: Progress
    ) -> dict[str, list[float]]:
        """Return the times where all requests come at once."""
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            on_progress("saturation", number / rounds)
            times = [0.0] * max(200, round(seconds / self.alone))
            played = await self.block(names, times, random, alone=self.alone, allowed=FOR_EVER)
            for name in names:
                found[name].append(float(played[name].seconds.max()) / len(times) / self.alone)
        return found

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float
    ) -> dict[str, Played]:
        """Return the outcomes; on all sides with exits a request leaves at the same place."""
        del alone  # nothing changes its pace here
        exits = self._costs.exits
        early = [leaving_stage(exits, exits.costs.hit_rates, random.random()) for _ in times]
        steps = random.choices(self._costs.whole.costs.output_steps, k=len(times))
        return {name: self._played(self._sides[name], times, early, steps, allowed) for name in names}

    def _played(
        self, side: Side, times: Sequence[float], early: Sequence[int], steps: Sequence[int], allowed: float
    ) -> Played:
        served = self._costs.exits if side.exits else self._costs.whole
        last, name = served.spec.stages - 1, served.spec.name
        workers = len(side.granularities) or side.workers
        simulator = Simulator(SchedulerConfig((served,), workers, side.policy, side.granularities, at_once=self._cores))
        leaves = early if side.exits else [last] * len(times)
        records = simulator.run(
            Arrival(at, name, allowed, stage, outputs, outputs)
            for at, stage, outputs in zip(times, leaves, steps, strict=True)
        )
        simulator.scheduler.check()
        records.sort(key=lambda record: record.request)
        seconds = [record.latency if record.outcome is Outcome.ANSWERED else inf for record in records]
        left = [record.outcome is Outcome.ANSWERED and record.stage < last for record in records]
        return Played(np.array(seconds), np.array(left), None, times[-1], allowed)


# What is measured -----------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A load, as a multiple of the unit of the plan, and a deadline, of what a request takes alone."""

    load: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Plan:
    """In each of so many `rounds`, at each load and deadline a block of `seconds` for each side.

    A load of 1 is what the best side of the kind `unit` answers with always enough to do, or the serial one.
    """

    loads: tuple[float, ...]
    deadlines: tuple[float, ...]
    rounds: int = 6
    seconds: float = 1.5
    unit: str = ""

    @property
    def cells(self) -> list[Cell]:
        """All loads at all deadlines."""
        return [Cell(load, deadline) for load in self.loads for deadline in self.deadlines]


@dataclass(slots=True)
class Report:
    """What came of sides, one round after the other, and of several models where there are folds.

    `ours` are judged, against the best of each of `kinds`. `saturated` are seconds a request in units of `alone`.
    """

    sides: Mapping[str, Side]
    ours: Sequence[str]
    kinds: Sequence[str]
    seed: int = 0
    alone: list[float] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    saturated: dict[str, list[float]] = field(default_factory=dict)
    blocks: dict[Cell, dict[str, list[Played]]] = field(default_factory=dict)

    async def measure(self, plan: Plan, contest: Contest, random: Random, on_progress: Progress) -> None:
        """Add what all rounds show."""
        names = list(self.sides)
        found = await contest.saturated(
            names,
            plan.seconds,
            min(plan.rounds, CAPACITY_ROUNDS),
            random,
            lambda text, share: on_progress(text, 0.2 * share),
        )
        for name, times in found.items():
            self.saturated.setdefault(name, []).extend(times)
        alone = contest.alone
        units = self._of_kind(plan.unit) if plan.unit else []
        capacity = 1.0 / (alone * min([float(np.mean(found[name])) for name in units], default=1.0))
        self.alone.append(alone)
        self.capacity.append(capacity)
        for number in range(plan.rounds):
            for at, cell in enumerate(plan.cells):
                share = (number + at / len(plan.cells)) / plan.rounds
                on_progress(f"{cell.load:.0%} of capacity, {cell.deadline:g} times alone", 0.2 + 0.8 * share)
                times = past(plan.seconds, cell.load * capacity, random)
                played = await contest.block(names, times, random, alone=alone, allowed=cell.deadline * alone)
                for name, one in played.items():
                    self.blocks.setdefault(cell, {other: [] for other in names})[name].append(one)

    def found(self) -> Found:
        """Return all tables, and answers in time over load as a plot for each deadline."""
        rows = [row for cell in self.blocks for row in self.rows(cell)]
        bases = zip(self.alone, self.capacity, strict=True)
        base = ", ".join(f"{1e3 * one:.2f} ms alone, {rate:.1f} a second" for one, rate in bases)
        tables = {f"with always enough to do; the base: {base}": self.saturated_rows()}
        tables |= {f"{cell.load:.0%}, due after {cell.deadline:g} x": self.rows(cell) for cell in self.blocks}
        if self.kinds:
            tables["times the mean, and the answers in time, of the best of each kind"] = self.kind_rows()

        def draw(due: str, some: Rows) -> Plot:
            return plots.curves(f"Answers in time, due after {due}", some, by="side", x="load", y="in time a second")

        return Found(tables, lambda: plots.each(rows, "due", draw), {"alone": self.alone, "capacity": self.capacity})

    def saturated_rows(self, base: str = "") -> Rows:
        """Return the throughput of each side, over that of `base`, or of ours over it."""
        rows: Rows = []
        for name, times in self.saturated.items():
            row: Row = {"side": name, "requests a second": f"{1.0 / (np.mean(self.alone) * np.mean(times)):.1f}"}
            if base:
                row[f"over {base}"] = str(ratio_of_means(self.saturated[base], times, seed=self.seed))
            for ours in () if base else self.ours:
                own = "" if name == ours else str(ratio_of_means(times, self.saturated[ours], seed=self.seed))
                row[f"{ours} over it"] = own
            rows.append(row)
        return rows

    def rows(self, cell: Cell) -> Rows:
        """Return one cell as a table."""
        return [self._row(cell, name, blocks) for name, blocks in self.blocks[cell].items()]

    def _row(self, cell: Cell, name: str, blocks: Sequence[Played]) -> Row:
        every, goodputs = joined(blocks), self.goodputs(cell, name)
        answered = np.isfinite(every.seconds)
        seconds = every.seconds[answered] * 1e3
        row: Row = {"load": f"{cell.load:.0%}", "due": f"{cell.deadline:g} x", "side": name}
        row["mean ms"] = f"{seconds.mean():.2f}" if len(seconds) else ""
        row["p99 ms"] = f"{np.percentile(seconds, 99):.2f}" if len(seconds) else ""
        row["in time"] = f"{np.concatenate([block.in_time for block in blocks]).mean():.1%}"
        row["in time a second"] = str(mean_interval(goodputs, seed=self.seed))
        row["shed"] = f"{1.0 - answered.mean():.1%}"
        row["left early"] = f"{every.early[answered].mean():.1%}" if answered.any() else ""
        row["fidelity"] = "" if isnan(every.fidelity) else f"{every.fidelity:.4f}"
        own = self.goodputs(cell, self.ours[0])
        compared = name != self.ours[0] and goodputs.any()
        row[f"in time, {self.ours[0]} over it"] = str(ratio_of_means(own, goodputs, seed=self.seed)) if compared else ""
        return row

    def kind_rows(self) -> Rows:
        """Return for each cell the judged sides against the best of each kind: of means, and of answers in time."""
        rows: Rows = []
        for cell in self.blocks:
            for name in self.ours:
                row: Row = {"load": f"{cell.load:.0%}", "due": f"{cell.deadline:g} x", "side": name}
                for kind in self.kinds:
                    waited, over = self.against(cell, name, kind)
                    row[f"mean of {kind} over it"] = str(waited or "")
                    row[f"in time over {kind}"] = str(over or "")
                rows.append(row)
        return rows

    def against(self, cell: Cell, name: str, kind: str) -> tuple[Interval | None, Interval | None]:
        """Return the mean of the best of a kind over that of a side, and the side's answers in time over the best's.

        Nothing where no side of that kind takes part, or none answers in time.
        """
        some = self._of_kind(kind)
        if not some:
            return None, None
        waited = least({one: self.means(cell, one) for one in some})
        best = most({one: self.goodputs(cell, one) for one in some})
        return (
            ratio_of_means(waited, self.means(cell, name), seed=self.seed),
            ratio_of_means(self.goodputs(cell, name), best, seed=self.seed) if best.any() else None,
        )

    def means(self, cell: Cell, name: str) -> Figures:
        """Return the mean seconds of the answers of each round, inf where nobody was answered."""
        rounds = [one.seconds[np.isfinite(one.seconds)] for one in self.blocks[cell][name]]
        return np.array([seconds.mean() if len(seconds) else inf for seconds in rounds])

    def goodputs(self, cell: Cell, name: str) -> Figures:
        """Return the answers in time a second of each round."""
        return np.array([one.in_time.sum() / one.span for one in self.blocks[cell][name]])

    def _of_kind(self, kind: str) -> list[str]:
        return [name for name, side in self.sides.items() if kind in side.kinds]


# The options that commands share --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How sides are compared, and how often."""

    load: Load = None
    deadline: Annotated[Floats, Option(help="Times what one request takes alone; may be repeated.")] = None
    side: SideName = None
    rounds: Annotated[int, Option(min=1, help="How often each side has its turn.")] = 6
    seconds: Annotated[float, Option(min=0.01, help="How many seconds a block of requests lasts.")] = 1.5
    simulated: Annotated[bool, Option("--simulated", help="Simulate on a virtual clock, with measured costs.")] = False
    steep: Annotated[bool, Option("--steep", help="For --simulated: let batches gain as if weights were slow.")] = False

    def plan(self, loads: tuple[float, ...], deadlines: tuple[float, ...], unit: str = "") -> Plan:
        """Return what is to be measured, with these loads and deadlines unless others are asked for."""
        return Plan(tuple(self.load or loads), tuple(self.deadline or deadlines), self.rounds, self.seconds, unit)

    def costs(self, subject: Subject) -> Costs:
        """Return the costs of the model."""
        return Costs.read(subject.repository, subject.model, steep=self.simulated and self.steep)

    def hold(
        self,
        subject: Subject,
        sides: Mapping[str, Side],
        part: Measure,
        conditions: Conditions,
        on_progress: Progress,
        *,
        tuning: Tuning | None = None,
        cores: tuple[int, ...] = (),
    ) -> None:
        """Run a part on simulated sides, or on live engines, once in each fold."""
        setting = conditions.setting()
        if self.simulated:
            simulated = Simulated(self.costs(subject), sides, max(1, len(cores)))
            asyncio.run(part(simulated, Random(setting.seed), on_progress))
            return
        folds = None if tuning is None else tuning.wanted()
        for number, here in enumerate(bench.answerable(subject.load(), folds, setting, on_progress)):
            on_engines(here, sides, part, setting, seed=number, on_progress=on_progress, cores=cores)
