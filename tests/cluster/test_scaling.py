"""How many replicas are wanted: more where answers are at risk, fewer where fewer would do."""

from typing import Any

import pytest

from latebind.cluster.scaling import Load, Since, is_at_risk, is_spare, load_between, next_since, replicas_needed
from latebind.server.gateway import Snapshot

WELL = Load(requests=100.0, slack=0.4, shed=0.0, busy=0.7)
IDLE = Load(requests=10.0, slack=0.9, shed=0.0, busy=0.1)
SHEDDING = Load(requests=100.0, slack=0.3, shed=0.5, busy=1.0)
TIGHT = Load(requests=100.0, slack=0.1, shed=0.0, busy=0.5)


def after(looks: int, *loads: Load, since: Since | None = None) -> int:
    """Return how many of two replicas are wanted after so many looks, a second apart."""
    found, count = since or Since(), 2
    for now in range(looks):
        found = next_since(loads, 2, found, float(now))
        count = replicas_needed(loads, 2, found, float(now), up=3.0, down=10.0)
    return count


@pytest.mark.parametrize(("load", "looks", "count"), [(WELL, 30, 2), (TIGHT, 3, 2), (TIGHT, 4, 3), (SHEDDING, 4, 4)])
def test_more_are_wanted_where_answers_are_at_risk_for_a_while(load: Load, looks: int, count: int) -> None:
    assert after(looks, load, load) == count


@pytest.mark.parametrize(("looks", "count"), [(10, 2), (11, 1)])
def test_fewer_are_wanted_where_that_would_have_done_for_a_while(looks: int, count: int) -> None:
    assert after(looks, IDLE, IDLE) == count


def test_a_moment_in_between_begins_the_wait_anew() -> None:
    since = next_since([TIGHT, TIGHT], 2, Since(), 0.0)
    since = next_since([WELL, WELL], 2, since, 1.0)
    assert next_since([TIGHT, TIGHT], 2, since, 2.0).at_risk == 2.0


def test_a_busy_replica_with_much_slack_needs_no_other() -> None:
    assert not is_at_risk([Load(requests=100.0, slack=0.8, busy=1.0)])


def test_the_last_replica_is_never_spare() -> None:
    assert not is_spare([IDLE], 1)
    assert is_spare([IDLE, IDLE], 2)


def test_none_is_spare_while_one_has_not_told_of_its_load() -> None:
    assert not is_spare([IDLE], 2)


def test_none_is_spare_where_the_others_would_be_too_busy() -> None:
    assert not is_spare([Load(requests=10.0, slack=0.9, busy=0.35)] * 2, 2)


def test_a_replica_without_requests_counts_for_nothing() -> None:
    assert is_at_risk([TIGHT, Load()])


def snapshot(now: float, answered: int, refused: int, *, slack: float, latency: float, run: float) -> Snapshot:
    def told(seconds: float, count: int) -> dict[str, Any]:
        return {"le": [], "counts": [], "sum": seconds, "count": count}

    kinds = ("refused_full", "refused_loading", "expired", "cancelled", "failed", "not_loaded")
    model: Any = {
        "requests": {"answered": answered, "refused_late": refused, **dict.fromkeys(kinds, 0)},
        "run_seconds": {"1": run},
        "slack_seconds": told(slack, answered + refused),
        "latency_seconds": told(latency, answered),
    }
    return {"models": {"scale": model}, "now": now}


def test_a_load_is_what_came_between_two_snapshots() -> None:
    before = snapshot(100.0, 10, 5, slack=1.0, latency=9.0, run=3.0)
    then = snapshot(110.0, 90, 25, slack=61.0, latency=41.0, run=11.0)
    found = load_between(before, then, workers=2)
    assert (found.requests, found.shed, found.busy) == (10.0, 0.2, 0.4)
    assert found.slack == pytest.approx(0.6)  # 0.6 s to spare and 0.4 s to answer


def test_nothing_is_known_of_the_first_look_or_of_an_engine_that_began_anew() -> None:
    then = snapshot(110.0, 9, 0, slack=1.0, latency=1.0, run=1.0)
    assert load_between({"models": {}}, then, workers=1) == Load()
    assert load_between(snapshot(100.0, 90, 0, slack=9.0, latency=9.0, run=9.0), then, workers=1) == Load()
