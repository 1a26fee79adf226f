"""An upper bound on answers in time for any policy, even one that knows all arrivals and exits and may preempt at will.

It is for one worker on which a request takes its share of the cheapest batches at least. All deadlines are equally long
after their requests. So the largest set that can be in time, run in order of arrival, is the best there is, preempted
or not. It is found by adding one request after another and, whenever the last one is late, removing the request whose
removal helps most (Kise, Ibaraki and Mine, 1978).
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf

from latebind.domain.config import ServedModel


def least_work(whole: ServedModel, exits: ServedModel) -> tuple[float, float]:
    """Return the least work of a request, in units of what one takes alone without exits.

    The first figure is for a request that leaves at the first exit, the second for one that runs to the end.
    """
    alone, ends = whole.costs.remaining(0, 1), list(accumulate(_least(exits)))
    first = min([stage for stage in exits.costs.lookups if exits.costs.hit_rates.get(stage)], default=-1)
    return ends[first] / alone, min(ends[-1], sum(_least(whole))) / alone


def _least(served: ServedModel) -> list[float]:
    sizes = range(1, served.spec.max_batch + 1)
    return [min(served.costs.step(stage, n) / n for n in sizes) for stage in range(served.spec.stages)]


def most_in_time(times: Sequence[float], work: Sequence[float], allowed: float) -> int:
    """Return how many requests that arrive at `times` (ascending) and take `work` each can end within `allowed`."""
    chosen = _Line(allowed)
    for came, seconds in zip(times, work, strict=True):
        if seconds <= allowed:
            chosen.add(came, seconds)
    return len(chosen.came)


class _Line:
    """A sequence of requests that run one after another, all of them in time."""

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self.came: list[float] = []
        self._work: list[float] = []
        self._ends: list[float] = []

    def add(self, came: float, work: float) -> None:
        """Append a request; if it is late, remove the one whose removal helps most."""
        self.came.append(came)
        self._work.append(work)
        self._work_on(len(self._ends))
        if self._ends[-1] > came + self._allowed:
            self._leave_out(self._least_wanted())

    def _work_on(self, first: int) -> None:
        del self._ends[first:]
        end = self._ends[-1] if self._ends else -inf
        for came, work in zip(self.came[first:], self._work[first:], strict=True):
            end = max(came, end) + work
            self._ends.append(end)

    def _least_wanted(self) -> int:
        """Return the index of the request without which the last one would end soonest."""
        best, most, waits = len(self.came) - 1, -1.0, inf
        for place in range(len(self.came) - 1, -1, -1):
            before = self._ends[place - 1] if place else -inf
            saved = min(self._ends[place] - max(before, self.came[place]), waits)
            if saved > most:
                best, most = place, saved
            waits = min(waits, max(0.0, before - self.came[place]))
            if not waits:  # the worker rested before: nobody earlier holds the last one up
                break
        return best

    def _leave_out(self, place: int) -> None:
        del self.came[place], self._work[place]
        self._work_on(place)
