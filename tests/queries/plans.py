"""Small queries to plan, and what playing them out to every possible end comes to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from random import Random

from latebind.domain.costs import Outlook
from latebind.domain.model import ModelSpec
from latebind.domain.query import Node, Query
from latebind.queries.planners import Branches, Planner, PlanView

Outlooks = Mapping[str, Outlook]
ACCURACIES = (0.8, 0.9, 0.95, 0.99)


def query(*nodes: Node) -> Query:
    return Query(ModelSpec("application", "1", (), (), len(nodes), 1), nodes)


def sure(seconds: float, wait: float = 0.0) -> Outlook:
    """A model without learned caches."""
    return Outlook(wait, (seconds,), (1.0,))


def early(seconds: float, at: Sequence[float], chance: float) -> Outlook:
    """A model that is left at these shares of its time, with a chance altogether."""
    ends = (*(share * seconds for share in at), seconds)
    return Outlook(0.0, ends, (*(chance / len(at) for _ in at), 1.0 - chance))


@dataclass(frozen=True, slots=True)
class Case:
    """A query with the outlooks of its models, and how its conditions turn out."""

    query: Query
    outlooks: Outlooks
    branches: Branches

    def view(self, left: float, opened: frozenset[int]) -> PlanView:
        return PlanView(self.query, opened, left, self.outlooks.__getitem__, self.branches)

    def after(self, node: int) -> list[int]:
        return [i for i, other in enumerate(self.query.nodes) if node in other.after]

    def ways(self, node: int) -> list[tuple[tuple[int, ...], float]]:
        """Return which nodes may run when one of a tree has ended, and how likely that is."""
        behind = self.after(node)
        judged = [i for i in behind if self.query.nodes[i].guarded]
        always = tuple(i for i in behind if i not in judged)
        if not judged:
            return [(always, 1.0)]
        return [
            (always + tuple(i for i, holds in zip(judged, way, strict=True) if holds), chance)
            for way, chance in self.branches.ways(judged)
        ]


def random_case(random: Random, edges: Sequence[int], *, guarded: bool, options: int = 2, ends: int = 2) -> Case:
    """Return a tree: node i + 1 stands behind node `edges[i]`."""
    outlooks: dict[str, Outlook] = {}
    nodes = [_random_node(random, 0, None, guarded, outlooks, options, ends)]
    for i, before in enumerate(edges, start=1):
        nodes.append(_random_node(random, i, before, guarded, outlooks, options, ends))
    branches = Branches()
    case = Case(query(*nodes), outlooks, branches)
    for node in range(len(nodes)):
        judged = [i for i in case.after(node) if nodes[i].guarded]
        for _ in range(10 if judged else 0):
            branches.observe(judged, [random.random() < 0.5 for _ in judged])
    return case


def _random_node(
    random: Random,
    number: int,
    before: int | None,
    guarded: bool,
    outlooks: dict[str, Outlook],
    options: int,
    ends: int,
) -> Node:
    models = tuple(f"{number}-{option}" for option in range(options))
    for model in models:
        at = tuple(sorted(random.uniform(0.1, 1.0) for _ in range(ends)))
        chances = [random.random() for _ in at]
        outlooks[model] = Outlook(random.choice((0.0, 0.1)), at, tuple(c / sum(chances) for c in chances))
    after = () if before is None else (before,)
    needs = () if before is None else ((before,),)
    accuracies = tuple(random.sample(ACCURACIES, options))
    return Node(f"step {number}", models, accuracies, after, needs, guarded and before is not None)


def played(case: Case, planner: Planner, left: float, node: int = 0) -> float:
    """Return the chance that a tree is right in time where `planner` picks whenever a node begins."""
    if left < -1e-9:
        return 0.0
    option = planner.pick(case.view(left, _below(case, node)), node).option

    def follow(then: float) -> float:
        return sum(chance * prod(played(case, planner, then, i) for i in runs) for runs, chance in case.ways(node))

    return _run(case, node, option, left, [follow(then) for then in _leftovers(case, node, option, left)])


def policies(case: Case, left: float, node: int = 0) -> Iterator[float]:
    """Yield that chance with each policy there is: every choice at every end and in every way."""
    if left < -1e-9:
        yield 0.0
        return
    for option in range(len(case.query.nodes[node].models)):
        ends = [list(_followed(case, node, then)) for then in _leftovers(case, node, option, left)]
        for follows in product(*ends):
            yield _run(case, node, option, left, follows)


def _followed(case: Case, node: int, then: float) -> Iterator[float]:
    """Yield what comes of each policy for what follows a node."""
    ways = case.ways(node)
    each = [list(product(*(list(policies(case, then, i)) for i in runs))) for runs, _ in ways]
    for some in product(*each):
        yield sum(chance * prod(rights) for rights, (_, chance) in zip(some, ways, strict=True))


def _run(case: Case, node: int, option: int, left: float, follows: Sequence[float]) -> float:
    outlook = case.outlooks[case.query.nodes[node].models[option]]
    late = [left - outlook.wait - end < -1e-9 for end in outlook.ends]
    rights = zip(outlook.chances, follows, late, strict=True)
    return case.query.nodes[node].accuracies[option] * sum(chance * one for chance, one, gone in rights if not gone)


def _leftovers(case: Case, node: int, option: int, left: float) -> list[float]:
    outlook = case.outlooks[case.query.nodes[node].models[option]]
    return [left - outlook.wait - end for end in outlook.ends]


def _below(case: Case, node: int) -> frozenset[int]:
    found = {node}
    for i, other in enumerate(case.query.nodes):
        if found & set(other.after):
            found.add(i)
    return frozenset(found)
