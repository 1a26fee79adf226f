"""Planners of queries, with and without learned caches and replanning (GATI, section 7.3): sides, report, simulation.

What is simulated is GATI's traffic application: a gate, then faces or vehicles. Its planners and the scheduler are the
server's own, in batches of one as in the paper. Requests come one after another, or at Poisson times. Live queries are
in `queries_live.py`. The paper's baseline has no learned caches and picks all models when a query arrives.

Latencies and accuracies are the paper's (table 5). Where the gate is left early is made from what it tells:

- with 80 ms, 79 % of faces and 80 % of vehicles get the larger models (section 7.3), which fit where ResNet-18 ended
  within 21.66 and 25.88 of its 27.36 ms: so four fifths leave in the first 79 %, and the others run to the end;
- ResNet-18 is 1.72 times as quick on average, ResNet-50 1.95 times (table 6);
- GATI on ResNet-50 is quicker than a network in 12 bits, which is little quicker than the whole one, for 87 % of
  requests (section 7.1.1): so many leave. ResNet-34 stands half-way between the two, in all of this.

The plainest curve that agrees: who leaves does so at one of eight places that are evenly spaced and equally likely. The
first is at the same share of each network, which ResNet-18's figures fix (16 %); the last is where the mean comes out.

With a floor, gates have the operating curve of a classifier of texts as it was measured (`CURVE`), at the same places.
What is compared then: thresholds for the target; levels that the load chooses, behind a planner that knows models
alone; and a planner to which a model at a level is one option.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from random import Random

import numpy as np
from msgspec import structs

from latebind.batching.depth import NO_LEVEL
from latebind.bench.report import MARKED, Plot, blank
from latebind.bench.rounds import Progress, in_parallel
from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.cli.console import Row, Rows
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Level, ModelCosts, at_any_length
from latebind.domain.model import ModelSpec
from latebind.domain.query import Node, PlannerConfig, Query
from latebind.learned.metadata import overload
from latebind.queries import PLANNERS
from latebind.queries.expected import Expected
from latebind.queries.planners import Choice, PlanView
from latebind.simulation.workloads import Arrival, Step
from research.evaluation import Found
from research.gati.load import Noted
from research.sides import Figures, Side

SPLITS, OWN = ("equal", "proportional"), "expected"
BY_LOAD, OPTIONS = "expected, levels by the load alone", "expected, models at levels"
WORKERS = 4
AT_ONCE = 256  # requests that may wait for a model
APART = 10.0  # seconds between two requests where they come one after another
TRIED = 1000  # requests by which is found what a query takes alone
ROUNDING = 1e-9  # seconds
Models = Mapping[str, Mapping[str, float]]  # by step, the share of each model among those that ran it


# Sides and report -----------------------------------------------------------------------------------------------------


def static(name: str) -> str:
    """Return the name of a planner's side without learned caches, which picks all models beforehand."""
    return f"{name}, static"


def replanned(name: str) -> str:
    """Return the name of a planner's side with learned caches, which picks each model as late as possible."""
    return f"{name}, replanned"


def sides(policy: PolicyConfig) -> dict[str, Side]:
    """Return each planner as the paper's baseline and as it replans."""
    found = {}
    for name in (*SPLITS, OWN):
        found[static(name)] = Side(static(name), policy, planner=PlannerConfig(name, replan=False))
        found[replanned(name)] = Side(replanned(name), policy, planner=PlannerConfig(name), exits=True)
    return found


def floor_sides(policy: PolicyConfig, floor: float) -> dict[str, Side]:
    """Return the planner that replans with fixed thresholds, with levels that the load chooses, and with options."""
    return {
        replanned(OWN): Side(replanned(OWN), policy, planner=PlannerConfig(OWN), exits=True),
        BY_LOAD: Side(BY_LOAD, policy, planner=PlannerConfig(BY_LOAD), exits=True, floor=floor),
        OPTIONS: Side(OPTIONS, policy, planner=PlannerConfig(OWN), exits=True, floor=floor),
    }


class ByLoad:
    """Picks models as `Expected` does, without their levels: each request runs at the one that the load chooses."""

    def __init__(self) -> None:
        self._expected = Expected()
        self._known: tuple[Query, Query, list[list[int]]] | None = None  # a query, one of its models, their options

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`, at the surest level."""
        if self._known is None or self._known[0] is not view.query:
            nodes, options = [], []
            for one in view.query.nodes:
                names = [name.partition("@")[0] for name in one.models]
                first = [names.index(name) for name in dict.fromkeys(names)]
                accuracies = tuple([one.accuracies[option] for option in first])
                nodes.append(replace(one, models=tuple([names[option] for option in first]), accuracies=accuracies))
                options.append(first)
            self._known = view.query, replace(view.query, nodes=tuple(nodes)), options
        _, models, options = self._known
        found = self._expected.pick(structs.replace(view, query=models), node)
        return structs.replace(found, option=options[node][found.option])


PLANNERS[BY_LOAD] = ByLoad


@dataclass(frozen=True, slots=True)
class Played:
    """What came of requests, a value for each: the chance that its answer is right, 0 if late or none, and its seconds.

    Requests without an answer have no seconds (NaN).
    """

    right: Figures
    seconds: Figures
    deadline: float
    models: Models

    @property
    def late(self) -> float:
        """The share of requests that were not answered in time."""
        return float(1.0 - (self.seconds <= self.deadline + ROUNDING).mean())


def side_rows(sides: Mapping[str, Played], *, block: int, seed: int) -> Rows:
    """Return accuracy and latency of each side, against its own planner's static one and the best split that replans.

    Differences are paired by request; blocks of neighbors are resampled together.
    """
    splits = {name: one for name, one in sides.items() if name in map(replanned, SPLITS)}
    rows: Rows = []
    for name, one in sides.items():
        planner = name.partition(",")[0]
        base = sides.get(static(planner), next(iter(sides.values())))
        row: Row = {"side": name, "right in time %": f"{100 * one.right.mean():.2f}"}
        row["mean ms"] = f"{1e3 * np.nanmean(one.seconds):.3f}"
        row["p99 ms"] = f"{1e3 * np.nanpercentile(one.seconds, 99):.3f}"
        row["late"] = f"{one.late:.1%}"
        row["points over static"] = _points(one.right - base.right, block, seed)
        both = np.isfinite(one.seconds) & np.isfinite(base.seconds)
        row["times as quick"] = str(ratio_of_means(base.seconds[both], one.seconds[both], block=block, seed=seed))
        if splits and name == replanned(OWN):
            best = max(splits.values(), key=lambda split: float(split.right.mean()))
            row["points over the better split"] = _points(one.right - best.right, block, seed)
        else:
            row["points over the better split"] = ""
        if BY_LOAD in sides:
            theirs = sides[BY_LOAD].right
            row["right in time, times levels by the load"] = str(
                ratio_of_means(one.right, theirs, block=block, seed=seed)
            )
        rows.append(row | {step: dict(shares) for step, shares in one.models.items()})
    return rows


def _points(values: Figures, block: int, seed: int) -> str:
    return mean_interval(100.0 * values, block=block, seed=seed).written("+.2f")


def trade(found: Mapping[str, Mapping[str, Played]]) -> Plot:
    """Draw accuracy against mean latency, a mark for each deadline and a line for each side (figure 11)."""
    figure = blank("Accuracy and latency, by deadline", x="mean latency, ms", y="right in time, %")
    for side in next(iter(found.values())):
        some = [by_side[side] for by_side in found.values()]
        x, y = [1e3 * np.nanmean(one.seconds) for one in some], [100 * one.right.mean() for one in some]
        figure.add_scatter(x=x, y=y, text=list(found), name=side, mode=MARKED)
    return figure


# The traffic application ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timed:
    """A model that may answer a step."""

    name: str
    seconds: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """Of a network with learned caches: how much quicker it is on average, and how many leave early."""

    gain: float
    share: float

    @property
    def middle(self) -> float:
        """The share of its time at which a network is left by those who leave it early, on average."""
        return (1.0 / self.gain - (1.0 - self.share)) / self.share


OBJECTS, FACES, VEHICLES = range(3)  # the nodes
STEPS = ("objects", "faces", "vehicles")
TABLE_5 = (
    (
        Timed("ResNet-18", 0.02736, 0.911),
        Timed("ResNet-34", 0.04105, 0.929),
        Timed("ResNet-50", 0.0545, 0.941),
    ),
    (
        Timed("SE-LResNet9E-IR", 0.01738, 0.955),
        Timed("SE-LResNet18E-IR", 0.03675, 0.976),
        Timed("SE-LResNet50E-IR", 0.05834, 0.981),
        Timed("SE-LResNet101E-IR", 0.11032, 0.991),
    ),
    (
        Timed("ResNet-9", 0.01614, 0.902),
        Timed("ResNet-18", 0.02368, 0.918),
        Timed("ResNet-50", 0.05412, 0.926),
        Timed("ResNet-101", 0.11142, 0.934),
    ),
)
LEAVING = {
    "ResNet-18": Leaving(1.72, 0.80),
    "ResNet-34": Leaving((1.72 + 1.95) / 2, (0.80 + 0.87) / 2),
    "ResNet-50": Leaving(1.95, 0.87),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A level: the fidelity promised, what it was on held-out rows, and the share of these that left early."""

    promised: float
    kept: float
    leave: float


# MiniLM of CLINC150 with one lookup (`examples/intents`, `finetune --joint`), calibrated on half of its test.
CURVE = (
    Measured(1.0, 1.0, 0.0),
    Measured(0.995, 0.9995, 0.774),
    Measured(0.99, 0.9968, 0.865),
    Measured(0.98, 0.9899, 0.916),
    Measured(0.97, 0.9848, 0.941),
    Measured(0.96, 0.9783, 0.96),
)
TARGET = 4  # the level that the load chooses where it has no reason for another
PLACES = 8
LAST_OF_RESNET_18 = 0.79  # of its time
SHARES = (0.46, 0.45)  # of faces and vehicles; the others end after the gate


def exits_of(timed: Timed) -> tuple[list[float], list[float]]:
    """Return the seconds after which a gate may be left, its end last, and the share of requests that leave at each."""
    leaving = LEAVING[timed.name]
    first = 2 * LEAVING["ResNet-18"].middle - LAST_OF_RESNET_18
    last = 2 * leaving.middle - first
    ends = [timed.seconds * (first + (last - first) * place / (PLACES - 1)) for place in range(PLACES)]
    return [*ends, timed.seconds], [*[leaving.share / PLACES] * PLACES, 1.0 - leaving.share]


def model_name(step: int, option: int) -> str:
    """Return the name of a model in the query; ResNet-18 is a gate and also knows vehicles."""
    return f"{STEPS[step]}: {TABLE_5[step][option].name}"


def application(planner: PlannerConfig) -> Query:
    """Return the query of figure 2: a gate, then faces or vehicles."""
    nodes = tuple(
        Node(
            name,
            tuple(model_name(step, option) for option in range(len(TABLE_5[step]))),
            tuple(timed.accuracy for timed in TABLE_5[step]),
            () if step == OBJECTS else (OBJECTS,),
            () if step == OBJECTS else ((OBJECTS,),),
            guarded=step != OBJECTS,
        )
        for step, name in enumerate(STEPS)
    )
    return Query(ModelSpec("traffic", "1", (), (), len(nodes), 1), nodes, planner)


def levels_from(floor: float) -> tuple[list[float], list[int]]:
    """Return what the levels from a floor up promise, with that for overload, and which of `CURVE` each runs at."""
    promised = [level.promised for level in CURVE if level.promised >= floor]
    measured = list(range(len(promised)))
    if (found := overload(promised)) is not None:
        promised, measured = [*promised, promised[-1]], [*measured, found[0]]
    return promised, measured


def served(step: int, option: int, *, caches: bool, curve: bool = False, floor: float = 1.0) -> ServedModel:
    """Return a model with a stage up to each place where it may be left; only gates may have learned caches.

    These are left as the measured `curve` says at its target, and with a `floor` at any of its levels from there up.
    """
    timed = TABLE_5[step][option]
    ends, shares = exits_of(timed) if caches and step == OBJECTS else ([timed.seconds], [1.0])
    stages = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
    lookups = tuple(range(len(stages) - 1))
    spec = ModelSpec(model_name(step, option), "1", (), (), len(stages), 1, lookups=lookups)
    rates = [dict.fromkeys(lookups, level.leave / PLACES) for level in CURVE]
    promised, measured = levels_from(floor)
    levels = [Level(one, rates[place]) for one, place in zip(promised, measured, strict=True)]
    if (found := overload(sorted(set(promised), reverse=True))) is not None:
        levels[-1] = replace(levels[-1], dropped=found[1])
    costs = ModelCosts(
        at_any_length(*[Curve((1,), (seconds,)) for seconds in stages]),
        {stage: Curve((1,), (0.0,)) for stage in lookups},
        rates[TARGET] if curve else {stage: shares[stage] for stage in lookups},
        levels=tuple(levels) if lookups and floor < 1.0 else (),
        target=TARGET if lookups and floor < 1.0 else 0,
    )
    return ServedModel(spec, costs, AT_ONCE)


# Simulation -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """So many requests due after `deadline` seconds. The same seed has the same requests on every side.

    They come `load` times as fast as the workers carry with the baseline of equal split, nobody shed; 0: one after
    another. Gates are left as the paper says, or as the measured `curve`.
    """

    side: Side
    deadline: float
    requests: int
    load: float = 0.0
    seed: int = 0
    curve: bool = False


def run(task: Task) -> Played:
    """Run one task."""
    side = task.side
    assert side.planner is not None
    query = application(side.planner)
    every = [(step, option) for step, models in enumerate(TABLE_5) for option in range(len(models))]
    models = tuple(
        served(step, option, caches=side.exits, curve=task.curve, floor=side.floor) for step, option in every
    )
    slots = task.requests + 1  # the simulator gives each request a slot of its own
    simulator = Noted(SchedulerConfig(models, WORKERS, side.policy, queries=(query,), slots=slots))
    records = sorted(simulator.run(_arrivals(task)), key=lambda record: record.request)
    simulator.scheduler.check()
    chances, picks = dict[int, float](), [dict[str, int]() for _ in STEPS]
    _, measured = levels_from(side.floor)
    for step in simulator.steps:
        timed = TABLE_5[step.node][step.option]
        chance = timed.accuracy
        if task.curve and step.node == OBJECTS:
            level = simulator.levels.get(step.request + 1 + step.node, NO_LEVEL)
            chance *= CURVE[TARGET if level == NO_LEVEL else measured[level]].kept
        chances[step.request] = chances.get(step.request, 1.0) * chance
        picks[step.node][timed.name] = picks[step.node].get(timed.name, 0) + 1
    seconds = np.array([one.latency if one.outcome is Outcome.ANSWERED else np.nan for one in records])
    in_time = seconds <= task.deadline + ROUNDING
    right = np.where(in_time, [chances.get(one.request, 0.0) for one in records], 0.0)
    shares = {
        name: {model: count / sum(counts.values()) for model, count in sorted(counts.items())}
        for name, counts in zip(STEPS, picks, strict=True)
    }
    return Played(right, seconds, task.deadline, shares)


def _arrivals(task: Task) -> list[Arrival]:
    """Return the requests: the same for every side, but for where its gates may be left."""
    random, time, arrivals = Random(task.seed), 0.0, []
    gates = [list(accumulate(exits_of(timed)[1])) for timed in TABLE_5[OBJECTS]]
    for _ in range(task.requests):
        time += random.expovariate(task.load * WORKERS / alone(task.deadline)) if task.load else APART
        kind, draw = random.random(), random.random()
        leaves = [next((at for at, share in enumerate(gate) if draw < share), PLACES) for gate in gates]
        levels: tuple[tuple[int, ...], ...] = ()
        if task.curve:  # who leaves at a level leaves no later at a lower one
            at = tuple([int(draw / one.leave * PLACES) if draw < one.leave else PLACES for one in CURVE])
            run_at = tuple([at[place] for place in levels_from(task.side.floor)[1]])
            leaves, levels = [at[TARGET]] * len(gates), (run_at,) * len(gates)
        steps = (
            Step(tuple(leaves) if task.side.exits else (0,) * len(leaves), levels=levels),
            Step((0,) * len(TABLE_5[FACES]), kind < SHARES[0]),
            Step((0,) * len(TABLE_5[VEHICLES]), SHARES[0] <= kind < sum(SHARES)),
        )
        arrivals.append(Arrival(time, "traffic", task.deadline, 0, steps=steps))
    return arrivals


@cache
def alone(deadline: float) -> float:
    """Return what a query takes on average with the baseline of equal split, seconds."""
    side = sides(PolicyConfig("late", max_batch=1, shed=False))[static("equal")]
    return float(np.nanmean(run(Task(side, deadline, TRIED)).seconds))


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is played: requests for each planner at each deadline and load; `processes` 0: one for each core.

    With a `floor` under 1 the sides are those of `floor_sides`.
    """

    deadlines: Sequence[float]
    loads: Sequence[float] = (0.0,)
    requests: int = 20_000
    seed: int = 0
    processes: int = 0
    floor: float = 1.0
    block: int = field(default=100, init=False)  # requests that are resampled together: they are independent


def simulated(plan: Plan, on_progress: Progress) -> Found:
    """Play every side at every deadline and load, the same requests each time; under load, who is late is dropped."""
    cells = [(load, deadline) for load in plan.loads for deadline in plan.deadlines]
    has_floor = plan.floor < 1.0

    def chosen(load: float) -> Mapping[str, Side]:
        policy = PolicyConfig("late", max_batch=1, shed=load > 0)
        return floor_sides(policy, plan.floor) if has_floor else sides(policy)

    tasks = [
        Task(side, deadline, plan.requests, load, plan.seed, has_floor)
        for load, deadline in cells
        for side in chosen(load).values()
    ]
    named = "{0.deadline:g} s".format
    results = iter(in_parallel(run, tasks, name=named, progress=on_progress, processes=plan.processes))
    found: dict[str, dict[str, Played]] = {}
    for load, deadline in cells:
        how = f"at load {load:g}" if load else "one after another"
        names = chosen(load)
        found[f"due after {deadline * 1e3:g} ms, {how}"] = {name: next(results) for name in names}
    tables = {title: side_rows(some, block=plan.block, seed=plan.seed) for title, some in found.items()}
    return Found(tables, lambda: [trade(found)])
