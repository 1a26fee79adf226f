"""What a second is worth to a query where nobody says: what learned caches earn goes to accuracy and to latency. Pure.

Beside the plan that is made beforehand and runs every network to its end, caches and replanning leave something to
gain. It may buy larger models, or be given back as time; each price of a second divides it in another way. The division
is Nash's (The bargaining problem, 1950): the product of what accuracy and what latency gain is the greatest. That does
not depend on units, neither is worse off than with that plan, and where nothing can be gained for both, accuracy alone
counts.
"""

from collections.abc import Callable, Mapping
from math import floor, inf, log, log2

from latebind.domain.outlook import Outlook

NEXT = 0.5  # powers of two between one price and the next
NONE = -40  # the place of the price that stands for none: a millionth a second, which settles ties only
HIGHEST = 2  # octaves above the price of a right answer for all of its time: the highest that is tried
OCTAVES = 15  # below it is the lowest
BUCKETS = 64  # of times that are allowed, which have one price, up to e times the time

# What a query comes to that is allowed so many seconds: the chance that it is right in time, and the price of its time.
Terms = Callable[[float], tuple[float, float]]
Begin = Callable[[Mapping[str, Outlook], float], Terms]  # with these outlooks, and this price of a second


class Bargain:
    """The prices of one query, as long as models by themselves take what they did in `outlooks`.

    So many conditions had been `judged` when they were found.
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
        """Return the price of a second for a query that has so many, in shares of accuracy."""
        if not 0.0 < allowed < inf:
            return price_at(NONE)
        bucket = floor(log(allowed) * BUCKETS)
        if bucket not in self._prices:
            self._prices[bucket] = price_at(self._best(allowed))
        return self._prices[bucket]

    def _best(self, allowed: float) -> int:
        """Return the place of the best price. As it rises accuracy falls, and so does time: the best is between."""
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
        """Return how much likelier an answer is right, and how many seconds less it takes, at a price."""
        if place not in self._shared:
            self._shared[place] = self._begin(self.outlooks, price_at(place))
        mine, static = _in_seconds(self._shared[place](allowed), place), _in_seconds(self._static(allowed), NONE)
        return mine[0] - static[0], static[1] - mine[1]


def price_at(place: int) -> float:
    """Return a price, in shares of accuracy a second."""
    return float(2.0 ** (place * NEXT))


def _in_seconds(terms: tuple[float, float], place: int) -> tuple[float, float]:
    return terms[0], terms[1] / price_at(place)
