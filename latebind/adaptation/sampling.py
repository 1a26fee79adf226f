"""Which requests show what learned caches do, and which teach them. Pure.

A request that ran to the end of the network can be learned from for nothing: its answer is the base model's. One that
left early has to be run again to be of use, so few of those are taken, and stand for more. Whether a request shows or
teaches is drawn without looking at whether it left early, or what is shown would not hold for all requests.
"""

from collections.abc import Callable
from dataclasses import dataclass

SHOWING = 0.75  # of the requests that may be run again; the others teach
MOST_SHOWING = 0.5  # of all requests: while few leave early, few have to be run again
MEMORY = 200  # requests over which the share that leaves early is averaged


@dataclass(frozen=True, slots=True)
class Draw:
    """What one request is used for. It `shows`, or it teaches and stands for `weight` requests like it."""

    shows: bool
    weight: float = 1.0


class Sampler:
    """Draws for one model; about a share `again` of all requests has to be run again, at most. `random`: 0 to 1."""

    def __init__(self, again: float, random: Callable[[], float]) -> None:
        self._again = again
        self._random = random
        self._early = 0.5

    def draw(self, early: bool) -> Draw | None:
        """Return what to use a request for that left early or ran to the end; None for nothing."""
        shows = min(MOST_SHOWING, SHOWING * self._again / max(self._early, 1e-9))
        teaches = min(1.0 - shows, (1.0 - SHOWING) * self._again / max(self._early, 1e-9)) if early else 1.0 - shows
        self._early += (early - self._early) / MEMORY
        drawn = self._random()
        if drawn < shows:
            return Draw(shows=True)
        return Draw(shows=False, weight=1.0 / teaches) if drawn < shows + teaches else None
