"""The policy as Ray calls it: in its own wrapping, with its own state beside ours."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from latebind.domain.config import ClusterConfig

SHED = {"requests": 100.0, "slack": 0.1, "shed": 0.5, "busy": 0.9}
IDLE = {"requests": 1.0, "slack": 0.9, "shed": 0.0, "busy": 0.01}


def played(loads: Mapping[str, float], replicas: int, seconds: int) -> list[int]:
    """Return how many replicas Ray wants, asked every second; each change is carried out by the next."""
    config = pytest.importorskip("ray.serve.config")
    from ray.serve._private import autoscaling_state as ray

    from latebind.cluster.application import _number

    settings = ClusterConfig(replicas=1, max_replicas=2, up_after=3.0, down_after=5.0)
    scaling = config.AutoscalingConfig(**_number(settings)["autoscaling_config"])
    policy = ray._apply_autoscaling_config(ray._resolve_policy_callable(scaling.policy))
    state: dict[str, Any] = {}
    wanted = []
    for now in range(seconds):
        metrics = {name: {f"r{number}": value for number in range(replicas)} for name, value in loads.items()}
        context = SimpleNamespace(
            target_num_replicas=replicas,
            current_num_replicas=replicas,
            current_time=1000.0 + now,
            policy_state=state,
            aggregated_metrics=metrics,
            config=scaling,
            total_num_requests=0,
        )
        found, state = policy(context)
        replicas = min(found, settings.max_replicas)
        wanted.append(replicas)
    return wanted


def test_ray_adds_a_replica_once_answers_were_at_risk_for_as_long_as_said() -> None:
    assert played(SHED, 1, 6) == [1, 1, 1, 2, 2, 2]


def test_ray_takes_one_away_once_fewer_would_have_done_for_as_long_as_said() -> None:
    assert played(IDLE, 2, 8) == [2, 2, 2, 2, 2, 1, 1, 1]
