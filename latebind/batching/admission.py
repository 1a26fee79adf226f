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

    def slack(self, lane: Lane, event: Arrived, now: float, *, loads: float = 0.0) -> float:
        """Return the seconds that requests have to spare, behind all who go first; `loads` until their model comes."""
        others = len(event.requests) - 1 - (lane.behind(event.priority) if event.priority else 0)
        ahead = max(loads, (self.backlog + others * lane.seconds_per_request) / self._at_once)
        return event.deadline - (now + ahead + lane.least(max(event.inputs, default=1)))

    def refusal(self, lane: Lane, count: int, slack: float) -> Outcome | None:
        """Say why `count` requests cannot be accepted, if so."""
        if len(lane) + count > lane.max_queued:
            return Outcome.REFUSED_FULL
        if self._sheds and slack < 0.0:
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
        lane.heard = lane.estimate.pace.heard

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        assert self.waiting == sum(map(len, self._lanes.values())), "the count of queued requests is off"
        work = sum(len(lane) * lane.seconds_per_request for lane in self._lanes.values())
        assert abs(self.backlog - work) <= 1e-6 * max(1.0, work), "the backlog does not fit the queues"
