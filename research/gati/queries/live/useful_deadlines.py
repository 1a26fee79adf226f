"""Finds deadlines at which saved time can buy a better answer, by asking this machine at this minute.

The latencies of the models alone do not show it: a plan that is made beforehand uses the engine's costs, and on a
machine that others use, clients see longer latencies than the plan has.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from latebind.domain.query import Query
from research.gati.queries.live.asked import PATIENCE, Asked, Call
from research.gati.queries.live.sides import Served

SELDOM = 0.1  # of the rows with a choice: as many may have the best models where a plan does not reach them
PROBED = 24  # rows at a deadline that is tried
HALVINGS = 8
BETWEEN = (0.25, 0.5, 0.75)  # places of the deadlines within the saved time, which ends at `reached`
NARROWEST = 0.04  # share of `reached` over which deadlines are spread at least: closer ones show the same


async def reached(asked: Asked, served: Served, query: Query, rows: Sequence[int], first: float) -> float:
    """Return the longest deadline, in seconds, at which the best models are seldom picked, searched from `first`.

    It is `first` where no step has a choice.
    """
    some, best = rows[:PROBED], best_models(query)
    if not best:
        return first

    async def reaches(deadline: float) -> bool:
        return share_of(await asked.one_by_one(served.name, some, allowed=deadline), best) > SELDOM

    low, high = 0.0, first
    while high < PATIENCE and not await reaches(high):
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if await reaches(middle) else (middle, high)
    return low


async def saved(plain: Asked, cached: Asked, served: Served, rows: Sequence[int], block: int) -> float:
    """Return the mean seconds that learned caches save a query without time pressure; 0 for none."""
    differences: list[float] = []
    for start in range(0, len(rows), block):
        some = rows[start : start + block]
        without, with_caches = [await one.one_by_one(served.name, some) for one in (plain, cached)]
        differences += [a.inside - b.inside for a, b in zip(without, with_caches, strict=True)]
    return max(0.0, fmean(differences))


def between(reached: float, saved: float, slower: float) -> tuple[float, ...]:
    """Return deadlines shortly before `reached`, so that a plan made beforehand cannot pick the best models yet.

    They lie within the `saved` seconds before it, and within `slower`, by which the slowest models exceed the next.
    """
    width = max(min(saved, slower) or slower, NARROWEST * reached)
    return tuple([reached - (1.0 - share) * width for share in BETWEEN])


def best_models(query: Query) -> Mapping[str, str]:
    """Return the most accurate model of each step that has a choice."""
    return {
        node.name: max(zip(node.accuracies, node.models, strict=True))[1]
        for node in query.nodes
        if len(node.models) > 1
    }


def share_of(calls: Sequence[Call], best: Mapping[str, str]) -> float:
    """Return the share of runs of steps with a choice in which the best model answered; 1 where there were none."""
    picked = [step.model == best[step.step] for call in calls for step in call.steps if step.step in best]
    return fmean(picked) if picked else 1.0
