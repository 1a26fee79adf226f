"""How much of a deadline is left after the work to come: may waiting requests be let past those that have begun?

LazyBatching, section IV-C: `Conservative` is equations 1 and 2, `Precise` the oracle that knows the length of each
answer. `Profiled` is the default of this product: what remains, on the measured curve of the batch as it will be.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol

from latebind.batching.estimate import Estimate
from latebind.batching.request import Request
from latebind.batching.table import SubBatch
from latebind.batching.view import ModelView, WorkView


class Slack(Protocol):
    """Predicts who will be in time."""

    def most(self, view: WorkView, model: ModelView, waiting: Sequence[Request], now: float) -> int:
        """Return how many of `waiting`, the first of them, may begin now with everybody in time, they included."""


class Conservative:
    """Equation 2: all that run together are taken to run one after another, each for as long as it takes alone.

    What a request had waited counts until it first ran; its work counts whole, however much of it is done.
    """

    def most(self, view: WorkView, model: ModelView, waiting: Sequence[Request], now: float) -> int:
        """Return how many of `waiting` leave nobody with negative slack."""
        work, left = 0.0, inf
        for entry in view.entries:
            of = view.model_of(entry)
            for request in entry.members.values():
                work += of.estimate.whole(1, request.inputs)
                left = min(left, request.deadline - request.started)
        for count, request in enumerate(waiting):
            work += model.estimate.whole(1, request.inputs)
            left = min(left, request.deadline - now)
            if work > left:
                return count
        return len(waiting)


class Profiled:
    """Elapsed time and what remains by the profile, all of a model at the batch size that they will have together.

    A request that is late already has no say: it would keep everybody else waiting for nothing.
    """

    def __init__(self, length: Callable[[Request], int | None] = lambda request: None) -> None:
        self._length = length

    def most(self, view: WorkView, model: ModelView, waiting: Sequence[Request], now: float) -> int:
        """Return the most of `waiting` that keep everybody in time, found by halving."""
        least, most = 0, len(waiting)
        while least < most:
            middle = (least + most + 1) // 2
            if self.all_in_time(view, model, waiting[:middle], now):
                least = middle
            else:
                most = middle - 1
        return least

    def all_in_time(self, view: WorkView, model: ModelView, newcomers: Sequence[Request], now: float) -> bool:
        """Tell whether all are in time if these catch up with the newest sub-batch, or run first if it is another's."""
        estimate = model.estimate
        inputs = max(request.inputs for request in newcomers)
        if not view.entries or view.entries[-1].spec is not model.spec:
            ends = now + estimate.whole(len(newcomers), inputs, self._longest(newcomers))
            return self._can_wait(model, newcomers, now, ends) and self._below_in_time(view, view.entries, now, ends)
        top = view.entries[-1]
        running, together = len(top.members), [*top.members.values(), *newcomers]
        caught_up = now + estimate.between(len(newcomers), top.stage, top.step, inputs)
        longest = max(top.inputs, inputs)
        ends = caught_up + estimate.rest(len(together), top.stage, top.step, longest, self._longest(together))
        if not self._can_wait(model, newcomers, now, ends):
            return False
        for request in top.members.values():
            place = top.stage, request.steps or top.step, longest, self._left(estimate, request)
            in_time = now + estimate.rest(running, *place) <= request.deadline
            if in_time and caught_up + estimate.rest(len(together), *place) > request.deadline:
                return False
        return self._below_in_time(view, view.entries[:-1], now, ends)

    def _can_wait(self, model: ModelView, newcomers: Sequence[Request], now: float, ends: float) -> bool:
        """Tell whether nobody is late at `ends` who would be in time alone."""
        return all(
            request.deadline >= ends
            or now + model.estimate.whole(1, request.inputs, self._length(request)) > request.deadline
            for request in newcomers
        )

    def _below_in_time(self, view: WorkView, entries: Sequence[SubBatch], now: float, start: float) -> bool:
        """Tell whether those below, who go on when the ones above have ended, are in time if they are in time now."""
        ends = start
        for entry in reversed(entries):
            rest = self._rest(view.model_of(entry), entry)
            ends += rest
            if any(r.deadline < ends and r.deadline >= now + rest for r in entry.members.values()):
                return False
        return True

    def _rest(self, model: ModelView, entry: SubBatch) -> float:
        steps = min(request.steps for request in entry.members.values()) or entry.step
        longest = self._longest(entry.members.values())
        return model.estimate.rest(len(entry.members), entry.stage, steps, entry.inputs, longest)

    def _left(self, estimate: Estimate, request: Request) -> int | None:
        """Return how long the answer of one that runs is taken to be: who has written for long writes a long one."""
        length = self._length(request)
        return estimate.outputs_after(request.steps) if length is None and request.steps else length

    def _longest(self, requests: Iterable[Request]) -> int | None:
        lengths = [self._length(request) for request in requests]
        known = [length for length in lengths if length is not None]
        return max(known) if known else None


class Precise(Profiled):
    """The oracle: it knows how long each answer will be."""

    def __init__(self) -> None:
        super().__init__(lambda request: request.outputs or None)
