"""Who is let in: how much work goes first, and whether a newcomer behind it could be in time."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from latebind.batching.lane import Lane
from latebind.batching.view import Models
from latebind.domain.actions import Action, Outcome
from latebind.domain.events import Arrived


class Loads(Protocol):
    """What is known of models that come to memory while requests come."""

    def is_backing_off(self, name: str, now: float) -> bool:
        """Tell whether a load has failed, and it is too early to try again."""

    def seconds_to(self, name: str, now: float) -> float:
        """Return the seconds until a model may be there: behind what is on its way, if it is loaded next."""

    @property
    def loading_model(self) -> str | None:
        """The model that is on its way."""

    def load_for_refused(self, name: str, requests: Sequence[int], now: float, actions: list[Action]) -> float | None:
        """Hear that requests are refused for want of their model alone, and have it loaded where that pays.

        Returns the seconds until it is expected, or None where it is not going to be loaded.
        """


class Admission:
    """Where it `sheds`, who cannot be in time is refused.

    `at_once` workers share the work of those who may begin. Others wait for their model, and are work only from when
    that is there: of these only the one that is on its way counts, for which of the others comes next is still open.
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
        """Say why requests cannot be accepted, if so, the seconds until their model is expected where that is why.

        The last is what they have to spare.
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
        """Return the seconds that requests have to spare, behind their model and all who go first.

        Where `is_there`, their model is taken to be in memory.
        """
        inputs = event.inputs
        longest = inputs[0] if len(inputs) == 1 else max(inputs, default=1)
        others = len(event.requests) - 1 - (lane.behind(event.priority) if event.priority else 0)
        comes = 0.0 if is_there or self._loads is None else self._loads.seconds_to(event.model, now)
        work = self._work_before(comes, event.model, now)
        own = (len(lane.held) + others) * lane.seconds_per_request / self._at_once
        ahead = max(comes, work / self._at_once) + own
        return event.deadline - (now + ahead + lane.own(longest, len(lane) + others))

    def _work_before(self, comes: float, model: str, now: float) -> float:
        """Return the seconds of work that others are who may begin, or whose model is there before one's own turn."""
        work = self._models.seconds
        name = None if self._loads is None else self._loads.loading_model
        if self._loads is None or name is None or name == model:
            return work
        if self._loads.seconds_to(name, now) < max(comes, work / self._at_once):
            work += len(self._lanes[name].held) * self._lanes[name].seconds_per_request
        return work

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self._models.check()
        work = sum(len(lane.queue) * lane.seconds_per_request for lane in self._lanes.values())
        assert abs(self._models.seconds - work) <= 1e-6 * max(1.0, work), "the work that waits does not fit the queues"
