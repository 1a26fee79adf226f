"""What `python -m research ray` makes of what it saw, without Ray."""

import pytest

from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.play import Played
from research.cluster.ray import (
    ACTOR,
    AROUND,
    NAMED,
    Killed,
    Recovery,
    kill_rows,
    kill_verdict,
)


def played(*ends: float) -> Played:
    """Right answers at these times."""
    found = Played(Ledger())
    for end in ends:
        found.ledger.good.add(end - 0.01, 0.01)
    return found


def killed(*recoveries: Recovery, ends: tuple[float, ...] = (), times: int | None = None) -> Killed:
    return Killed(played(*ends), recoveries, len(recoveries) if times is None else times)


def test_silence_is_the_longest_time_without_an_answer_after_a_kill() -> None:
    found = killed(Recovery(10, 5.0, 2.0, False), ends=(4.0, 5.5, 8.0, 8.5, 5.0 + AROUND + 30.0))
    assert found.silences == [pytest.approx(2.5)]


def test_where_nobody_is_answered_after_a_kill_all_is_silence() -> None:
    assert killed(Recovery(10, 5.0, 2.0, False), ends=(4.0,)).silences == [AROUND]


def test_a_slow_recovery_an_engine_left_behind_and_a_kill_that_was_not_are_told() -> None:
    good, slow, left = (
        Recovery(1, 0.0, 9.9, False),
        Recovery(2, 0.0, 10.0, False),
        Recovery(3, 0.0, 1.0, True),
    )
    assert kill_verdict(killed(good)) == []
    assert kill_verdict(killed(good, slow, left, times=4)) == [
        "1 replicas were not killed: the requests ended before; send more",
        "the replica killed at request 2 was replaced after 10.0 s",
        "the engine of the replica killed at request 3 lived on",
    ]
    assert [row["its engine"] for row in kill_rows(killed(good, left))] == ["ended", "left behind"]


def test_processes_and_replicas_are_known_by_their_names() -> None:
    found = ACTOR.match("ray::ServeReplica:latebind:replica")
    assert found is not None
    assert found[1] == "replica"
    assert ACTOR.match("ray::ServeController.listen_for_change") is None
    assert NAMED.findall('up{replica="a1",model="b"} 1\nup{replica="c2"} 1') == ["a1", "c2"]
