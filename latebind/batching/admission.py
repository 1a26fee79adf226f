"""Who is let in: how much work waits in all queues, and whether a newcomer behind it could be in time."""

from collections.abc import Mapping

from latebind.batching.lane import Lane
from latebind.domain.actions import Outcome
from latebind.domain.events import Arrived


class Admission:
    """Counts those who wait, over all lanes, and the seconds of work that they are, at full depth.

    `at_once` workers share the work. Where it `sheds`, who cannot be in time is refused.
    """

    def __init__(self, lanes: Mapping[str, Lane], *, at_once: int, sheds: bool) -> None:
        self._lanes = lanes
        self._at_once = at_once
        self._sheds = sheds
        self.waiting = 0  # requests
        self.backlog = 0.0  # seconds

    def refusal(self, lane: Lane, event: Arrived, now: float, *, loads: float = 0.0) -> Outcome | None:
        """Say why these requests cannot be accepted, if so; `loads` are the seconds that their model takes to come."""
        count = len(event.requests)
        if len(lane) + count > lane.max_queued:
            return Outcome.REFUSED_FULL
        ahead = max(loads, (self.backlog + (count - 1) * lane.seconds_per_request) / self._at_once)
        if self._sheds and now + ahead + lane.least(max(event.inputs, default=1)) > event.deadline:
            return Outcome.REFUSED_LATE
        return None

    def entered(self, lane: Lane, count: int) -> None:
        """Count so many more who wait."""
        self.waiting += count
        self.backlog += count * lane.seconds_per_request

    def left(self, lane: Lane) -> None:
        """Count one less who waits."""
        self.waiting -= 1
        self.backlog = self.backlog - lane.seconds_per_request if self.waiting else 0.0

    def renew(self, lane: Lane, limit: int) -> None:
        """Count the work of a lane, in batches of `limit`, as launches are known to take by now."""
        seconds = lane.whole(limit) / limit
        self.backlog += len(lane) * (seconds - lane.seconds_per_request)
        lane.seconds_per_request = seconds

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        assert self.waiting == sum(map(len, self._lanes.values())), "the count of queued requests is off"
        work = sum(len(lane) * lane.seconds_per_request for lane in self._lanes.values())
        assert abs(self.backlog - work) <= 1e-6 * max(1.0, work), "the backlog does not fit the queues"
