"""Work instead of time: what is built by measuring is then the same on every machine, however busy it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from torch.utils.flop_counter import FlopCounterMode

from latebind.learned import compiled, latency, training_pool
from latebind.program import measure, tuning

CALL = 20e-6  # seconds that a call takes with nothing to compute
FLOPS = 50e9  # operations a second
ONCE = {
    measure: {"MIN_RUNS": 1, "MAX_RUNS": 1},
    latency: {"RUNS": latency.WARM_RUNS + 1},
    compiled: {"RUNS": 1},
    tuning: {"RUNS": 1, "FEWEST_RUNS": 1},
}


def work_of(call: Callable[[], object]) -> float:
    """Return the seconds that a call would take on one core of a common machine, by what torch computes in it."""
    with FlopCounterMode(display=False) as counted:
        call()
    return CALL + int(counted.get_total_flops()) / FLOPS


@contextmanager
def measured_by_work() -> Iterator[None]:
    """Have this process measure calls by their work; what runs while something else does is still measured by time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (measure, latency, training_pool, tuning):
            patch.setattr(module, "time_call", work_of)
        for module, runs in ONCE.items():  # each would tell the same
            for name, count in runs.items():
                patch.setattr(module, name, count)
        yield
