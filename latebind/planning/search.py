"""Searches the fewest machines that are enough, for several offers at once, by bisection in rounds. Runs nothing.

An offer is given up as soon as it is sure to be dearer than another one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, log2
from typing import Generic, TypeVar

Offer = TypeVar("Offer")
GUESSED = 6  # assumed number of further probes for a bracket without an upper end
FINE = 0.02  # a bracket is closed when it is no wider than this share of its upper end, or one machine


@dataclass(slots=True)
class Bracket(Generic[Offer]):
    """What is known of one offer: `low` machines are too few, `high` are enough (None: not found yet).

    Fewer machines are assumed never to be better. `price` is that of one machine.
    """

    offer: Offer
    first: int
    most: int
    price: float = 0.0
    low: int = 0
    high: int | None = None
    probed: dict[int, bool] = field(default_factory=dict)

    def next(self) -> int | None:
        """Return the number of machines to try next, or None where the search has ended."""
        if self.high is None:
            return None if self.low >= self.most else min(self.most, max(self.first, 2 * self.low))
        return None if self.high - self.low <= max(1, FINE * self.high) else (self.low + self.high) // 2

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to try."""
        return self.next() is None

    def tell(self, machines: int, enough: bool) -> None:
        """Note the result of a probe."""
        self.probed[machines] = enough
        if enough:
            self.high = machines
        else:
            self.low = machines

    def left(self) -> int:
        """Return about how many more probes are needed."""
        if self.next() is None:
            return 0
        if self.high is None:
            return GUESSED
        return ceil(log2((self.high - self.low) / max(1, FINE * self.high)))


def fewest(
    firsts: Mapping[Offer, int],
    enough: Callable[[Sequence[tuple[Offer, int]], int], Sequence[bool]],
    *,
    most: Mapping[Offer, int],
    least: Mapping[Offer, int] | None = None,
    prices: Mapping[Offer, float] | None = None,
) -> dict[Offer, Bracket[Offer]]:
    """Return what was found of each offer: `high` are the fewest machines, None where `most` are too few.

    `firsts` are tried first; fewer than `least` are taken to be too few. With `prices` of one machine, an offer is left
    as it is where even one machine more than are known to be too few costs more than another offer that is enough.

    `enough` returns for each pair of an offer and a number of machines whether that is enough. Its second argument is
    about the number of probes that may follow.
    """
    brackets = {offer: Bracket(offer, max(1, min(first, most[offer])), most[offer]) for offer, first in firsts.items()}
    for offer, bracket in brackets.items():
        bracket.low = min(least[offer], most[offer]) - 1 if least else 0
        bracket.price = prices[offer] if prices else 0.0
    while probes := list(_open(list(brackets.values()))):
        left = sum(bracket.left() - 1 for bracket, _ in probes)
        answers = enough([(bracket.offer, machines) for bracket, machines in probes], left)
        for (bracket, machines), answer in zip(probes, answers, strict=True):
            bracket.tell(machines, answer)
    return brackets


def _open(brackets: Sequence[Bracket[Offer]]) -> Iterator[tuple[Bracket[Offer], int]]:
    best = min((one.price * one.high for one in brackets if one.high is not None), default=inf)
    for bracket in brackets:
        if bracket.price * (bracket.low + 1) > best:
            continue
        if (machines := bracket.next()) is not None:
            yield bracket, machines
