"""Networks of every kind at every boundary, and rules of composition.

After GATI, section 3.2, table 4 and appendix A.2.1. All rules choose among the same trained lookups, by the same costs,
and are calibrated alike (`learned.compose`). Then their choices are run. Rules that come to the same thresholds in
a fold are the same route, which runs once. Under one limit of memory several rules may come to the same lookups, as
where one kind is best by far and fits; which rule to have is told by the mean over all limits, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row
from latebind.cli.console import Rows as TableRows
from latebind.learned.compose import Choice, Composition, Costs, Floats, Seen, Variant
from latebind.learned.exploration_folder import ExplorationFolder, Origin
from latebind.learned.explore import Explorer, TrainedLookup, in_order, on_all_cores
from latebind.learned.networks import BYTES
from latebind.learned.plan import Candidate
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples
from latebind.learned.train import DISTILLATION
from latebind.program.metadata import read_model
from research.gati.composition import proposals
from research.gati.models import CachedModel
from research.gati.routes import (
    BLOCK,
    Answers,
    Contender,
    Exit,
    Outcome,
    Plan,
    Route,
    Rows,
    Stage,
    Standings,
    Thresholds,
    answers_of,
    costs_of,
    no_exits,
    promised,
    standings,
)

KINDS = ("fc(512)", "pool(4096)", "conv(3,1)", "conv(5,2)", "light", "residual")
SEARCH = "search on samples"
RULES = ("full programme", "relaxed programme", "latency greedy", "hit-rate greedy")
BUDGETS = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 32_000_000)


@dataclass(frozen=True, slots=True)
class Lessons:
    """What is trained, and how long: `presentations` are rows that each predictor sees.

    The kind "bytes" is the network itself in eight bits, before the network, and is not trained.
    Networks stay in `folder`, if there is one: who trains the same again finds them there, and who trains with other
    lessons replaces them.
    """

    fit: Samples
    kinds: Sequence[str] = KINDS
    presentations: int = 100_000
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Explored:
    """Trained lookups, all on one route, and what they say of the rows of the comparison. Costs are in their place."""

    trained: tuple[TrainedLookup, ...]
    route: Route
    answers: Answers
    costs: Costs


def explore(
    base: CachedModel, stages: Sequence[int], lessons: Lessons, samples: Samples, seed: int, *, on_progress: Progress
) -> Explored:
    """Make a lookup of every kind behind each stage (ascending), and ask all of them for all rows."""
    with TemporaryDirectory(prefix="latebind-") as passing:
        origin = Origin.of(base.directory, lessons.fit, seed=seed, presentations=lessons.presentations)
        explorer = Explorer(
            program=base.program,
            parallel=on_all_cores(base.directory, base.program),
            names=read_model(base.directory).boundaries(entry=base.program.entry),
            kept=ExplorationFolder.open(lessons.folder or Path(passing), origin),
            seed=seed,
            presentations=lessons.presentations,
            progress=on_progress,
            distillation=DISTILLATION,
        )
        kinds = [kind for kind in lessons.kinds if kind != BYTES]
        found = explorer.train([Candidate(stage, kind, 0.0) for stage in stages for kind in kinds], lessons.fit)
        trained = list(found.trained)
        if BYTES in lessons.kinds:
            trained = in_order([*trained, *explorer.eight_bit_lookup(base.directory, lessons.fit, found)[0]])
    on_progress("asking all lookups", 0.9)
    pieces: list[Stage | Exit] = []
    for number, stage in enumerate(base.program.stages):  # several at a boundary stand one behind another
        behind = [one for one in trained if one.stage == number]
        pieces += [
            Stage(stage),
            *[Exit(f"{one.kind} behind {number}", one.function, one.files.bytes) for one in behind],
        ]
    route = Route(tuple(pieces))
    sure = tuple([place for place, one in enumerate(trained) if one.files.head.sure])
    return Explored(tuple(trained), route, answers_of(route, samples), replace(costs_of(route, samples), sure=sure))


def composition_of(explored: Explored, stages: int, costs: Costs, promise: Promise) -> Composition:
    """Return the problem of choosing among the lookups by these costs, which may be those of another machine."""
    variants = [
        Variant(one.stage, one.kind, 0.0, 1.0, seconds, one.files.bytes)
        for one, seconds in zip(explored.trained, costs.lookups, strict=True)
    ]
    seconds = [0.0] * stages  # what lies between two boundaries counts for the last stage there
    for end, took in zip([*(one.stage for one in explored.trained), stages - 1], costs.segments, strict=True):
        seconds[end] += took
    return Composition(tuple(variants), costs, tuple(seconds), promise)


def methods_of(composition: Composition, seen: Seen) -> dict[str, Thresholds]:
    """Return the search on samples and the rules, by name; what rules propose for a fold is worked out once."""
    costs, promise = composition.costs, composition.promise
    known: dict[bytes, dict[str, Choice]] = {}

    def search(choose: Rows, show: Rows) -> Floats:
        found = composition.choose(seen.take(choose), [seen.take(show)])
        return np.full(len(composition.variants), np.inf) if found is None else found.thresholds

    def rule(name: str, choose: Rows, show: Rows) -> Floats:
        if choose.tobytes() not in known:
            known[choose.tobytes()] = proposals(composition, seen.take(choose))
        choice = known[choose.tobytes()][name]
        return promised(seen, costs, promise, allows=set(choice).issuperset, starts=[choice])(choose, show)

    return {SEARCH: search, **{name: partial(rule, name) for name in RULES}}


@dataclass(frozen=True, slots=True)
class UnderLimits:
    """What each rule did under each limit of bytes; all on the same rows, in the same order."""

    budgets: tuple[int, ...]
    rules: tuple[str, ...]
    found: Standings

    def of(self, rule: str) -> list[Outcome]:
        """Return what a rule did, by limit."""
        by_name = {one.name: one for one in self.found.outcomes}
        return [by_name[named(rule, budget)] for budget in self.budgets]

    def rows(self) -> TableRows:
        """Return one row of a table for each rule; the multiple is of the search's mean over all limits, paired."""
        own, rows = np.mean([one.seconds for one in self.of(SEARCH)], axis=0), TableRows()
        for rule in self.rules:
            outcomes = self.of(rule)
            seconds = np.mean([one.seconds for one in outcomes], axis=0)
            row: Row = {"rule": rule}
            for budget, one in zip(self.budgets, outcomes, strict=True):
                row[f"{budget / 1e6:g} MB, ms"] = float(one.seconds.mean() * 1e3)
            row[f"mean / {SEARCH}"] = ratio_of_means(seconds, own, block=BLOCK, seed=self.found.seed)
            rows.append(row | {"least fidelity": min(map(self.found.fidelity, outcomes))})
        return rows


def under_limits(
    base: CachedModel,
    explored: Explored,
    samples: Samples,
    plan: Plan,
    *,
    budgets: Sequence[int],
    on_progress: Progress,
) -> UnderLimits:
    """Run what the search and each rule choose under each limit (bytes)."""
    seen = explored.answers.against(explored.answers.ends)
    contenders = [Contender(f"{base.name} alone", base.whole(), base.bytes, no_exits)]
    methods = dict[str, Thresholds]()
    for budget in budgets:
        promise = replace(plan.promise, cache_bytes=budget)
        composition = composition_of(explored, len(base.program.stages), explored.costs, promise)
        methods = methods_of(composition, seen)
        for rule, thresholds in methods.items():
            contenders.append(Contender(named(rule, budget), explored.route, base.bytes, thresholds))
    return UnderLimits(tuple(budgets), tuple(methods), standings(contenders, samples, plan, on_progress=on_progress))


def named(rule: str, budget: int) -> str:
    """Return what a rule under a limit of bytes is called."""
    return f"{rule}, {budget / 1e6:g} MB"
