"""Near and far deadlines together, on a server with admission and on one without: whom it refuses for nothing.

Both get the same requests at the same times, in turn, while the other is idle. A request is refused for nothing if it
is refused by the one and in time at the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from latebind.bench.client import poisson
from latebind.bench.ledger.books import End
from latebind.bench.ledger.overload import ramp
from latebind.bench.ledger.play import Played, Target, play
from latebind.bench.ledger.questions import Mix, Questions
from latebind.bench.rounds import Progress
from latebind.cli.console import Rows

NEVER_REFUSES = "[policy]\nshed = false\n"  # the configuration of the server without admission
DEADLINES = (0.1, 0.3, 2.0, 30.0)
BLOCKS = 3  # of the seconds of a step of the ramp
FOR_NOTHING = 0.01  # the largest share of requests that may be refused for nothing


@dataclass(frozen=True, slots=True)
class Mixed:
    """What came of so much `load`, a multiple of the peak, with admission and without."""

    load: float
    played: Played
    free: Played

    @property
    def for_nothing(self) -> float:
        """The share of requests that were refused and would have been in time."""
        refused = set(self.played.ledger.times[End.REFUSED].numbers)
        return len(refused & set(self.free.ledger.good.numbers)) / self.played.ledger.asked_count


async def run(
    target: Target, free: Target, mix: Mix, *, loads: Sequence[float], seconds: float, tell: Progress
) -> list[Mixed]:
    """Find the peak goodput of `target`, then play each load to both."""
    mix = replace(mix, leave=0.0, break_off=0.0)
    steps = await ramp(target, Questions(mix), count(1 << 20), seconds, lambda text, share: tell(text, share / 2))
    peak = max(step.goodput for step in steps)
    questions, found = Questions(replace(mix, deadlines=DEADLINES)), []
    for place, load in enumerate(loads):
        tell(f"{load:g} of the peak", (1.0 + place / len(loads)) / 2)
        asked = load * peak
        requests = max(1, round(asked * BLOCKS * seconds))
        both = [await play(one, questions, poisson(asked, Random(mix.seed)), requests) for one in (target, free)]
        found.append(Mixed(load, *both))
    return found


def rows(found: Sequence[Mixed]) -> Rows:
    """Return a row for each load."""
    return [
        {
            "of the peak": f"{one.load:g}",
            "requests": one.played.ledger.asked_count,
            "refused": f"{len(one.played.ledger.times[End.REFUSED].numbers) / one.played.ledger.asked_count:.2%}",
            "for nothing": f"{one.for_nothing:.2%}",
            "in time": f"{len(one.played.ledger.good.numbers) / one.played.ledger.asked_count:.2%}",
            "without admission": f"{len(one.free.ledger.good.numbers) / one.free.ledger.asked_count:.2%}",
        }
        for one in found
    ]


def verdict(found: Sequence[Mixed]) -> list[str]:
    """Return what did not hold."""
    return [
        f"at {one.load:g} of the peak {one.for_nothing:.2%} of the requests were refused for nothing"
        for one in found
        if one.for_nothing > FOR_NOTHING
    ]
