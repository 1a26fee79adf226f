"""Measures rules of composition: the paper's programmes and greedy rules, memory limits and alpha (A.2.1).

All rules choose among the same trained lookups, by the same costs, and are calibrated alike (`learned.compose`).
Then their choices are run. Rules that come to the same thresholds in a fold are the same route, which runs once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from latebind.bench.rounds import Progress
from latebind.learned.compose import ALPHAS, Calibrated, Choice, Composition, Costs, Floats, Seen
from latebind.learned.ilp import Problem, Variant, ordered, relaxed
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples
from research.gati.caches.contest import Contender, Plan, Rows, Standings, no_exits, promised, standings
from research.gati.caches.models import CachedModel
from research.gati.caches.variants import Explored

SEARCH = "search on samples"
RULES = ("full programme", "relaxed programme", "latency greedy", "hit-rate greedy")
BUDGETS = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 32_000_000)

Thresholds = Callable[[Rows, Rows], Floats]


def composition_of(explored: Explored, stages: int, costs: Costs, promise: Promise) -> Composition:
    """Return the problem of choosing among the lookups by these costs, which may be those of another machine."""
    plans = [one.plan for one in explored.trained]
    variants = [
        Variant(plan.stage, plan.kind, 0.0, 1.0, seconds, one.bytes)
        for plan, one, seconds in zip(plans, explored.trained, costs.lookups, strict=True)
    ]
    seconds = [0.0] * stages  # what lies between two boundaries counts for the last stage there
    for end, took in zip([*(plan.stage for plan in plans), stages - 1], costs.segments, strict=True):
        seconds[end] += took
    return Composition(tuple(variants), costs, tuple(seconds), promise)


class Rules:
    """Thresholds by each rule; what rules propose for a fold is worked out once for all of them."""

    def __init__(self, composition: Composition, seen: Seen) -> None:
        self.composition = composition
        self._seen = seen
        self._fold: Rows | None = None
        self._proposals: dict[str, Choice] = {}
        self._known: dict[Choice, Floats] = {}

    def search(self, budget: int | None = None) -> Thresholds:
        """Return the search on samples with this limit of bytes."""
        promise = self.composition.promise
        within = replace(
            self.composition, promise=replace(promise, cache_bytes=promise.cache_bytes if budget is None else budget)
        )
        return lambda choose, show: self._held(within.choose(self._seen.take(choose), [self._seen.take(show)]))

    def rule(self, name: str) -> Thresholds:
        """Return one of `RULES`."""

        def thresholds(choose: Rows, show: Rows) -> Floats:
            self._begin(choose)
            return self._only(self._proposals[name], choose, show)

        return thresholds

    def alpha(self, alpha: float) -> Thresholds:
        """Return the relaxed programme with this weight of hit rates against gains (equation 13)."""

        def thresholds(choose: Rows, show: Rows) -> Floats:
            self._begin(choose)
            problem = self.composition.problem(self._seen.take(choose))
            chosen = relaxed(problem, alpha)
            return self._only(tuple(k for k, v in enumerate(problem.variants) if v in chosen), choose, show)

        return thresholds

    def among(self, choice: Choice) -> Thresholds:
        """Return the search among these lookups, as many as the memory and one for a boundary allow."""
        composition = self.composition

        def allows(some: Choice) -> bool:
            return composition.allows(some) and set(some) <= set(choice)

        starts = [some for some in ((), choice) if allows(some)]
        return promised(self._seen, composition.costs, composition.promise, allows=allows, starts=starts)

    def _begin(self, choose: Rows) -> None:
        if self._fold is None or not np.array_equal(self._fold, choose):
            self._fold, self._known = choose, {}
            self._proposals = proposals(self.composition, self._seen.take(choose))

    def _only(self, choice: Choice, choose: Rows, show: Rows) -> Floats:
        if choice not in self._known:
            found = self.composition.only(choice, self._seen.take(choose), [self._seen.take(show)])
            self._known[choice] = self._held(found)
        return self._known[choice]

    def _held(self, found: Calibrated | None) -> Floats:
        return np.full(len(self.composition.variants), np.inf) if found is None else found.thresholds


def proposals(composition: Composition, seen: Seen) -> dict[str, Choice]:
    """Return what each of `RULES` chooses: the programmes, and the paper's greedy rules (A.2.1, i and ii)."""
    problem = composition.problem(seen)
    places = {variant: k for k, variant in enumerate(problem.variants)}
    greedy = {
        "latency greedy": taken_greedily(problem, problem.gain),
        "hit-rate greedy": taken_greedily(problem, lambda variant: variant.hit_rate),
    }
    chosen = {rule: tuple(sorted(places[variant] for variant in variants)) for rule, variants in greedy.items()}
    return composition.proposals(seen) | chosen


def taken_greedily(problem: Problem, worth: Callable[[Variant], float]) -> tuple[Variant, ...]:
    """Return the variants taken by falling worth, as long as they fit."""
    chosen: tuple[Variant, ...] = ()
    for variant in sorted(problem.variants, key=worth, reverse=True):
        wider = ordered((*chosen, variant))
        if variant.accuracy >= problem.accuracy and problem.fits(wider):
            chosen = wider
    return chosen


def methods_of(explored: Explored, rules: Rules) -> dict[str, Thresholds]:
    """Return the search, the rules and the search among each kind alone, by name."""
    kinds = [one.plan.kind for one in explored.trained]
    alone = {
        f"only {kind}": rules.among(tuple(k for k, other in enumerate(kinds) if other == kind))
        for kind in dict.fromkeys(kinds)
    }
    return {SEARCH: rules.search(), **{name: rules.rule(name) for name in RULES}, **alone}


def compare(
    base: CachedModel,
    explored: Explored,
    samples: Samples,
    plan: Plan,
    *,
    budgets: Sequence[int] = BUDGETS,
    tell: Progress,
) -> Standings:
    """Run what each rule, budget (bytes) and alpha chooses, and each kind alone, beside the search on samples."""
    composition = composition_of(explored, len(base.program.stages), explored.costs, plan.promise)
    rules = Rules(composition, explored.answers.against(explored.answers.ends))
    methods = methods_of(explored, rules)
    methods |= {f"alpha {alpha:.1f}": rules.alpha(alpha) for alpha in ALPHAS}
    methods |= {f"memory {budget / 1e6:g} MB": rules.search(budget) for budget in budgets}
    whole = Contender(f"{base.name} alone", base.whole(), base.bytes, no_exits)
    found = [Contender(name, explored.route, base.bytes, thresholds) for name, thresholds in methods.items()]
    return standings([whole, *found], samples, plan, tell=tell)
