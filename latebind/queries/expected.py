"""The planner that picks what makes the expected accuracy of the whole query the greatest, deadline included. Pure.

A node is worth, with so much time left, what its best model is: its accuracy times the worth of what comes behind it,
on average over when it ends (at one of its learned caches, or at the end of the network) and over which conditions
hold; less the price of its seconds. That is worked out from the last nodes to the first, once, and looked up.

It is exact for chains and for trees in which conditions decide. Steps that run side by side count as if one knew
nothing of the other. Where they are joined, who has the highest number counts what comes behind, and the others by what
share it becomes less likely when they are late. Two such shares multiply where the least of them would do, so a query
is never held to be worth more than it is.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, prod

from latebind.domain.outlook import Outlook
from latebind.domain.query import Node, PlannerConfig
from latebind.queries.bargain import Bargain, Terms
from latebind.queries.branches import Branches
from latebind.queries.outcomes import MOST_PLACES, Graph, Place, Remaining
from latebind.queries.prospect import ROUNDING, TIE, Prospect, behind, best, mixed, relative, together
from latebind.queries.view import Choice, PlanView

NOTABLE = 0.05  # of a model's whole time, or of the chance to leave somewhere: what changes by less is as before
GROWN = 1.1  # times as many conditions as when the tables were made
NEWEST = 0.05  # of the mean wait
MUCH_MORE = 2  # times as many conditions as when prices were found
SELDOM = 64  # queries, after which it is looked whether prices still hold
MOST_NODES = 6  # of a query for which a price is looked for: of more, accuracy alone counts
MOST_PROSPECTS = 100  # of a query's nodes, by what else may run; then any of the same node has to do


class Expected:
    """Maximises expected accuracy less `price` times expected seconds; the price is found where none is given.

    A choice's budget is how long the step may take for the rest still to be as good as if it left at no cache.
    """

    def __init__(self, config: PlannerConfig) -> None:
        self._price = config.price if config.replan or config.price is not None else 0.0
        self._graph: Graph | None = None  # of the query that is planned
        self._known: dict[float, _Tables] = {}  # by price
        self._bargain: Bargain | None = None
        self._begun = 0  # queries, since models were looked at for their prices
        self._waits: dict[str, float] = {}  # what those met on average who came to a model

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return what `node` is to run with. Those before it that are open too are taken to run to their ends."""
        outlooks = view.outlooks(node)
        self._learn(view.query.nodes[node].models, outlooks)
        graph = self._graph
        if graph is None or graph.query is not view.query:
            graph = self._graph = Graph(view.query)
            self._known.clear()
            self._bargain = None
        price = self._price_for(view, graph) if self._price is None else self._price
        place = graph.place(node, view.open)
        tables = self._known.get(price)
        if tables is None:
            tables = _Tables(graph, view.branches, price)
        tables = self._known[price] = tables.renewed(view, place, self._waits)
        if not place.before:
            return tables.choose(place, outlooks, view.left)
        ends: dict[int, float] = {}
        for before in place.before:
            begins = _begins(view, before, ends)
            others = view.outlooks(before)
            outlook = others[tables.choose(graph.place(before, view.open), others, view.left - begins).option]
            ends[before] = begins + outlook.wait + outlook.whole
        return tables.choose(place, outlooks, view.left - _begins(view, node, ends))

    def _price_for(self, view: PlanView, graph: Graph) -> float:
        """Return the price of a second; now and then, when a query begins, it is found anew."""
        if len(view.query.nodes) > MOST_NODES:
            return 0.0
        known = self._bargain
        if len(view.open) == len(view.query.nodes):
            self._begun += 1
        if known is None or (self._begun >= SELDOM and not self._goes_on(known, view)):
            models = {model for node in view.query.nodes for model in node.models}
            found = {model: view.outlook(model) for model in models}
            alone = {model: Outlook(0.0, one.ends, one.chances) for model, one in found.items()}
            begin = partial(_begin, graph, view.branches)
            known = self._bargain = Bargain(alone, begin, view.branches.judged)
        return known.price(view.allowed)

    def _goes_on(self, bargain: Bargain, view: PlanView) -> bool:
        """Whether models take by themselves what they did, and not much more is known of conditions."""
        self._begun = 0
        if view.branches.judged > MUCH_MORE * bargain.judged:
            return False
        now = {model: view.outlook(model) for model in bargain.outlooks}
        return all(
            alike(known, Outlook(0.0, now[model].ends, now[model].chances)) for model, known in bargain.outlooks.items()
        )

    def _learn(self, models: Sequence[str], outlooks: Sequence[Outlook]) -> None:
        for model, outlook in zip(models, outlooks, strict=True):
            known = self._waits.setdefault(model, outlook.wait)
            self._waits[model] = known + NEWEST * (outlook.wait - known)


class _Tables:
    """The prospects of a query, as long as models are to be expected to take what they did."""

    def __init__(self, graph: Graph, branches: Branches, price: float) -> None:
        self.graph = graph
        self._branches, self._judged = branches, branches.judged
        self._price = price
        self._outlooks: Mapping[str, Outlook] = {}
        self._prospects: dict[tuple[int, Remaining], Prospect] = {}
        self._first: dict[int, tuple[int, Remaining]] = {}  # the first prospect asked for of each node
        self._rests: dict[Place, Prospect] = {}
        self._asked: Callable[[str], Outlook] | None = None  # for outlooks, when it was last looked whether these hold
        self._held: set[Place] = set()  # for which they did then

    def renewed(self, view: PlanView, place: Place, waits: Mapping[str, float]) -> "_Tables":
        """Return these tables, or new ones where something has changed notably behind what is to be picked.

        Who waits for a model behind it now will have gone by then: as many as usual count, who met these `waits`.
        """
        same = view.branches is self._branches and view.branches.judged <= GROWN * self._judged
        if view.outlook is not self._asked:
            self._asked = view.outlook
            self._held.clear()
        if same and place in self._held:
            return self
        now: dict[str, Outlook] = {}
        for model in place.models:
            seen = view.outlook(model)
            now[model] = Outlook(waits.get(model, seen.wait), seen.ends, seen.chances)
        if same and self._hold(now):
            self._outlooks = {**now, **self._outlooks}
            self._held.add(place)
            return self
        fresh = _Tables(self.graph, view.branches, self._price)
        fresh._outlooks = now
        return fresh

    def _hold(self, now: Mapping[str, Outlook]) -> bool:
        for model, seen in now.items():
            known = self._outlooks.get(model)
            if known is not None and not alike(known, seen):
                return False
        return True

    def begin(self, outlooks: Mapping[str, Outlook]) -> Terms:
        """Return what the whole query comes to, with these models. Steps behind no other are taken to run."""
        self._outlooks = outlooks
        nodes, everybody = self.graph.query.nodes, frozenset(range(len(self.graph.query.nodes)))
        first = [
            (node, self._rest(number, self.graph.concerning(number, Remaining(everybody - {number}))))
            for number, node in enumerate(nodes)
            if not node.after
        ]

        def terms(allowed: float) -> tuple[float, float]:
            found = [self._best(node, rest, allowed) for node, rest in first]
            return prod([right for right, _ in found]), sum([cost for _, cost in found])

        return terms

    def _best(self, node: Node, rest: Prospect, left: float) -> tuple[float, float]:
        """Return the chance and the price of the best model of a node, with `rest` behind it."""
        options = [
            self._terms(rest, self._outlooks[model], accuracy, left)
            for model, accuracy in zip(node.models, node.accuracies, strict=True)
        ]
        return max(options, key=lambda terms: terms[0] - terms[1])[:2]

    def choose(self, place: Place, outlooks: Sequence[Outlook], left: float) -> Choice:
        """Return what a node is to run with that begins with so much time left."""
        rest = self._rests.get(place)
        if rest is None:
            if len(self._rests) >= MOST_PLACES:
                self._rests.clear()
                self._held.clear()
            rest = self._rests[place] = self._rest(place.node, place.ahead)
        chosen, highest, quickest = 0, -inf, inf
        accuracies = self.graph.query.nodes[place.node].accuracies
        for option, accuracy in enumerate(accuracies) if len(accuracies) > 1 else ():
            right, cost, seconds = self._terms(rest, outlooks[option], accuracy, left)
            worth = right - cost
            if worth > highest + TIE or (worth > highest - TIE and seconds < quickest):
                chosen, highest, quickest = option, worth, seconds
        return Choice(chosen, _budget(rest, outlooks[chosen], left))

    def _terms(self, rest: Prospect, outlook: Outlook, accuracy: float, left: float) -> tuple[float, float, float]:
        """Return the chance that a model and the rest are right in time, their price, and the seconds of the model."""
        left += ROUNDING - outlook.wait
        seconds, right, cost = outlook.wait, 0.0, 0.0
        for end, chance in zip(outlook.ends, outlook.chances, strict=True):
            seconds += end * chance
            place = bisect_right(rest.at, left - end)
            if place:
                right += chance * rest.right[place - 1]
                cost += chance * rest.cost[place - 1]
        return accuracy * right, accuracy * cost + self._price * seconds, seconds

    def _rest(self, node: int, ahead: Remaining) -> Prospect:
        """Return the prospect of what is to come when `node` has ended."""
        ways = [
            (outcome.chance, together([self._prospect(i, outcome.ahead.without(i)) for i in outcome.runs]))
            for outcome in self.graph.outcomes(node, ahead, self._branches)
        ]
        joins = [self._prospect(i, self._through(i, ahead)) for i in self.graph.waited_for(node, ahead)]
        return together([mixed(ways), *map(relative, joins)]) if joins else mixed(ways)

    def _through(self, join: int, ahead: Remaining) -> Remaining:
        return Remaining(ahead.may & self.graph.behind[join], ahead.out)

    def _prospect(self, node: int, ahead: Remaining) -> Prospect:
        """Return the prospect of a node that begins, with its best model."""
        key = (node, self.graph.concerning(node, ahead))
        if len(self._prospects) >= MOST_PROSPECTS:
            key = self._first.get(node, key)
        if key not in self._prospects:
            self._first.setdefault(node, key)
            rest, this = self._rest(*key), self.graph.query.nodes[node]
            options = sorted(zip(this.models, this.accuracies, strict=True), key=lambda one: self._mean(one[0]))
            self._prospects[key] = best(
                [behind(rest, self._outlooks[model], accuracy, self._price) for model, accuracy in options]
            )
        return self._prospects[key]

    def _mean(self, model: str) -> float:
        return self._outlooks[model].wait + self._outlooks[model].mean


def alike(one: Outlook, other: Outlook) -> bool:
    """Return whether plans may go on with one of these where the other is true."""
    least = NOTABLE * (one.wait + one.ends[-1])
    if one.ends is other.ends and one.chances is other.chances:
        return abs(one.wait - other.wait) <= least
    return (
        len(one.ends) == len(other.ends)
        and abs(one.wait - other.wait) <= least
        and all(abs(a - b) <= least for a, b in zip(one.ends, other.ends, strict=True))
        and all(abs(a - b) <= NOTABLE for a, b in zip(one.chances, other.chances, strict=True))
    )


def _begin(graph: Graph, branches: Branches, outlooks: Mapping[str, Outlook], price: float) -> Terms:
    return _Tables(graph, branches, price).begin(outlooks)


def _begins(view: PlanView, node: int, ends: Mapping[int, float]) -> float:
    return max([ends[i] for i in view.query.nodes[node].after if i in ends], default=0.0)


def _budget(rest: Prospect, outlook: Outlook, left: float) -> float:
    """Return what is left when the rest has what it needs to go on as if this ran as long as it can in time."""
    left_over = left - outlook.wait
    in_time = bisect_right(outlook.ends, left_over + ROUNDING)
    return left - rest.at[rest.place(left_over - outlook.ends[in_time - 1])] if in_time else left
