"""What planners see and return, and those that split the deadline, equally or in proportion (GATI, section 5). Pure.

Whenever a node is picked, what is left of the deadline is split again among the open nodes. This is what algorithm 1
does when it spreads the time that a node has saved, or lost, over the nodes after it by the same policy: the
proportions of the shares stay the same.

`PlanView` and `Choice` are msgspec classes, so this file is not compiled.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from latebind.domain.costs import Outlook
from latebind.domain.query import Query

PRIOR = 1.0  # the weight, in queries, of the prior over the ways in which conditions may turn out


class Branches:
    """How often the conditions of one query held. Nodes that are judged together are counted together."""

    def __init__(self) -> None:
        self._ways: dict[tuple[int, ...], Counter[tuple[bool, ...]]] = {}
        self.judged = 0

    def observe(self, nodes: Sequence[int], holds: Sequence[bool]) -> None:
        """Count which conditions held, of nodes that were judged together."""
        self.judged += 1
        self._ways.setdefault(tuple(nodes), Counter())[tuple(holds)] += 1

    def ways(self, nodes: Sequence[int]) -> list[tuple[tuple[bool, ...], float]]:
        """Return each way in which the conditions of `nodes`, judged together, may turn out, and its probability.

        The prior is that exactly one of them holds, or none.
        """
        beforehand = [tuple(number == one for number in nodes) for one in (*nodes, None)]
        counts = dict.fromkeys(beforehand, PRIOR / len(beforehand))
        for way, count in self._ways.get(tuple(nodes), {}).items():
            counts[way] = counts.get(way, 0.0) + count
        total = sum(counts.values())
        return [(way, count / total) for way, count in counts.items()]


class PlanView(Struct, frozen=True, gc=False):
    """A query at one moment: `left` seconds remain of its deadline, and the nodes in `open` may still run.

    `outlook` returns what a request of a model can expect now. `branches` says how often conditions hold.
    """

    query: Query
    open: frozenset[int]
    left: float
    outlook: Callable[[str], Outlook]
    branches: Branches

    def outlooks(self, number: int) -> list[Outlook]:
        """Return the outlook of each option of a node."""
        return list(map(self.outlook, self.query.nodes[number].models))


class Choice(Struct, frozen=True, gc=False):
    """The option that a node is to run with, and how many seconds it may take."""

    option: int
    budget: float


class Planner(Protocol):
    """Picks models. It has no side effects, but may cache what it has computed."""

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`, which is open."""


class _Split:
    """Gives a node its share of the time left, and the most accurate model that fits it without leaving early.

    On each path from input to output, a node's share is its weight divided by the weight of all open nodes on that
    path. It gets the smallest of these shares, so that every path ends in time.
    """

    def __init__(self, weigh: Callable[[PlanView, int], float]) -> None:
        self._weigh = weigh

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`."""
        weights = {number: self._weigh(view, number) for number in sorted(view.open)}
        heaviest = heaviest_path(view, node, weights)
        budget = view.left * weights[node] / heaviest if heaviest > 0.0 else view.left
        return most_accurate(view, node, budget, _seconds(view, node))


class Equal(_Split):
    """Every open node of a path gets the same share."""

    def __init__(self) -> None:
        super().__init__(lambda view, node: 1.0)


class Proportional(_Split):
    """A node's share is proportional to the longest time of any of its models, waiting included (equation 4)."""

    def __init__(self) -> None:
        super().__init__(lambda view, node: max(_seconds(view, node)))


def heaviest_path(view: PlanView, node: int, weights: Mapping[int, float]) -> float:
    """Return the largest sum of weights on any path of open nodes through `node`; `weights` are in number order."""
    before: dict[int, float] = {}
    behind = dict.fromkeys(weights, 0.0)
    for number, weight in weights.items():
        before[number] = weight + max([before[i] for i in view.query.nodes[number].after if i in weights], default=0.0)
    for number in reversed(list(weights)):
        through = weights[number] + behind[number]
        behind |= {i: max(behind[i], through) for i in view.query.nodes[number].after if i in weights}
    return before[node] + behind[node]


def _seconds(view: PlanView, node: int) -> list[float]:
    return [outlook.wait + outlook.whole for outlook in view.outlooks(node)]


def most_accurate(view: PlanView, node: int, budget: float, seconds: Sequence[float]) -> Choice:
    """Return the most accurate option whose `seconds` are within `budget`, or the fastest if there is none.

    Of equally accurate options it takes the faster one.
    """
    accuracies = view.query.nodes[node].accuracies
    fitting = [i for i, taken in enumerate(seconds) if taken <= budget]
    if not fitting:
        return Choice(min(range(len(seconds)), key=seconds.__getitem__), budget)
    return Choice(max(fitting, key=lambda i: (accuracies[i], -seconds[i])), budget)
