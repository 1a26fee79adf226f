"""The planner that maximises the expected accuracy of the whole query within its deadline. Pure.

The value of a node, for a given time left, is that of its best model: the model's accuracy times the value of what
comes behind it, less the price of the time. The value behind it is an average over when the model ends (at one of its
learned caches, or at the end of the network) and over which conditions hold. Values are computed from the last nodes to
the first, once, and then looked up.

This is exact for chains, and for trees in which conditions decide. Steps that run side by side count as independent.
Where they join, the one with the highest number counts what comes behind the join; the others count the share by which
it becomes less likely if they are late. Two such shares are multiplied although the smaller one would do, so a query is
never valued too high.

Where the operator names no price of a second, it is found: compared with a plan made in advance that runs every network
to its end, learned caches and replanning leave something to gain, which can buy more accurate models or be given back
as time. The price chosen is Nash's solution (The bargaining problem, 1950): it maximises the product of the gains in
accuracy and in latency, which does not depend on units, so neither is worse than with the plan made in advance. In
GATI's application it makes queries 10 % faster on average over deadlines from 60 to 200 ms (11 to 24 % at six of ten)
for 0.15 points of accuracy (0.4 at most), beside a price of 0.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import floor, inf, log, log2, prod

from latebind.domain.costs import Outlook
from latebind.domain.query import Node, PlannerConfig
from latebind.queries.prospect import (
    MOST_PLACES,
    ROUNDING,
    TIE,
    Branches,
    Graph,
    Place,
    Prospect,
    Remaining,
    behind,
    best,
    mixed,
    relative,
    together,
)
from latebind.queries.view import Choice, PlanView

NOTABLE = 0.05  # smaller changes, as a share of a model's time or in a probability of leaving, are ignored
GROWN = 1.1  # new tables once so many times as many conditions were judged as when they were made
NEWEST = 0.05  # the weight of the newest wait in the mean
MUCH_MORE = 2  # new prices once so many times as many conditions were judged as when they were found
SELDOM = 64  # queries between two checks of whether prices still hold
MOST_NODES = 6  # of a query for which a price is found; for larger queries accuracy alone counts
MOST_PROSPECTS = 100  # kept for a query, by node and what may run beside it; beyond that, any of the same node is used
NEXT = 0.5  # the step between two prices, in powers of two
NONE = -40  # the index of the price that stands for none: a millionth a second, which only settles ties
HIGHEST = 2  # the highest price tried, in octaves above one right answer for the whole time of the query
OCTAVES = 15  # how far below the highest price the lowest one is
BUCKETS = 64  # per factor of e in the allowed time; all times in a bucket share one price

# For a query with so many allowed seconds: the probability that it is right and in time, and the price of its time.
Terms = Callable[[float], tuple[float, float]]
Begin = Callable[[Mapping[str, Outlook], float], Terms]  # with these outlooks, and this price of a second


class Expected:
    """Maximises expected accuracy less `price` times expected seconds; without a price it finds one.

    The budget of a choice is how long the step may take so that the rest is still as good as if no cache answered it.
    """

    def __init__(self, config: PlannerConfig) -> None:
        self._price = config.price if config.replan or config.price is not None else 0.0
        self._graph: Graph | None = None  # of the query that is planned
        self._known: dict[float, _Tables] = {}  # by price
        self._bargain: Bargain | None = None
        self._begun = 0  # queries since prices were last checked
        self._waits: dict[str, float] = {}  # the mean wait of requests at each model

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`. Open nodes before it are assumed to run to the end of their networks."""
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
        """Return the price of a second. It is found anew now and then, when a query starts."""
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

    def _goes_on(self, bargain: "Bargain", view: PlanView) -> bool:
        """Tell whether models by themselves take the same time, and few more conditions have been judged."""
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
    """The prospects of a query, valid as long as its models are expected to take the same time."""

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
        """Return these tables, or new ones if something behind the node to pick has changed notably.

        Requests that wait for a later model now will be gone by then, so the mean `waits` count instead.
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
        """Return probability and price of the best model of a node, followed by `rest`."""
        options = [
            self._terms(rest, self._outlooks[model], accuracy, left)
            for model, accuracy in zip(node.models, node.accuracies, strict=True)
        ]
        return max(options, key=lambda terms: terms[0] - terms[1])[:2]

    def choose(self, place: Place, outlooks: Sequence[Outlook], left: float) -> Choice:
        """Return the choice for a node that starts with `left` seconds left."""
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
        """Return the probability that a model and the rest are right in time, their price, and the model's seconds."""
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
        """Return the prospect of what comes when `node` has ended."""
        ways = [
            (outcome.chance, together([self._prospect(i, outcome.ahead.without(i)) for i in outcome.runs]))
            for outcome in self.graph.outcomes(node, ahead, self._branches)
        ]
        joins = [self._prospect(i, self._through(i, ahead)) for i in self.graph.waited_for(node, ahead)]
        return together([mixed(ways), *map(relative, joins)]) if joins else mixed(ways)

    def _through(self, join: int, ahead: Remaining) -> Remaining:
        return Remaining(ahead.may & self.graph.behind[join], ahead.out)

    def _prospect(self, node: int, ahead: Remaining) -> Prospect:
        """Return the prospect of a node that starts, with its best model."""
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
    """Tell whether plans made with one of these outlooks may be used where the other is true."""
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
    """Return how long the step may take: the time left, less what the rest needs to be as good as expected.

    What is expected is that the model ends as late as it can in time.
    """
    left_over = left - outlook.wait
    in_time = bisect_right(outlook.ends, left_over + ROUNDING)
    return left - rest.at[rest.place(left_over - outlook.ends[in_time - 1])] if in_time else left


class Bargain:
    """The prices of one query, valid as long as its models by themselves take the time they took in `outlooks`.

    `judged` is how many conditions had been judged when the prices were found.
    """

    def __init__(self, outlooks: Mapping[str, Outlook], begin: Begin, judged: int = 0) -> None:
        self.outlooks = outlooks
        self.judged = judged
        self._begin = begin
        whole = {model: Outlook(found.wait, (found.whole,), (1.0,)) for model, found in outlooks.items()}
        self._static = begin(whole, price_at(NONE))
        self._shared: dict[int, Terms] = {}  # by the place of the price
        self._prices: dict[int, float] = {}  # by buckets of time

    def price(self, allowed: float) -> float:
        """Return the price of a second, as a share of accuracy, for a query with `allowed` seconds."""
        if not 0.0 < allowed < inf:
            return price_at(NONE)
        bucket = floor(log(allowed) * BUCKETS)
        if bucket not in self._prices:
            self._prices[bucket] = price_at(self._best(allowed))
        return self._prices[bucket]

    def _best(self, allowed: float) -> int:
        """Return the index of the best price. Accuracy and time both fall as the price rises: a bisection finds it."""
        right, seconds = _in_seconds(self._static(allowed), NONE)
        if right <= 0.0 or seconds <= 0.0:
            return NONE
        high = floor((HIGHEST - log2(seconds)) / NEXT)
        low = high - round(OCTAVES / NEXT)
        while high - low > 1:
            middle = (low + high) // 2
            more_right, less_time = self._gains(middle, allowed)
            if more_right > price_at(middle) * less_time:
                low = middle
            else:
                high = middle
        products = {place: self._product(place, allowed) for place in (NONE, low, high)}
        return max(products, key=products.__getitem__) if any(products.values()) else NONE

    def _product(self, place: int, allowed: float) -> float:
        more_right, less_time = self._gains(place, allowed)
        return max(0.0, more_right) * max(0.0, less_time)

    def _gains(self, place: int, allowed: float) -> tuple[float, float]:
        """Return, at a price, the gain in the probability of a right answer, and how many seconds are saved."""
        if place not in self._shared:
            self._shared[place] = self._begin(self.outlooks, price_at(place))
        mine, static = _in_seconds(self._shared[place](allowed), place), _in_seconds(self._static(allowed), NONE)
        return mine[0] - static[0], static[1] - mine[1]


def price_at(place: int) -> float:
    """Return the price with this index, as a share of accuracy for a second."""
    return float(2.0 ** (place * NEXT))


def _in_seconds(terms: tuple[float, float], place: int) -> tuple[float, float]:
    return terms[0], terms[1] / price_at(place)
