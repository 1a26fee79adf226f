"""How long something takes, in CPU time and by the clock; and what a scheduler runs next."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median

from latebind.domain.actions import Action, Run

SKIPPED = 0.1  # of the events, the first: what is kept by size of batch is worked out then


@dataclass(slots=True)
class Watch:
    """Durations of what it times, in CPU seconds of the thread and by the clock; reading both costs 0.2 us."""

    times: list[tuple[float, float]] = field(default_factory=list)
    begun: tuple[float, float] = (0.0, 0.0)

    def begin(self) -> None:
        """Read both clocks."""
        self.begun = time.thread_time(), time.perf_counter()

    def end(self) -> tuple[float, float]:
        """Return what was taken since."""
        return time.thread_time() - self.begun[0], time.perf_counter() - self.begun[1]

    def microseconds(self) -> str:
        """Return the mean CPU time, and the median by the clock; a dash if nothing was measured."""
        if not self.times:
            return "-"
        cpu, clock = zip(*self.times[int(SKIPPED * len(self.times)) :], strict=True)
        return f"{fmean(cpu) * 1e6:.1f} ({median(clock) * 1e6:.1f})"


def launched(actions: Iterable[Action]) -> Run:
    """Return the run that these actions start."""
    return next(action for action in actions if isinstance(action, Run))
