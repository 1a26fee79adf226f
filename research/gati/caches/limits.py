"""Measures rules of composition over several limits of memory: which is the one to have, whatever memory there is?

Under one limit several rules may come to the same lookups, as where one kind is best by far and fits. Which rule
to have is told by the mean over all limits: each row's time under all of them, added up for each rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.learned.samples import Samples
from research.gati.caches.composition import SEARCH, Rules, Thresholds, composition_of, methods_of
from research.gati.caches.contest import BLOCK, Contender, Figures, Outcome, Plan, Standings, no_exits, standings
from research.gati.caches.models import CachedModel
from research.gati.caches.variants import Explored


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

    def rows(self) -> list[Figures]:
        """Return one row of a table for each rule; the multiple is of the search's mean over all limits, paired."""
        own = np.mean([one.seconds for one in self.of(SEARCH)], axis=0)
        return [self._row(rule, own) for rule in self.rules]

    def _row(self, rule: str, own: NDArray[np.float64]) -> Figures:
        outcomes = self.of(rule)
        seconds = np.mean([one.seconds for one in outcomes], axis=0)
        return {
            "rule": rule,
            **{
                f"{mb(budget)}, ms": float(one.seconds.mean() * 1e3)
                for budget, one in zip(self.budgets, outcomes, strict=True)
            },
            f"mean / {SEARCH}": ratio_of_means(seconds, own, block=BLOCK, seed=self.found.seed),
            "least fidelity": min(map(self.found.fidelity, outcomes)),
        }


def compare(
    base: CachedModel,
    explored: Explored,
    samples: Samples,
    plan: Plan,
    *,
    budgets: Sequence[int],
    tell: Progress,
) -> UnderLimits:
    """Run what the search, each rule and each kind alone choose under each limit (bytes)."""
    seen = explored.answers.against(explored.answers.ends)
    contenders = [Contender(f"{base.name} alone", base.whole(), base.bytes, no_exits)]
    methods: dict[str, Thresholds] = {}
    for budget in budgets:
        promise = replace(plan.promise, cache_bytes=budget)
        composition = composition_of(explored, len(base.program.stages), explored.costs, promise)
        methods = methods_of(explored, Rules(composition, seen))
        contenders += [
            Contender(named(rule, budget), explored.route, base.bytes, thresholds)
            for rule, thresholds in methods.items()
        ]
    found = standings(contenders, samples, plan, tell=tell)
    return UnderLimits(tuple(budgets), tuple(methods), found)


def named(rule: str, budget: int) -> str:
    """Return what a rule under a limit of bytes is called."""
    return f"{rule}, {mb(budget)}"


def mb(budget: int) -> str:
    """Return a limit of bytes in words."""
    return f"{budget / 1e6:g} MB"
