"""The price of a second for queries that name none: it divides the gain between accuracy and latency. Pure.

Compared with a plan made in advance that runs every network to its end, learned caches and replanning leave something
to gain. The gain can buy more accurate models or be given back as time; each price of a second divides it differently.
The price chosen is Nash's solution (The bargaining problem, 1950): it maximises the product of the gains in accuracy
and in latency. That does not depend on units, and neither is worse than with the plan made in advance. Where both
cannot gain, accuracy alone counts.
"""

from collections.abc import Callable, Mapping
from math import floor, inf, log, log2

from latebind.domain.costs import Outlook

NEXT = 0.5  # the step between two prices, in powers of two
NONE = -40  # the index of the price that stands for none: a millionth a second, which only settles ties
HIGHEST = 2  # the highest price tried, in octaves above one right answer for the whole time of the query
OCTAVES = 15  # how far below the highest price the lowest one is
BUCKETS = 64  # per factor of e in the allowed time; all times in a bucket share one price

# For a query with so many allowed seconds: the probability that it is right and in time, and the price of its time.
Terms = Callable[[float], tuple[float, float]]
Begin = Callable[[Mapping[str, Outlook], float], Terms]  # with these outlooks, and this price of a second


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
