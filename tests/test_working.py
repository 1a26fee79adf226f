"""Work in place of time: the same whenever it is asked for, and more for more."""

from functools import partial

import torch
from torch import nn

from latebind.program import measure
from tests.working import CALL, measured_by_work

ROWS = torch.zeros(8, 64)


def test_what_computes_more_takes_longer_and_always_as_long() -> None:
    narrow, wide = nn.Linear(64, 10), nn.Linear(64, 1_000)
    with measured_by_work():
        seconds = [measure.time_call(partial(layer, ROWS)) for layer in (narrow, wide, wide)]
    assert CALL < seconds[0] < seconds[1] == seconds[2]


def test_time_is_measured_again_afterwards() -> None:
    before = measure.timed
    with measured_by_work():
        assert measure.median_seconds(lambda: None) == CALL
    assert measure.timed is before
