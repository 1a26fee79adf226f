"""Admission: whether a new request could be in time, behind the work that goes first. Pure."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol

from latebind.batching.lane import Lane
from latebind.batching.queue import Turn
from latebind.batching.view import Models
from latebind.batching.worker import Crew
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

    A request waits for the work that the policy serves before it, and is refused where that or its own leaves it late.
    It may delay those that are served after it as long as they are in time themselves, for they have been accepted; it
    is refused where one of them would be late for it.

    The workers share the work of the requests that may start. Requests that wait for a model are work only once it is
    in memory. Of such models only the one that is being loaded counts: which is loaded after it is still open.
    """

    def __init__(
        self, lanes: Mapping[str, Lane], models: Models, loads: Loads | None, crew: Crew, *, sheds: bool
    ) -> None:
        self._lanes = lanes
        self._models = models
        self._loads = loads
        self._crew = crew
        self._at_once = crew.at_once
        self._sheds = sheds

    def refusal(
        self, lane: Lane, event: Arrived, now: float, actions: list[Action]
    ) -> tuple[Outcome | None, float, float | None]:
        """Return why requests are refused, or None where they are accepted, then two figures.

        The first is the seconds until their model is expected, for refusals because of loading. The second is the slack
        in seconds, None where no slack was computed: their own, or that of another request that they would make late.
        """
        if self._loads is not None and self._loads.is_backing_off(event.model, now):
            return Outcome.NOT_LOADED, 0.0, None
        slack = self.slack(lane, event, now)
        if len(lane) + len(event.requests) > lane.max_queued:
            return Outcome.REFUSED_FULL, 0.0, slack
        if slack >= 0.0 or not self._sheds:
            spare = self._spare(lane, event, now) if self._sheds else inf
            if spare >= 0.0:
                lane.accepted()
                return None, 0.0, slack
            slack = spare
        elif self._loads is not None and self.slack(lane, event, now, is_there=True) >= 0.0:
            seconds = self._loads.load_for_refused(event.model, event.requests, now, actions)
            if seconds is not None:
                return Outcome.REFUSED_LOADING, seconds, slack
        return Outcome.REFUSED_LATE, 0.0, slack

    def doubts(self, lane: Lane, event: Arrived, now: float) -> bool:
        """Return whether requests were refused for the estimate of their model alone, and it is doubted from now on.

        No launch corrects an estimate while nothing of the model runs.
        """
        if not lane.open and self.slack(lane, event, now, is_there=True) >= 0.0:  # it is refused for the load
            return False
        alone = event.deadline > self._start(lane, event, self._turn(lane, event, now), now, is_there=True)
        return alone and not any(entry.spec is lane.spec for entry in self._crew.started()) and lane.doubts(now)

    def slack(self, lane: Lane, event: Arrived, now: float, *, is_there: bool = False) -> float:
        """Return the slack of requests in seconds, behind the load of their model and all work that goes first.

        With `is_there`, their model is taken to be in memory.
        """
        inputs = event.inputs
        longest = inputs[0] if len(inputs) == 1 else max(inputs, default=1)
        turn = self._turn(lane, event, now)
        before = len(event.requests) - 1
        if len(lane):
            before += sum(lane.ahead(self._place(event, now), event.priority))
        return event.deadline - (self._start(lane, event, turn, now, is_there=is_there) + lane.own(longest, before))

    def _place(self, event: Arrived, now: float) -> float:
        return self._models.order.place(event.deadline, now)

    def _turn(self, lane: Lane, event: Arrived, now: float) -> Turn:
        return lane.turn(event.deadline, now, event.priority, event.requests[0])

    def _start(self, lane: Lane, event: Arrived, turn: Turn, now: float, *, is_there: bool) -> float:
        """Return the time at which the last of new requests may start."""
        loads = 0.0 if is_there or self._loads is None else self._loads.seconds_to(event.model, now)
        held = lane.ahead(self._place(event, now), event.priority)[1] if lane.held else 0
        own = (held + len(event.requests) - 1) * lane.seconds_per_request
        work = self._work_ahead(loads, lane, turn, now)
        return now + max(loads, work / self._at_once) + own / self._at_once

    def _work_ahead(self, loads: float, lane: Lane, turn: Turn, now: float) -> float:
        """Return the seconds of work of requests that may start, now or before this turn, and go first.

        `loads` are the seconds until the new request's own model is in memory.
        """
        work = self._models.backlog.before(turn) + lane.pulled(turn)
        name = None if self._loads is None else self._loads.loading_model
        if self._loads is None or name is None or name == lane.spec.name:
            return work
        if self._loads.seconds_to(name, now) < max(loads, work / self._at_once):
            other = self._lanes[name]
            work += other.ahead(turn[0], 0)[1] * other.seconds_per_request
        return work

    def _spare(self, lane: Lane, event: Arrived, now: float) -> float:
        """Return the slack of a request that new ones would make late, below 0; infinite where there is none."""
        if not lane.open:
            return inf
        work = len(event.requests) * lane.seconds_per_request
        return self._models.backlog.spare(self._turn(lane, event, now), work, now)

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self._models.check()
