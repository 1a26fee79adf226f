"""Of several that share a folder one leads at a time, by clocks of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from latebind.adaptation import lease
from latebind.adaptation.lease import ELSEWHERE, EVERY, PATIENCE, Lease


def test_the_first_leads_and_others_do_not(tmp_path: Path) -> None:
    first, second = Lease(tmp_path / "new"), Lease(tmp_path / "new")
    assert first.beat(0.0)
    assert not second.beat(0.0)


def test_who_beats_leads_on_for_ever(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    for step in range(100):
        assert first.beat(step * EVERY)
        assert not second.beat(5000.0 + step * EVERY)


def test_who_is_silent_is_followed_when_patience_is_over_and_not_before(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.beat(0.0)
    assert not second.beat(100.0)
    assert not second.beat(100.0 + PATIENCE - 0.1)
    assert second.beat(100.0 + PATIENCE + EVERY)


def test_patience_begins_with_the_last_beat_that_was_seen(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.beat(0.0)
    second.beat(0.0)
    first.beat(PATIENCE - 1.0)
    assert not second.beat(PATIENCE + 1.0)
    assert second.beat(2 * PATIENCE + 1.0)


def test_who_leaves_is_followed_at_once(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.beat(0.0)
    second.beat(0.0)
    first.release()
    assert not first.leads
    assert second.beat(EVERY)


def test_who_was_only_slow_finds_that_another_leads_and_waits_for_its_turn(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.beat(0.0)
    second.beat(0.0)
    assert second.beat(PATIENCE)
    assert not first.beat(PATIENCE)
    first.release()  # it has nothing to give away
    assert second.beat(PATIENCE + EVERY)
    assert not first.beat(2 * PATIENCE)  # sees what the second wrote last
    assert first.beat(3 * PATIENCE)


def test_of_two_that_take_it_together_one_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    take = os.open

    def take_late(path: Path, flags: int, mode: int) -> int:
        monkeypatch.undo()
        second.beat(0.0)
        return take(path, flags, mode)

    monkeypatch.setattr(os, "open", take_late)
    assert not first.beat(0.0)  # between its look and its move the second took it
    assert second.leads
    assert not first.beat(EVERY)


def test_terms_of_before_go_and_other_files_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / "leader-boat").write_text("")
    (tmp_path / "leader-000003").write_text("free")
    assert Lease(tmp_path).beat(0.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["leader-000004", "leader-boat"]


def test_whoever_looks_often_reads_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(tmp_path)
    lease.beat(0.0)
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("the folder was read"))
    assert lease.beat(EVERY - 0.1)


def lead_and_die(folder: Path, monkeypatch: pytest.MonkeyPatch, *, pid: int) -> None:
    with monkeypatch.context() as there:
        there.setattr(os, "getpid", lambda: pid)
        assert Lease(folder).beat(0.0)


@pytest.fixture
def ended() -> int:
    """The number of a process that there was."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_who_has_ended_here_is_followed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    lead_and_die(tmp_path, monkeypatch, pid=ended)
    assert Lease(tmp_path).beat(0.0)


@pytest.mark.parametrize("where", ["another-machine/pid:[1]", ELSEWHERE])
def test_who_may_live_elsewhere_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int, where: str
) -> None:
    with monkeypatch.context() as there:
        there.setattr(lease, "place", lambda: where)
        lead_and_die(tmp_path, monkeypatch, pid=ended)
    assert not Lease(tmp_path).beat(0.0)


def test_where_nobody_sees_others_all_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    monkeypatch.setattr(lease, "place", lambda: ELSEWHERE)
    lead_and_die(tmp_path, monkeypatch, pid=ended)
    assert not Lease(tmp_path).beat(0.0)
