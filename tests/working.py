"""Work instead of time: what is built by measuring is then the same on every machine, however busy it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from torch.utils.flop_counter import FlopCounterMode

from latebind.learned import latency, training
from latebind.program import measure, tuning

CALL = 20e-6  # seconds that a call takes with nothing to compute
FLOPS = 50e9  # operations a second


def work_of(call: Callable[[], object]) -> float:
    """Return the seconds that a call would take on one core of a common machine, by what torch computes in it."""
    with FlopCounterMode(display=False) as counted:
        call()
    return CALL + int(counted.get_total_flops()) / FLOPS


@contextmanager
def measured_by_work() -> Iterator[None]:
    """Have this process measure calls by their work; what runs while something else does is still measured by time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (measure, latency, training, tuning):
            patch.setattr(module, "time_call", work_of)
        for runs in ("MIN_RUNS", "MAX_RUNS"):
            patch.setattr(measure, runs, 1)  # each would tell the same
        yield
