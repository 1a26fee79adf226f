"""Admission: whether a new request could be in time, behind the work that goes first. Pure."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from latebind.batching.lane import Lane
from latebind.batching.view import Models
from latebind.domain.actions import Action, Outcome
from latebind.domain.events import Arrived


class Loads(Protocol):
    """What admission has to know where models are loaded on demand."""

    def is_backing_off(self, name: str, now: float) -> bool:
        """Return whether a load of the model has failed, and it is too early for the next attempt."""

    def seconds_to(self, name: str, now: float) -> float:
        """Return the seconds until a model may start, if it is loaded right after the load that is under way."""

    @property
    def loading_model(self) -> str | None:
        """The name of the model that is being loaded."""

    def load_for_refused(self, name: str, requests: Sequence[int], now: float, actions: list[Action]) -> float | None:
        """Note requests that are refused only because their model is not in memory; load it where that pays.

        Returns the seconds until the model is expected, or None where it is not going to be loaded.
        """


class Admission:
    """Refuses requests where a queue is full and, where it `sheds`, requests that cannot be in time.

    `at_once` workers share the work of the requests that may start. Requests that wait for a model are work only once
    it is in memory. Of such models only the one that is being loaded counts: which is loaded after it is still open.
    """

    def __init__(
        self, lanes: Mapping[str, Lane], models: Models, loads: Loads | None, *, at_once: int, sheds: bool
    ) -> None:
        self._lanes = lanes
        self._models = models
        self._loads = loads
        self._at_once = at_once
        self._sheds = sheds

    def refusal(
        self, lane: Lane, event: Arrived, now: float, actions: list[Action]
    ) -> tuple[Outcome | None, float, float | None]:
        """Return why requests are refused, or None where they are accepted, then two figures.

        The first is the seconds until their model is expected, for refusals because of loading. The second is the slack
        in seconds, None where no slack was computed.
        """
        if self._loads is not None and self._loads.is_backing_off(event.model, now):
            return Outcome.NOT_LOADED, 0.0, None
        slack = self.slack(lane, event, now)
        if len(lane) + len(event.requests) > lane.max_queued:
            return Outcome.REFUSED_FULL, 0.0, slack
        if slack >= 0.0 or not self._sheds:
            return None, 0.0, slack
        if self._loads is not None and self.slack(lane, event, now, is_there=True) >= 0.0:
            seconds = self._loads.load_for_refused(event.model, event.requests, now, actions)
            if seconds is not None:
                return Outcome.REFUSED_LOADING, seconds, slack
        return Outcome.REFUSED_LATE, 0.0, slack

    def slack(self, lane: Lane, event: Arrived, now: float, *, is_there: bool = False) -> float:
        """Return the slack of requests in seconds, behind the load of their model and all work that goes first.

        With `is_there`, their model is taken to be in memory.
        """
        inputs = event.inputs
        longest = inputs[0] if len(inputs) == 1 else max(inputs, default=1)
        others = len(event.requests) - 1 - (lane.behind(event.priority) if event.priority else 0)
        loads = 0.0 if is_there or self._loads is None else self._loads.seconds_to(event.model, now)
        work = self._work_ahead(loads, event.model, now)
        own = (len(lane.held) + others) * lane.seconds_per_request / self._at_once
        ahead = max(loads, work / self._at_once) + own
        return event.deadline - (now + ahead + lane.own(longest, len(lane) + others))

    def _work_ahead(self, loads: float, model: str, now: float) -> float:
        """Return the seconds of work of requests that may start, now or before the new request's turn.

        `loads` are the seconds until the new request's own `model` is in memory.
        """
        work = self._models.seconds
        name = None if self._loads is None else self._loads.loading_model
        if self._loads is None or name is None or name == model:
            return work
        if self._loads.seconds_to(name, now) < max(loads, work / self._at_once):
            work += len(self._lanes[name].held) * self._lanes[name].seconds_per_request
        return work

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self._models.check()
        work = sum(len(lane.queue) * lane.seconds_per_request for lane in self._lanes.values())
        assert abs(self._models.seconds - work) <= 1e-6 * max(1.0, work), "the total of waiting work is off"
