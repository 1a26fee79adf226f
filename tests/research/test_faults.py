"""Faults on purpose, in small, against real servers; and what the figures mean."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from latebind.domain.actions import Outcome, Reply, Run
from latebind.domain.eventlog import Entry
from latebind.domain.events import Arrived, StageDone
from research.__main__ import app
from research.faults import crash, hang_up, mixed, reload, terminate
from research.faults.clients import NO_ANSWER, Asked


def answer(sent: float, ended: float, version: str = "1", value: float = 3.0) -> Asked:
    return Asked(sent, ended, 200, version, value, 2)


def test_a_crash_is_over_when_a_request_that_was_sent_after_it_is_answered() -> None:
    asked = [answer(0.0, 1.4), answer(1.2, 3.0), answer(1.5, 2.5), Asked(0.9, 1.0, 503), Asked(0.9, 5.0, NO_ANSWER)]
    report = crash._report(asked, [1.0])
    assert report.seconds == [1.5]
    assert (report.requests, report.answered, report.refused, report.without_answer) == (5, 3, 1, 1)
    assert report.longest == pytest.approx(4.1)


def test_an_answer_that_is_not_of_its_version_is_wrong() -> None:
    asked = [answer(0.0, 1.0, "1", 3.0), answer(0.0, 1.0, "2", 3.0), answer(0.0, 1.0, "2", 2.0)]
    assert crash._report(asked, []).wrong == 1
    assert reload._report(asked, [(0.0, 0.5)]).wrong == 1


def test_an_older_version_counts_for_those_who_asked_after_the_change() -> None:
    asked = [answer(0.4, 1.0), answer(0.6, 1.0), answer(0.6, 1.0, "2", 2.0), Asked(0.0, 1.0, 503)]
    report = reload._report(asked, [(0.0, 0.5)])
    assert (report.older, report.versions, report.failed) == (1, 2, {503: 1})


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
    assert hang_up.behind_others(entries, [3.0]) == [hang_up.Behind(1, 1.0, 2.0)]
    assert hang_up.behind_others(entries, [1.0]) == [hang_up.Behind(2, 3.0, 2.0)]


@pytest.mark.slow
def test_after_a_crash_everybody_is_answered_and_the_next_engine_serves() -> None:
    report = crash.run(2, pause=0.0)
    assert len(report.seconds) == 2
    assert (report.without_answer, report.wrong) == (0, 0)
    assert report.answered + report.refused == report.requests


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_lends")
def test_a_server_that_is_told_to_end_answers_everybody_and_leaves_nothing() -> None:
    (ending,) = terminate.run(1, in_flight=8, layers=2, repeats=64)
    assert (ending.statuses, ending.code, ending.left) == ({200: 8}, 0, 0)


@pytest.mark.slow
def test_nobody_notices_new_versions(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(app, ["faults", "--part", "reload", "--versions", "2", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert '"failed": {}' in file.read_text()
    assert '"wrong": 0' in file.read_text()


@pytest.mark.slow
def test_whoever_comes_after_clients_that_left_does_not_wait_for_them() -> None:
    report = hang_up.run(3, layers=2, repeats=512)
    assert report.stages > 1
    assert [one.stages for one in report.behind] == [1, 1, 1]  # behind all six it would be one for each of them all


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
    stuck, poisoned = mixed.run([mixed.Fault.STUCK, mixed.Fault.POISONED], 1, pause=0.2, patience=0.2)
    assert len(stuck.seconds) == len(poisoned.seconds) == 1
    for report in (stuck, poisoned):
        assert (report.wrong, report.statuses.get(NO_ANSWER, 0), report.differs) == (0, 0, [])
        assert report.statuses[200] > 0
    assert sum(poisoned.poisoned.values()) == 1
    assert 200 not in poisoned.poisoned
