"""Stages that are read of files: in which order, and how many at a time."""

from collections.abc import Callable
from functools import partial
from threading import Barrier
from typing import Any

from latebind.program.arrays import pass_through
from latebind.program.stage_files import read_all


def test_stages_are_read_two_at_a_time_and_come_in_order() -> None:
    both = Barrier(2, timeout=30.0)  # passed by two that wait at the same time

    def read(stage: Callable[..., Any]) -> Callable[..., Any]:
        both.wait()
        return stage

    stages = [partial(pass_through) for _ in range(6)]
    assert all(
        made is stage for made, stage in zip(read_all([partial(read, one) for one in stages]), stages, strict=True)
    )
    assert read_all([lambda: pass_through]) == [pass_through]
    assert read_all([]) == []
