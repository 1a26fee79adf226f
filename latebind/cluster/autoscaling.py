"""Ray's autoscaling policy: passes the loads that replicas report to `scaling.py`, which decides."""

from typing import Any

from ray.serve.config import AutoscalingContext

from latebind.cluster.scaling import Load, Since, next_since, replicas_needed

FIGURES = ("requests", "slack", "shed", "busy")  # what a replica reports: the fields of `Load`


class BySlack:
    """More replicas if answers were at risk for `up` seconds, one fewer if that would have sufficed for `down`."""

    def __init__(self, up: float, down: float) -> None:
        self._up = up
        self._down = down

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there should be; Ray keeps the number within its bounds."""
        replicas, now = context.target_num_replicas, context.current_time
        if context.current_num_replicas != replicas:
            return replicas, {}  # the last change is not complete yet
        state = context.policy_state  # Ray keeps something of its own in it too
        since, loads = Since(state.get("at_risk"), state.get("spare")), _loads(context.aggregated_metrics or {})
        since = next_since(loads, replicas, since, now)
        found = replicas_needed(loads, replicas, since, now, up=self._up, down=self._down)
        return found, {"at_risk": since.at_risk, "spare": since.spare} if found == replicas else {}


def _loads(metrics: Any) -> list[Load]:
    """Return the load of each replica that reported all figures."""
    told = [metrics.get(name, {}) for name in FIGURES]
    replicas = set(told[0]).intersection(*told[1:])
    return [Load(*(figures[replica] for figures in told)) for replica in sorted(replicas, key=str)]
