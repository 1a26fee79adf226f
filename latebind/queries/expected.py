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
from math import floor, inf, log, log2

from latebind.domain.costs import Outlook
from latebind.domain.query import PlannerConfig
from latebind.queries.planners import Choice, PlanView
from latebind.queries.prospect import (
    ROUNDING,
    TIE,
    Branches,
    Graph,
    Prospect,
    Remaining,
    behind,
    best,
    mixed,
    relative,
    together,
)

NOTABLE = 0.05  # smaller changes, as a share of a model's time or in a probability of leaving, are ignored
GROWN = 1.1  # new tables once so many times as many conditions were judged as when they were made
NEWEST = 0.05  # the weight of the newest wait in the mean
SELDOM = 256  # queries between two searches for prices
MOST_NODES = 6  # of a query for which a price is found; for larger queries accuracy alone counts
MOST_RESTS = 100  # kept for a price, by node and what may run beside it; beyond that, any of the same node is used
NEXT = 0.5  # the step between two prices, in powers of two
NONE = -40  # the index of the price that stands for none: a millionth a second, which only settles ties
HIGHEST = 2  # the highest price tried, in octaves above one right answer for the whole time of the query
OCTAVES = 15  # how far below the highest price the lowest one is
BUCKETS = 64  # per factor of e in the allowed time; all times in a bucket share one price

Outlooks = Mapping[str, Outlook]


class Expected:
    """Maximises expected accuracy less `price` times expected seconds; without a price it finds one.

    The budget of a choice is how long the step may take so that the rest is still as good as if no cache answered it.
    """

    def __init__(self, config: PlannerConfig) -> None:
        self._price = config.price if config.replan or config.price is not None else 0.0
        self._graph: Graph | None = None  # of the query that is planned
        self._tables: dict[float, Tables] = {}  # by price; all were made for the same outlooks and counts of conditions
        self._outlooks: dict[str, Outlook] = {}
        self._judged = 0
        self._asked: Callable[[str], Outlook] | None = None  # for outlooks, when it was last looked whether these hold
        self._bargain: Bargain | None = None
        self._begun = 0  # queries since a price was last looked for
        self._waits: dict[str, float] = {}  # the mean wait of requests at each model

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`. Open nodes before it are assumed to run to the end of their networks."""
        graph = self._graph
        if graph is None or graph.query is not view.query:
            graph = self._graph = Graph(view.query)
            self._tables.clear()
            self._outlooks, self._asked, self._bargain = {}, None, None
        price = self._price if self._price is not None else self._price_for(view, graph)
        before = graph.open_before(node, view.open)
        outlooks = view.outlooks(node)
        for model, outlook in zip(view.query.nodes[node].models, outlooks, strict=True):
            known = self._waits.setdefault(model, outlook.wait)
            self._waits[model] = known + NEWEST * (outlook.wait - known)
        if before or graph.behind[node]:  # else nothing follows
            self._renew(view, graph.models)
        tables = self._tables.get(price)
        if tables is None:
            tables = self._tables[price] = Tables(graph, view.branches, self._outlooks, price)
        ends: dict[int, float] = {}

        def begins(number: int) -> float:
            return max([ends[i] for i in view.query.nodes[number].after if i in ends], default=0.0)

        for number in before:
            others = view.outlooks(number)
            chosen = tables.choose(number, view.open, others, view.left - begins(number))
            ends[number] = begins(number) + others[chosen.option].wait + others[chosen.option].whole
        return tables.choose(node, view.open, outlooks, view.left - begins(node))

    def _renew(self, view: PlanView, models: Sequence[str]) -> None:
        """Begin new tables if the models have come to take notably other times, or much more is known of conditions.

        Requests that wait for a later model now will be gone by then, so the mean waits count instead.
        """
        much_more = view.branches.judged > GROWN * self._judged
        if view.outlook is self._asked and not much_more:
            return
        self._asked = view.outlook
        now, known = [view.outlook(model) for model in models], self._outlooks
        waits = [self._waits.get(model, seen.wait) for model, seen in zip(models, now, strict=True)]
        if (
            known
            and not much_more
            and all(alike(known[one], seen, wait) for one, seen, wait in zip(models, now, waits, strict=True))
        ):
            return
        self._tables.clear()
        self._judged = view.branches.judged
        self._outlooks = {
            model: Outlook(wait, seen.ends, seen.chances) for model, seen, wait in zip(models, now, waits, strict=True)
        }

    def _price_for(self, view: PlanView, graph: Graph) -> float:
        """Return the price of a second. It is found anew now and then, when a query starts."""
        if len(view.query.nodes) > MOST_NODES:
            return 0.0
        self._begun += len(view.open) == len(view.query.nodes)
        if self._bargain is None or self._begun >= SELDOM:
            self._begun = 0
            found = {model: view.outlook(model) for model in graph.models}
            alone = {model: Outlook(0.0, one.ends, one.chances) for model, one in found.items()}
            self._bargain = Bargain(graph, view.branches, alone)
        return self._bargain.price(view.allowed)


class Tables:
    """The prospects of a query whose models take the times of `outlooks`, at this price of a second.

    A pick looks up the prospect of what follows a node; to work it out takes up to 100 times as long as to pick.
    """

    def __init__(self, graph: Graph, branches: Branches, outlooks: Outlooks, price: float) -> None:
        self._graph, self._branches, self._outlooks, self._price = graph, branches, outlooks, price
        self._rests: dict[tuple[int, Remaining], Prospect] = {}

    def reached(self, allowed: float) -> tuple[float, float]:
        """Return the probability that the whole query is right within `allowed` seconds, and the price of its seconds.

        Steps behind no other are taken to run.
        """
        nodes = self._graph.query.nodes
        everybody = frozenset(range(len(nodes)))
        right, cost = 1.0, 0.0
        for number, node in enumerate(nodes):
            if not node.after:
                rest = self._rest(number, Remaining(everybody - {number}))
                options = zip(node.models, node.accuracies, strict=True)
                found = [self._terms(rest, self._outlooks[model], accuracy, allowed) for model, accuracy in options]
                chosen = max(found, key=lambda terms: terms[0] - terms[1])
                right, cost = right * chosen[0], cost + chosen[1]
        return right, cost

    def choose(self, node: int, opened: frozenset[int], outlooks: Sequence[Outlook], left: float) -> Choice:
        """Return the choice for a node that starts with `left` seconds left, while these nodes are open."""
        rest = self._rest(node, Remaining(opened).without(node))
        chosen, highest, quickest = 0, -inf, inf
        accuracies = self._graph.query.nodes[node].accuracies
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
        key = node, self._graph.concerning(node, ahead)
        if (known := self._rests.get(key)) is not None:
            return known
        if len(self._rests) >= MOST_RESTS:
            for (other, _), known in self._rests.items():
                if other == node:
                    return known
        ahead = key[1]
        ways = [
            (outcome.chance, together([self._prospect(i, outcome.ahead.without(i)) for i in outcome.runs]))
            for outcome in self._graph.outcomes(node, ahead, self._branches)
        ]
        joins = [
            relative(self._prospect(i, Remaining(ahead.may & self._graph.behind[i], ahead.out)))
            for i in self._graph.waited_for(node, ahead)
        ]
        found = self._rests[key] = together([mixed(ways), *joins]) if joins else mixed(ways)
        return found

    def _prospect(self, node: int, ahead: Remaining) -> Prospect:
        """Return the prospect of a node that starts, with its best model."""
        rest, this = self._rest(node, ahead), self._graph.query.nodes[node]
        options = [
            (self._outlooks[model], accuracy) for model, accuracy in zip(this.models, this.accuracies, strict=True)
        ]
        options.sort(key=lambda one: one[0].wait + one[0].mean)
        return best([behind(rest, outlook, accuracy, self._price) for outlook, accuracy in options])


def alike(known: Outlook, seen: Outlook, wait: float) -> bool:
    """Tell whether plans made with an outlook may be used where a model is now `seen` with this, after such a wait."""
    least = NOTABLE * (known.wait + known.ends[-1])
    if abs(known.wait - wait) > least:
        return False
    if known.ends is seen.ends and known.chances is seen.chances:
        return True
    return (
        len(known.ends) == len(seen.ends)
        and all(abs(a - b) <= least for a, b in zip(known.ends, seen.ends, strict=True))
        and all(abs(a - b) <= NOTABLE for a, b in zip(known.chances, seen.chances, strict=True))
    )


def _budget(rest: Prospect, outlook: Outlook, left: float) -> float:
    """Return how long the step may take: the time left, less what the rest needs to be as good as expected.

    What is expected is that the model ends as late as it can in time.
    """
    left_over = left - outlook.wait
    in_time = bisect_right(outlook.ends, left_over + ROUNDING)
    return left - rest.at[rest.place(left_over - outlook.ends[in_time - 1])] if in_time else left


class Bargain:
    """The prices of one query whose models by themselves take the times of `outlooks`."""

    def __init__(self, graph: Graph, branches: Branches, outlooks: Outlooks) -> None:
        self._made_of = graph, branches, outlooks
        whole = {model: Outlook(found.wait, (found.whole,), (1.0,)) for model, found in outlooks.items()}
        self._static = Tables(graph, branches, whole, price_at(NONE))
        self._replanned: dict[int, Tables] = {}  # by the index of the price
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
        right, seconds = _in_seconds(self._static.reached(allowed), NONE)
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
        if place not in self._replanned:
            self._replanned[place] = Tables(*self._made_of, price_at(place))
        mine, static = (
            _in_seconds(self._replanned[place].reached(allowed), place),
            _in_seconds(self._static.reached(allowed), NONE),
        )
        return mine[0] - static[0], static[1] - mine[1]


def price_at(place: int) -> float:
    """Return the price with this index, as a share of accuracy for a second."""
    return float(2.0 ** (place * NEXT))


def _in_seconds(terms: tuple[float, float], place: int) -> tuple[float, float]:
    return terms[0], terms[1] / price_at(place)
