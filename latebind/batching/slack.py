"""Slack prediction (LazyBatching, section IV-C): can waiting requests be let past the started ones, all in time?"""

from collections.abc import Iterable, Sequence

from latebind.batching.estimate import Estimate
from latebind.batching.request import Request
from latebind.batching.table import SubBatch
from latebind.batching.view import ModelView, WorkView


class Slack:
    """The elapsed time and the remaining work by the profile, at the batch size that all requests of a model will have.

    A request that is late already does not count: it would keep all others waiting for nothing.
    """

    def length(self, request: Request) -> int | None:
        """Return how many steps the answer of a request has, None where that is not known beforehand."""
        del request
        return None

    def all_in_time(self, view: WorkView, model: ModelView, newcomers: Sequence[Request], now: float) -> bool:
        """Return whether all are in time if `newcomers` catch up with the newest sub-batch.

        If that sub-batch belongs to another model, they run before it instead.
        """
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
        """Return whether all who would be in time alone are in time at `ends`."""
        return all(
            request.deadline >= ends
            or now + model.estimate.whole(1, request.inputs, self.length(request)) > request.deadline
            for request in newcomers
        )

    def _below_in_time(self, view: WorkView, entries: Sequence[SubBatch], now: float, start: float) -> bool:
        """Return whether sub-batches below, which resume at `start`, stay in time if they are in time now."""
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
        """Return the expected answer length of a started request, given the steps that it has already."""
        length = self.length(request)
        return estimate.outputs_after(request.steps) if length is None and request.steps else length

    def _longest(self, requests: Iterable[Request]) -> int | None:
        lengths = [self.length(request) for request in requests]
        known = [length for length in lengths if length is not None]
        return max(known) if known else None
