"""Faults on purpose, in small, against real servers; and what the figures mean."""

import pytest

from research.faults import mixed
from tests.research.conftest import quiet


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_lends")
def test_a_server_that_is_told_to_end_answers_everybody_and_leaves_nothing() -> None:
    row = mixed.terminate(1, quiet, in_flight=8)
    assert (row["answered"], row["not answered"], row["exit codes"], row["processes left"]) == (8, 0, "0: 1", 0)


def test_what_clients_saw_of_faults_is_counted_by_what_they_were_promised() -> None:
    report = mixed.Report(mixed.Fault.KILLED)
    for call in (
        mixed.Call(0.0, 0.5, 200),
        mixed.Call(0.0, 0.5, 200, right=False),
        mixed.Call(0.0, 1.9, 504),
        mixed.Call(0.0, 2.1, 504),
        mixed.Call(0.0, 0.1, 500),
    ):
        mixed._note(report, call)
    assert (report.wrong, report.late, report.longest) == (1, 1, 2.1)
    assert mixed.totals(report.statuses) == {"answered": 2, "refused": 2, "failed": 1}


@pytest.mark.slow
def test_a_stage_that_never_returns_and_a_row_that_raises_keep_nobody_waiting() -> None:
    rows = mixed.rows([mixed.Fault.STUCK, mixed.Fault.POISONED], 1, quiet, pause=0.2, patience=0.2)
    assert [row["fault"] for row in rows] == [mixed.Fault.STUCK, mixed.Fault.POISONED]
    for row in rows:
        assert (row["wrong"], row["failed"]) == (0, 0)
        assert int(str(row["answered"])) > 0
    assert not str(rows[1]["poisoned rows got"]).startswith(("0", "200"))
