"""GATI's traffic application simulated: planners with and without learned caches and replanning (section 7.3).

Requests come one after another, as in the paper, and a planner picks every model; or under load, Poisson arrivals into
the real scheduler, in batches of one. The paper's baseline has no learned caches and does not replan.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from random import Random
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from latebind.bench.report import MARKED, Plot, blank
from latebind.bench.rounds import Progress, in_parallel
from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.cli.console import Row, Rows
from latebind.domain.actions import Outcome, StepEnded
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, Outlook
from latebind.domain.model import ModelSpec
from latebind.domain.query import NOT_RUN, PlannerConfig
from latebind.queries import make_planner
from latebind.queries.planners import PlanView
from latebind.queries.prospect import Branches
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival, Step
from research import plots
from research.evaluation import Found
from research.gati.traffic import (
    FACES,
    OBJECTS,
    SHARES,
    STEPS,
    TABLE_5,
    VEHICLES,
    WAYS,
    Traffic,
    application,
    model_name,
)
from research.sides import Figures, Side

PAPERS = ("equal", "proportional")
OWN = "expected"
EVERY = (*PAPERS, OWN)
EVERY_NODE = frozenset((OBJECTS, FACES, VEHICLES))
ROUNDING = 1e-9  # seconds
FIRST, LAST = 0.060, 0.200  # seconds: the sweep of figures 11 and 12
TIGHT, FINE = 0.100, 0.005  # seconds: deadlines up to which the paper finds most to be gained, and how far apart
LOADED = (0.080, 0.100, 0.140)  # seconds: deadlines under load
BATCHING = PolicyConfig("late", max_batch=1)  # the paper runs batches of one
AT_ONCE = 256  # requests that may wait for a model
TRIED = 1000  # requests by which is found what a query takes alone
BLOCK = 100  # requests that are resampled together: they are independent
POINT, TIMES = 1.0, 1.26  # what the paper reports at once, of accuracy and of latency
PICKS, LEFT, WAIT, SEEN = 500, 0.080, 0.050, 100  # of a decision: how many, seconds left, a wait, queries seen

Picks = NDArray[np.int8]


def baseline(name: str) -> Side:
    """Return a planner as the paper's baseline."""
    return Side(f"{name}, baseline", planner=PlannerConfig(name, replan=False))


def caches_only(name: str) -> Side:
    """Return a planner whose gate has learned caches, but which picks all models beforehand."""
    return Side(f"{name}, caches only", planner=PlannerConfig(name, replan=False), exits=True)


def replanned(name: str, price: float | None = None) -> Side:
    """Return a planner with learned caches that picks each model as late as possible.

    Our own planner finds the `price` of a second if none is given.
    """
    told = "" if price is None else f", price {price:g}"
    return Side(f"{name}{told}, replanned", planner=PlannerConfig(name, price=price), exits=True)


def sides(prices: tuple[float, ...]) -> tuple[Side, ...]:
    """Return all sides: each planner in three ways, and our own with each of these prices of a second."""
    priced = tuple(replanned(OWN, price) for price in prices)
    return (*(make(name) for make in (baseline, caches_only, replanned) for name in EVERY), *priced)


@dataclass(frozen=True, slots=True)
class Task:
    """So many requests due after `deadline` seconds. The same seed has the same requests on every side."""

    side: Side
    deadline: float
    traffic: Traffic
    requests: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What ran, a value for each request: seconds, whether it left its gate `early`, and by options who answered."""

    task: Task
    seconds: Figures
    early: NDArray[np.bool_]
    picks: Picks  # (requests, 3), NOT_RUN where a node was left out

    @property
    def late(self) -> NDArray[np.bool_]:
        """Whether each request ended after its deadline."""
        return self.seconds > self.task.deadline + ROUNDING

    def right(self, *, wrong: float = 0.0, in_time: bool = True) -> Figures:
        """Return for each request the chance that its models are all right, and in time.

        Of those that leave the gate early, the share `wrong` is so although the gate itself is right.
        """
        chances = np.where(self.early, 1.0 - wrong, 1.0)
        for step, models in enumerate(TABLE_5):
            accuracies = np.array([timed.accuracy for timed in models])
            ran = self.picks[:, step]
            chances = np.where(ran == NOT_RUN, chances, chances * accuracies[ran])
        return np.where(self.late, 0.0, chances) if in_time else chances


def run(task: Task) -> Result:
    """Run one task."""
    played = _Played(task)
    generator = np.random.default_rng(task.seed)
    kinds = np.searchsorted(np.cumsum(SHARES), generator.random(task.requests), side="right")
    draws = generator.random(task.requests)
    rows = [played.one(WAYS[kind], float(draw)) for kind, draw in zip(kinds, draws, strict=True)]
    seconds, early, picks = zip(*rows, strict=True)
    return Result(task, np.array(seconds), np.array(early), np.array(picks, np.int8))


class _Played:
    """One side: its planner, and the outcomes of conditions so far."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._planner = make_planner(planner_of(task.side))
        self._query = application(planner_of(task.side))
        self._branches = Branches()
        self._outlooks = task.traffic.outlooks(caches=task.side.exits)

    def one(self, way: tuple[bool, ...], draw: float) -> tuple[float, bool, list[int]]:
        """Return the seconds of a request on this path, whether it left early, and which models answered."""
        picks = [NOT_RUN] * len(EVERY_NODE)
        ahead = (OBJECTS,) if planner_of(self._task.side).replan else tuple(EVERY_NODE)
        planned = {node: self._pick(node, EVERY_NODE, self._task.deadline) for node in ahead}
        picks[OBJECTS] = planned[OBJECTS]
        seconds, early = self._gate(planned[OBJECTS], draw)
        self._branches.observe((FACES, VEHICLES), way)
        for node, holds in zip((FACES, VEHICLES), way, strict=True):
            if holds:
                left = self._task.deadline - seconds
                picks[node] = planned[node] if node in planned else self._pick(node, frozenset((node,)), left)
                seconds += TABLE_5[node][picks[node]].seconds
        return seconds, early, picks

    def _pick(self, node: int, opened: frozenset[int], left: float) -> int:
        allowed = self._task.deadline
        view = PlanView(self._query, opened, left, self._outlooks.__getitem__, self._branches, allowed)
        return self._planner.pick(view, node).option

    def _gate(self, option: int, draw: float) -> tuple[float, bool]:
        """Return when the gate is left, and whether that is early; the same draw is as easy for every gate."""
        outlook = self._outlooks[model_name(OBJECTS, option)]
        for end, chance in zip(outlook.ends[:-1], outlook.chances[:-1], strict=True):
            if draw < chance:
                return end, True
            draw -= chance
        return outlook.whole, False


def planner_of(side: Side) -> PlannerConfig:
    """Return the planner of a side, which every side here has."""
    assert side.planner is not None
    return side.planner


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """So many requests due after `deadline` seconds.

    They come `load` times as fast as `workers` carry with the baseline of equal split, nobody shed.
    """

    side: Side
    deadline: float
    load: float
    traffic: Traffic
    requests: int
    seed: int = 0
    workers: int = 4


@dataclass(frozen=True, slots=True)
class LoadedResult:
    """What became of each request: the chance that its answer is right, 0 if late or none, and its seconds.

    Requests that were shed have no seconds (NaN).
    """

    task: LoadedTask
    right: Figures
    seconds: Figures

    @property
    def missed(self) -> float:
        """The share of requests that were shed, or ended late."""
        return float((self.right == 0.0).mean())


def run_loaded(task: LoadedTask) -> LoadedResult:
    """Run one task."""
    query = application(planner_of(task.side))
    served = tuple(_served(task.traffic, task.side, step, option) for step, option in _every_model())
    slots = task.requests + 1  # the simulator gives each request a slot of its own
    simulator = Simulator(SchedulerConfig(served, task.workers, BATCHING, queries=(query,), slots=slots))
    records = sorted(simulator.run(_arrivals(task)), key=lambda record: record.request)
    simulator.scheduler.check()
    chances = _chances(simulator.steps)
    right = [
        chances[one.request] if one.outcome is Outcome.ANSWERED and one.latency <= task.deadline + 1e-9 else 0.0
        for one in records
    ]
    seconds = [one.latency if one.outcome is Outcome.ANSWERED else np.nan for one in records]
    return LoadedResult(task, np.array(right), np.array(seconds))


def _every_model() -> list[tuple[int, int]]:
    return [(step, option) for step, models in enumerate(TABLE_5) for option in range(len(models))]


def _served(traffic: Traffic, side: Side, step: int, option: int) -> ServedModel:
    """Return a model with a stage up to each place where it may be left."""
    outlook = traffic.outlook(step, option, caches=side.exits)
    stages = [end - begin for begin, end in zip((0.0, *outlook.ends[:-1]), outlook.ends, strict=True)]
    caches = tuple(range(len(stages) - 1))
    spec = ModelSpec(model_name(step, option), "1", (), (), len(stages), 1, lookups=caches)
    costs = ModelCosts(
        tuple(Curve((1,), (seconds,)) for seconds in stages),
        {stage: Curve((1,), (0.0,)) for stage in caches},
        {stage: outlook.chances[stage] for stage in caches},
    )
    return ServedModel(spec, costs, AT_ONCE)


def _arrivals(task: LoadedTask) -> list[Arrival]:
    """Return the requests: the same for every side, but for where its gates may be left."""
    random, time, arrivals = Random(task.seed), 0.0, []
    rate = task.load * task.workers / alone(task.deadline, task.traffic)
    gates = [task.traffic.outlook(OBJECTS, i, caches=task.side.exits) for i in range(len(TABLE_5[OBJECTS]))]
    for _ in range(task.requests):
        time += random.expovariate(rate)
        kind, draw = random.random(), random.random()
        steps = (
            Step(tuple(_leaves(gate, draw) for gate in gates)),
            Step((0,) * len(TABLE_5[FACES]), kind < SHARES[0]),
            Step((0,) * len(TABLE_5[VEHICLES]), SHARES[0] <= kind < sum(SHARES)),
        )
        arrivals.append(Arrival(time, "traffic", task.deadline, 0, steps=steps))
    return arrivals


def _leaves(gate: Outlook, draw: float) -> int:
    """Return the stage behind which a gate is left."""
    reached = list(accumulate(gate.chances))
    return next((stage for stage, share in enumerate(reached) if draw < share), len(reached) - 1)


@cache
def alone(deadline: float, traffic: Traffic) -> float:
    """Return what a query takes on average with the baseline of equal split, seconds."""
    return float(run(Task(baseline("equal"), deadline, traffic, TRIED)).seconds.mean())


def _chances(steps: list[StepEnded]) -> dict[int, float]:
    """Return how likely each query is right with the models that answered it."""
    chances: dict[int, float] = {}
    for step in steps:
        accuracy = TABLE_5[step.node][step.option].accuracy
        chances[step.request] = chances.get(step.request, 1.0) * accuracy
    return chances


ByDeadline = Mapping[float, Mapping[Side, Result]]  # by deadline and side


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is played, and on what; `prices` are of the own planner, `processes` 0: one for each core.

    `known` keeps what every side did at every deadline, which several parts need.
    """

    deadlines: tuple[float, ...]
    prices: tuple[float, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    requests: int = 20_000
    loads: tuple[float, ...] = (0.3, 0.6, 0.9)
    loaded_requests: int = 4000
    seed: int = 0
    processes: int = 0
    known: dict[float, dict[Side, Result]] = field(default_factory=dict)

    def played(self, tell: Progress) -> ByDeadline:
        """Play every side at every deadline, the same requests each time."""
        if not self.known:
            everybody = sides(self.prices)
            tasks = [
                Task(side, deadline, self.traffic, self.requests, self.seed)
                for deadline in self.deadlines
                for side in everybody
            ]
            results = iter(in_parallel(run, tasks, name=_named, progress=tell, processes=self.processes))
            for deadline in self.deadlines:
                self.known[deadline] = {side: next(results) for side in everybody}
        return self.known


def _named(task: Task | LoadedTask) -> str:
    return f"{task.deadline * 1e3:g} ms"


def sweep(step: float, last: float = LAST) -> tuple[float, ...]:
    """Return the deadlines of the sweep, so far apart."""
    return tuple(round(FIRST + step * i, 6) for i in range(int((last - FIRST) / step + 1e-6) + 1))


def gains(plan: Plan, tell: Progress) -> Found:
    """Tell what replanning gains (figure 11), and the planners against each other."""
    found = plan.played(tell)
    benefits = benefit_rows(found)
    tables: dict[str, Rows] = {
        "right in time, % by deadline in ms": side_rows(found, lambda one: f"{100 * one.right().mean():.2f}"),
        "right, in time or not, %": side_rows(found, lambda one: f"{100 * one.right(in_time=False).mean():.2f}"),
        "mean latency, ms": side_rows(found, lambda one: f"{1e3 * one.seconds.mean():.1f}"),
        "late": side_rows(found, lambda one: f"{one.late.mean():.1%}"),
        "gained over a planner's own baseline, points, and times quicker (figure 11)": benefits,
        "what caches alone gain, and what replanning adds": part_rows(found),
        "our planner against baselines": own_rows(found),
        "expected over the better of equal and proportional, all replanned": better_rows(found),
        "the worst and the best of the sweep": promise_rows(found),
    }

    def draw() -> list[Plot]:
        plane = blank("Accuracy and latency, a mark for each deadline", x="mean latency, ms", y="right in time, %")
        for side in next(iter(found.values())):
            results = [some[side] for some in found.values()]
            x, y = [1e3 * one.seconds.mean() for one in results], [100 * one.right().mean() for one in results]
            plane.add_scatter(x=x, y=y, text=[f"{one * 1e3:g} ms" for one in found], name=side.label, mode=MARKED)
        points = [{"planner": name, **row, "points": row[name]} for row in benefits for name in EVERY]
        title = "Accuracy gained by replanning (figure 11)"
        return [plots.curves(title, points, by="planner", x="deadline ms", y="points"), plane]

    return Found(tables, draw)


def tight(plan: Plan, tell: Progress) -> Found:
    """Tell accuracy and latency at once with tight deadlines."""
    found = replace(plan, deadlines=sweep(FINE, TIGHT), known={}).played(tell)
    return Found(
        {
            "our planner against baselines, tight deadlines": own_rows(found),
            "the worst and the best of tight deadlines": promise_rows(found),
        }
    )


def models(plan: Plan, tell: Progress) -> Found:
    """Tell which models answered each step (figure 12), as shares of the requests that ran it."""
    rows: Rows = []
    for deadline, of in plan.played(tell).items():
        for side in (make(name) for name in EVERY for make in (baseline, replanned)):
            row: Row = {"deadline ms": f"{deadline * 1e3:g}", "planner": side.label}
            rows.append(row | {name: models_of(of[side], step) for step, name in enumerate(STEPS)})
    return Found({"who answered (figure 12)": rows})


def wrong(plan: Plan, shares: Sequence[float], tell: Progress) -> Found:
    """Tell what is left of the gain where so many early exits are wrong."""
    title = "gained over a planner's own baseline where {:.1%} of early exits are wrong".format
    return Found({title(share): benefit_rows(plan.played(tell), share) for share in shares})


def loaded(plan: Plan, tell: Progress) -> Found:
    """Play baselines and those who replan under each load; who was shed is not right, and has no latency."""
    some = [side for side in sides(plan.prices) if not side.exits or planner_of(side).replan]
    cells = [(load, deadline) for load in plan.loads for deadline in LOADED]
    tasks = [
        LoadedTask(side, deadline, load, plan.traffic, plan.loaded_requests, plan.seed)
        for load, deadline in cells
        for side in some
    ]
    results = iter(in_parallel(run_loaded, tasks, name=_named, progress=tell, processes=plan.processes))
    rows: Rows = []
    for load, deadline in cells:
        by_side = {side: next(results) for side in some}
        for side, result in by_side.items():
            row: Row = {"load": f"{load:g}", "deadline ms": f"{deadline * 1e3:g}", "planner": side.label}
            row["right in time %"] = f"{100 * result.right.mean():.2f}"
            row["mean ms"] = f"{1e3 * np.nanmean(result.seconds):.1f}"
            row["shed or late"] = f"{result.missed:.1%}"
            for name in PAPERS:
                theirs = by_side[baseline(name)]
                times = np.nanmean(theirs.seconds) / np.nanmean(result.seconds)
                row[f"against {name}, baseline"] = f"{_points(result.right - theirs.right)}, {times:.2f}x"
            rows.append(row)
    return Found({f"under load, {plan.loaded_requests} requests": rows})


def decision(tell: Progress) -> Found:
    """Time each planner's pick: for the gate, for what follows, and for the gate when changed waits need new plans."""
    del tell
    calm = Traffic().outlooks(caches=True)
    waiting = {model: Outlook(WAIT, outlook.ends, outlook.chances) for model, outlook in calm.items()}
    kinds: dict[str, tuple[int, tuple[Mapping[str, Outlook], ...]]] = {
        "gate, us": (OBJECTS, (calm,)),
        "behind it, us": (FACES, (calm,)),
        "gate, waits changed, us": (OBJECTS, (calm, waiting)),
    }
    rows: Rows = [
        {"planner": name, **{what: f"{1e6 * _picked(name, *kind):.0f}" for what, kind in kinds.items()}}
        for name in EVERY
    ]
    return Found({"a pick takes (median)": rows})


def _picked(name: str, node: int, outlooks: tuple[Mapping[str, Outlook], ...]) -> float:
    config = PlannerConfig(name)
    planner, query, branches = make_planner(config), application(config), Branches()
    for i in range(SEEN):
        branches.observe((FACES, VEHICLES), WAYS[i % len(WAYS)])
    took = []
    for i in range(PICKS):
        opened = frozenset(EVERY_NODE if node == OBJECTS else (node,))
        view = PlanView(query, opened, LEFT, outlooks[i % len(outlooks)].__getitem__, branches, LEFT)
        began = perf_counter()
        planner.pick(view, node)
        took.append(perf_counter() - began)
    return median(took)


def side_rows(found: ByDeadline, figure: Callable[[Result], str]) -> Rows:
    """Return one figure of every side at every deadline."""
    return [
        {"planner": side.label, **{f"{deadline * 1e3:g}": figure(of[side]) for deadline, of in found.items()}}
        for side in next(iter(found.values()))
    ]


def benefit_rows(found: ByDeadline, wrong: float = 0.0) -> Rows:
    """Return what replanning with learned caches gains each planner over its own baseline (figure 11)."""
    rows: Rows = []
    for deadline, sides in found.items():
        row: Row = {"deadline ms": f"{deadline * 1e3:g}"}
        rows.append(row | {name: compared(sides[replanned(name)], sides[baseline(name)], wrong) for name in EVERY})
    return rows


def part_rows(found: ByDeadline) -> Rows:
    """Return what caches alone gain over the baseline, and what replanning changes then."""
    rows: Rows = []
    for deadline, sides in found.items():
        row: Row = {"deadline ms": f"{deadline * 1e3:g}"}
        for name in EVERY:
            base, cached, ours = (sides[make(name)] for make in (baseline, caches_only, replanned))
            row[f"{name}: caches"] = _short(cached, base)
            row[f"{name}: replanning"] = _short(ours, cached)
        rows.append(row)
    return rows


def own_rows(found: ByDeadline) -> Rows:
    """Return what the own planner gains over each baseline, and where accuracy and latency gain enough at once."""
    rows: Rows = []
    for deadline, sides in found.items():
        for side in _own(sides):
            row: Row = {"deadline ms": f"{deadline * 1e3:g}", "planner": side.label}
            row |= {f"against {name}": compared(sides[side], sides[baseline(name)]) for name in EVERY}
            met = [name for name in EVERY if at_once(sides[side], sides[baseline(name)])]
            rows.append(row | {f"{POINT:g} point and {TIMES:g} times": ", ".join(met)})
    return rows


def better_rows(found: ByDeadline) -> Rows:
    """Return what the own planner gains over the better of equal and proportional split, all replanned."""
    rows: Rows = [{"deadline ms": f"{deadline * 1e3:g}"} for deadline in found]
    mean: Row = {"deadline ms": "mean of the sweep"}
    for side in _own(next(iter(found.values()))):
        gains = [_over_better(sides, side) for sides in found.values()]
        for row, values in zip(rows, gains, strict=True):
            row[side.label] = _points(values)
        mean[side.label] = _points(np.mean(gains, axis=0))
    return [*rows, mean]


def promise_rows(found: ByDeadline) -> Rows:
    """Return the worst and the best of the sweep for everybody who replans, against each baseline."""
    rows: Rows = []
    for side in (side for side in next(iter(found.values())) if side.exits and planner_of(side).replan):
        for other in EVERY:
            pairs = [(sides[side], sides[baseline(other)]) for sides in found.values()]
            gains = [100 * (ours.right() - theirs.right()).mean() for ours, theirs in pairs]
            late = [100 * (ours.late.mean() - theirs.late.mean()) for ours, theirs in pairs]
            quicker = [theirs.seconds.mean() / ours.seconds.mean() for ours, theirs in pairs]
            rows.append(
                {
                    "planner": side.label,
                    "against baseline": other,
                    "least gain, points": f"{min(gains):+.2f}",
                    "most": f"{max(gains):+.2f}",
                    "more are late, at most": f"{max(late):+.2f}",
                    "quicker": f"{min(quicker):.2f} to {max(quicker):.2f} times",
                    "both at once": ", ".join(_meeting(found, pairs)) or "nowhere",
                }
            )
    return rows


def models_of(result: Result, step: int) -> Mapping[str, float]:
    """Return the share of each model among those that ran a step."""
    ran = result.picks[:, step][result.picks[:, step] != NOT_RUN]
    shares = {timed.name: float((ran == option).mean()) for option, timed in enumerate(TABLE_5[step])}
    return {name: share for name, share in shares.items() if share}


def compared(ours: Result, theirs: Result, wrong: float = 0.0) -> str:
    """Write points of accuracy gained, and how many times quicker it is on average; with intervals."""
    times = ratio_of_means(theirs.seconds, ours.seconds, block=BLOCK)
    right = ours.right(wrong=wrong) - theirs.right(wrong=wrong)
    return f"{_points(right)}, {times.written('.2f', 'x')}"


def at_once(ours: Result, theirs: Result) -> bool:
    """Return whether accuracy is higher by a point and latency lower by 1.26 times, as the paper has it."""
    return gain(ours, theirs) >= POINT and theirs.seconds.mean() >= TIMES * ours.seconds.mean()


def gain(ours: Result, theirs: Result) -> float:
    """Return by how many points more requests are right in time."""
    return 100 * float((ours.right() - theirs.right()).mean())


def _short(ours: Result, theirs: Result) -> str:
    return f"{gain(ours, theirs):+.2f}, {theirs.seconds.mean() / ours.seconds.mean():.2f}x"


def _meeting(found: ByDeadline, pairs: Sequence[tuple[Result, Result]]) -> list[str]:
    return [f"{deadline * 1e3:g}" for deadline, pair in zip(found, pairs, strict=True) if at_once(*pair)]


def _own(sides: Iterable[Side]) -> list[Side]:
    """Return the own planner where it replans, with each price."""
    return [side for side in sides if planner_of(side).name == OWN and side.exits and planner_of(side).replan]


def _over_better(sides: Mapping[Side, Result], own: Side) -> Figures:
    theirs = [sides[replanned(name)].right() for name in PAPERS]
    return sides[own].right() - max(theirs, key=lambda right: float(right.mean()))


def _points(values: Figures) -> str:
    """Write a mean of differences in points, with its interval."""
    return mean_interval(values, block=BLOCK).scaled(100).written("+.2f")
