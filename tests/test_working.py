"""Work in place of time: the same whenever it is asked for, and more for more."""

from functools import partial

import torch
from torch import Tensor, nn

from latebind.program import measure
from tests.working import CALL, measured_by_work

ROWS = torch.zeros(8, 64)


def test_what_computes_more_takes_longer_and_always_as_long() -> None:
    narrow, wide = nn.Linear(64, 10), nn.Linear(64, 1_000)
    with measured_by_work():
        seconds = [measure.time_call(partial(layer, ROWS)) for layer in (narrow, wide, wide)]
    assert CALL < seconds[0] < seconds[1] == seconds[2]


def test_stages_in_a_chain_are_measured_by_their_work_too() -> None:
    narrow, wide = nn.Linear(64, 10), nn.Linear(10, 1_000)

    def first(rows: Tensor) -> tuple[Tensor]:
        return (narrow(rows),)

    def second(rows: Tensor) -> tuple[Tensor]:
        return (wide(rows),)

    with measured_by_work():
        profiles = [measure.profile_stages((first, second), (ROWS,), (1, 8)) for _ in range(2)]
        alone = measure.time_call(partial(narrow, ROWS))
    assert profiles[0] == profiles[1]
    assert profiles[0][0].at(8) == alone


def test_time_is_measured_again_afterwards() -> None:
    before = measure.timed
    with measured_by_work():
        assert measure.median_seconds(lambda: None) == CALL
    assert measure.timed is before
