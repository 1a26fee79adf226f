"""How many replicas are wanted: more where answers are at risk, fewer where fewer would do; and as Ray asks."""

from types import SimpleNamespace
from typing import Any

import pytest

from latebind.cluster.scaling import Load, Since, load_between, replicas_needed
from latebind.domain.config import ClusterConfig
from latebind.server.gateway import Snapshot

WELL = Load(requests=100.0, slack=0.4, shed=0.0, busy=0.7)
IDLE = Load(requests=10.0, slack=0.9, shed=0.0, busy=0.1)
SHEDDING = Load(requests=100.0, slack=0.3, shed=0.5, busy=1.0)
TIGHT = Load(requests=100.0, slack=0.1, shed=0.0, busy=0.5)


@pytest.mark.parametrize(
    ("load", "looks", "count"),
    [(WELL, 30, 2), (TIGHT, 3, 2), (TIGHT, 4, 3), (SHEDDING, 4, 4), (IDLE, 10, 2), (IDLE, 11, 1)],
)
def test_more_or_fewer_are_wanted_where_that_would_have_been_better_for_a_while(
    load: Load, looks: int, count: int
) -> None:
    since, found = Since(), 2
    for now in range(looks):
        found, since = replicas_needed((load, load), 2, since, float(now), up=3.0, down=10.0)
    assert found == count


def test_a_moment_in_between_begins_the_wait_anew() -> None:
    since = Since()
    for now, load in enumerate((TIGHT, WELL, TIGHT)):
        count, since = replicas_needed([load, load], 2, since, float(now), up=2.0, down=10.0)
    assert (count, since.at_risk) == (2, 2.0)


@pytest.mark.parametrize(
    ("loads", "replicas", "at_risk", "spare"),
    [
        ([Load(requests=100.0, slack=0.8, busy=1.0)], 1, False, False),  # busy, but with much slack
        ([IDLE], 1, False, False),  # the last one is never spare
        ([IDLE, IDLE], 2, False, True),
        ([IDLE], 2, False, False),  # one has not told of its load
        ([Load(requests=10.0, slack=0.9, busy=0.35)] * 2, 2, False, False),  # the other would be too busy
        ([TIGHT, Load()], 2, True, False),  # a replica without requests counts for nothing
    ],
)
def test_what_is_at_risk_and_what_is_spare(loads: list[Load], replicas: int, at_risk: bool, spare: bool) -> None:
    _, since = replicas_needed(loads, replicas, Since(), 1.0, up=3.0, down=10.0)
    assert (since.at_risk is not None, since.spare is not None) == (at_risk, spare)


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


@pytest.mark.parametrize(
    ("load", "replicas", "wanted"), [(SHEDDING, 1, [1, 1, 1, 2, 2, 2]), (IDLE, 2, [2, 2, 2, 2, 2, 1, 1, 1])]
)
def test_ray_adds_and_takes_away_replicas_by_this_rule(load: Load, replicas: int, wanted: list[int]) -> None:
    """The policy in Ray's own wrapping, with its own state beside ours, asked every second."""
    config = pytest.importorskip("ray.serve.config")
    from ray.serve._private import autoscaling_state as ray

    from latebind.cluster.application import autoscaling

    settings = ClusterConfig(replicas=1, max_replicas=2, up_after=3.0, down_after=5.0)
    scaling = config.AutoscalingConfig(**autoscaling(settings))
    policy = ray._apply_autoscaling_config(ray._resolve_policy_callable(scaling.policy))
    state: dict[str, Any] = {}
    found = []
    for now in range(len(wanted)):
        metrics = {name: {f"r{number}": value for number in range(replicas)} for name, value in load._asdict().items()}
        context = SimpleNamespace(
            target_num_replicas=replicas,
            current_num_replicas=replicas,
            current_time=1000.0 + now,
            policy_state=state,
            aggregated_metrics=metrics,
            config=scaling,
            total_num_requests=0,
        )
        told, state = policy(context)
        replicas = min(told, settings.max_replicas)
        found.append(replicas)
    assert found == wanted
