"""What a build measures: runs that others interrupted do not count, and a machine that is too busy is named."""

from collections.abc import Callable
from itertools import chain, cycle, repeat
from pathlib import Path
from time import process_time

import pytest
import torch
from torch import nn

from latebind.domain.errors import TooBusy
from latebind.program import measure
from latebind.program.build import BuildReport, build_program
from latebind.program.measure import MIN_RUNS, STEADY, TRIES, Rounds, _uninterrupted

ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
LONG, SHORT = 5.0, 1e-9  # seconds that a run says it took: longer and shorter than the process was on a core meanwhile


def runs_of(*seconds: float) -> Callable[[], list[float]]:
    """Return a run that takes a little of the processor, and says that it took these seconds, one after another."""
    left = chain(seconds, repeat(SHORT))

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
    assert _uninterrupted(runs_of(*runs), 20) == [[seconds] for seconds in count]


@pytest.mark.parametrize(
    ("later", "counts"), [([1.0] * 20, [1.0] * 20), ([1.0, 5.0] * 10, [1.0, 9.0] * 10 + [1.0, 5.0] * 10)]
)
def test_a_quiet_moment_counts_without_the_unsteady_one_before_it(
    later: list[float], counts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 99.0])  # one more look than at the first rounds
    monkeypatch.setattr(measure, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(measure, "interleaved", lambda calls, runs: Rounds({"one": [1.0, 9.0] * 10}))
    monkeypatch.setattr(measure, "_in_turn", lambda calls, runs: Rounds({"one": later}))
    assert measure.compared({}, 20) == Rounds({"one": counts})


def test_the_quickest_is_known_where_the_limits_of_medians_are_apart() -> None:
    quick, slow = [1.0 + 0.01 * i for i in range(20)], [1.5 + 0.01 * i for i in range(20)]
    assert Rounds({"quick": quick, "slow": slow}).is_decided
    assert not Rounds({"one": quick, "other": [s + 0.02 for s in quick]}).is_decided
    assert not Rounds({"one": [1.0, 1.0, 9.0] * 10}).is_decided, "too unsteady to say"


def test_the_spread_is_that_of_the_most_unsteady_call() -> None:
    rounds = Rounds({"steady": [1.0] * 10, "unsteady": [1.0] * 5 + [4.0] * 5})
    assert rounds.spread == 4.0
    assert STEADY < 4.0


@pytest.fixture
def unsteady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which every other run takes four times as long."""
    seconds = cycle((1e-3, 4e-3))

    def timed(call: Callable[[], object]) -> tuple[object, float]:
        return call(), next(seconds)

    monkeypatch.setattr(measure, "timed", timed)
    monkeypatch.setattr(measure, "PATIENCE", 0.01)
    monkeypatch.setattr("latebind.program.build.FEWEST_RUNS", MIN_RUNS)


def build(folder: Path, *, trust_timings: bool) -> BuildReport:
    network = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    return build_program(
        network, {"x": ROWS}, directory=folder, name="net", backends=["eager"], trust_timings=trust_timings
    )


@pytest.mark.usefixtures("unsteady")
def test_a_build_on_a_machine_that_is_too_busy_says_so_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TooBusy, match=r"differ by [\d.]+ times: other processes .* quiet machine, or with --trust"):
        build(tmp_path / "1", trust_timings=False)
    assert not (tmp_path / "1").exists()


@pytest.mark.usefixtures("unsteady")
def test_timings_that_are_trusted_all_the_same_are_told_with_a_warning(tmp_path: Path) -> None:
    report = build(tmp_path / "1", trust_timings=True)
    assert "differ by" in dict(report.rows())["warning"]
