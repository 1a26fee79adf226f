"""Faults on purpose, in small, against real servers; and what the figures mean."""

import pytest

from latebind.domain.actions import Outcome, Reply, Run
from latebind.domain.eventlog import Entry
from latebind.domain.events import Arrived, StageDone
from research.faults import changes, mixed
from tests.research.conftest import quiet


def test_what_the_seventh_waits_for_counts_in_stages_that_end_after_the_others_have_left() -> None:
    first, seventh = Run(0, "slow", 0, (1,), (0,)), Run(0, "slow", 0, (7,), (1,))
    replies = [Reply(i, "slow", outcome, 1, 0.0, 1.0) for i, outcome in ((1, Outcome.CANCELLED), (7, Outcome.ANSWERED))]
    entries = [
        Entry(0.0, Arrived("slow", 60.0, (1,), (0,)), (first,)),
        Entry(2.0, StageDone(0), (Run(0, "slow", 1, (1,), (0,)),)),
        Entry(3.5, Arrived("slow", 60.0, (7,), (1,)), ()),
        Entry(4.0, StageDone(0), (replies[0], seventh)),
        Entry(6.0, StageDone(0), (replies[1],)),
    ]
    assert changes.behind_others(entries, [3.0]) == [changes.Behind(1, 1.0, 2.0)]
    assert changes.behind_others(entries, [1.0]) == [changes.Behind(2, 3.0, 2.0)]


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_lends")
def test_a_server_that_is_told_to_end_answers_everybody_and_leaves_nothing() -> None:
    row = changes.terminate(1, quiet, in_flight=8)
    assert (row["answered"], row["not answered"], row["exit codes"], row["processes left"]) == (8, 0, "0: 1", 0)


@pytest.mark.slow
def test_whoever_comes_after_clients_that_left_does_not_wait_for_them() -> None:
    row = changes.hang_up(3, quiet, layers=2, repeats=512)
    assert int(str(row["stages"])) > 1
    assert row["most"] == 1  # behind all six it would be one for each of them all


def test_what_clients_saw_of_faults_is_counted_by_what_they_were_promised() -> None:
    report = mixed.Report(mixed.Fault.KILLED)
    for call in (
        mixed.Call("twice", 0.0, 0.5, 200),
        mixed.Call("twice", 0.0, 0.5, 200, right=False),
        mixed.Call("twice", 0.0, 1.9, 504),
        mixed.Call("twice", 0.0, 2.1, 504),
        mixed.Call("twice", 0.0, 0.1, 500),
    ):
        mixed._note(report, call)
    assert (report.wrong, report.late, report.longest) == (1, 1, 2.1)
    assert mixed.totals(report.statuses) == {"answered": 2, "refused": 2, "failed": 1}


@pytest.mark.slow
def test_a_stage_that_never_returns_and_a_row_that_raises_keep_nobody_waiting() -> None:
    rows = mixed.rows([mixed.Fault.STUCK, mixed.Fault.POISONED], 1, quiet, pause=0.2, patience=0.2)
    assert [row["fault"] for row in rows] == [mixed.Fault.STUCK, mixed.Fault.POISONED]
    for row in rows:
        assert (row["wrong"], row["failed"], row["replays that differ"]) == (0, 0, 0)
        assert int(str(row["answered"])) > 0
    assert not str(rows[1]["poisoned rows got"]).startswith(("0", "200"))
