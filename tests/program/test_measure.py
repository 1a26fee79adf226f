"""What a build measures: runs that others interrupted do not count, and a machine that is too busy is named."""

from collections.abc import Callable
from functools import partial
from itertools import chain, cycle, repeat
from pathlib import Path
from time import process_time

import pytest
import torch
from torch import nn

from latebind.program import choose, measure
from latebind.program.build import build_program
from latebind.program.choose import compared
from latebind.program.measure import FEW_RUNS, TRIES, _rounds, spread_of

ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
LONG, SHORT = 5.0, 1e-9  # seconds that a run says it took: longer and shorter than the process was on a core meanwhile


def runs_of(*seconds: float) -> Callable[[], list[float]]:
    """Return a run that takes a little of the processor, and says that it took these seconds, one after another."""
    left = chain((SHORT, SHORT), seconds, repeat(SHORT))  # two warm up

    def run() -> list[float]:
        began = process_time()
        while process_time() <= began:
            pass
        return [next(left)]

    return run


@pytest.mark.parametrize(
    ("runs", "count"),
    [
        ([LONG, SHORT, LONG], [SHORT] * 20),
        ([LONG] * 1000, [LONG] * (TRIES * 20)),
        ([LONG] * (TRIES * 20 - 4), [LONG] * (TRIES * 20 - 4) + [SHORT] * 4),
        ([LONG] * (TRIES * 20 - 5), [SHORT] * 5),
    ],
    ids=["some are interrupted", "all are", "nearly all are", "enough are not"],
)
def test_runs_during_which_others_had_the_core_do_not_count_unless_too_few_are_left(
    runs: list[float], count: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MIN_RUNS", 5)
    assert _rounds(runs_of(*runs), 20) == [[seconds] for seconds in count]


def test_of_runs_that_take_long_there_are_few_and_the_last_that_warms_up_counts() -> None:
    taken = chain((9.0, 5.0, 6.0, 7.0), repeat(8.0))
    called = 0

    def run() -> list[float]:
        nonlocal called
        called += 1
        return [next(taken)]

    found = _rounds(run)
    assert found[0] == [5.0]
    assert called == 1 + len(found)
    assert len(found) <= TRIES * FEW_RUNS


def test_the_spread_is_that_of_the_most_unsteady_call() -> None:
    assert spread_of({"steady": [1.0] * 10, "unsteady": [1.0] * 5 + [4.0] * 5}) == 4.0
    assert spread_of({}) == 1.0


def test_a_build_on_a_machine_that_is_too_busy_is_told_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = cycle((1e-3, 4e-3))
    monkeypatch.setattr(measure, "timed", lambda call: (call(), next(seconds)))
    network = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    report = build_program(network, {"x": ROWS}, directory=tmp_path / "1", name="net", backends=["eager"])
    assert "differ by" in dict(report.rows())["warning"]


@pytest.mark.parametrize(
    ("times", "within", "attempts"),
    [
        ([1.12, 1.13, 1.14], False, 1),
        ([1.01, 1.02, 1.03], True, 1),
        ([place / 20 for place in range(10, 31)], False, choose.ATTEMPTS),  # its median is within the limit
    ],
    ids=["over the limit", "below it", "open"],
)
def test_what_is_not_sure_to_be_within_its_limit_is_measured_again_and_counts_as_over_it(
    times: list[float], within: bool, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "timed", lambda call: (None, SHORT * call()))
    monkeypatch.setattr(measure, "ALONE", 0.0)  # so every run counts
    monkeypatch.setattr(choose, "RUNS", 41)
    called = 0

    def other() -> float:
        nonlocal called
        called += 1
        return 1.0

    found = compared(partial(next, cycle(times)), other, 1.04)
    assert found.median in times
    assert (found.most <= 1.04) == within
    assert called == 2 + attempts * (2 + choose.RUNS)  # before any is timed, and two warm up
