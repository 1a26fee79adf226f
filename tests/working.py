"""Work instead of time: what is built by measuring is then the same on every machine, however busy it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from torch.utils.flop_counter import FlopCounterMode

from latebind.learned import compiled, latency
from latebind.program import choose, measure

CALL = 20e-6  # seconds that a call takes with nothing to compute
FLOPS = 50e9  # operations a second
Returned = TypeVar("Returned")
ONCE = {
    measure: {"MIN_RUNS": 1, "MAX_RUNS": 1},
    latency: {"RUNS": latency.WARM_RUNS + 1},
    compiled: {"RUNS": 1},
    choose: {"RUNS": 1, "FEWEST_RUNS": 1},
}


def timed_by_work(call: Callable[[], Returned]) -> tuple[Returned, float]:
    """Return what a call returns, and the seconds that it would take on one core by what torch computes in it."""
    with FlopCounterMode(display=False) as counted:
        found = call()
    return found, CALL + int(counted.get_total_flops()) / FLOPS


@contextmanager
def measured_by_work() -> Iterator[None]:
    """Have this process measure calls by their work; what runs while something else does is still measured by time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "timed", timed_by_work)
        for module, runs in ONCE.items():  # each would tell the same
            for name, count in runs.items():
                patch.setattr(module, name, count)
        yield
