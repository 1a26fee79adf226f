"""Work in place of time: the same whenever it is asked for, and more for more."""

import torch
from torch import nn

from latebind.program import measure
from tests.working import CALL, measured_by_work, work_of

ROWS = torch.zeros(8, 64)


def test_what_computes_more_takes_longer_and_always_as_long() -> None:
    narrow, wide = nn.Linear(64, 10), nn.Linear(64, 1_000)
    assert CALL < work_of(lambda: narrow(ROWS)) < work_of(lambda: wide(ROWS)) == work_of(lambda: wide(ROWS))


def test_time_is_measured_again_afterwards() -> None:
    before = measure.time_call
    with measured_by_work():
        assert measure.median_seconds(lambda: None) == CALL
    assert measure.time_call is before
