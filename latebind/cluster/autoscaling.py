"""Ray's autoscaling policy: it hands what replicas told of their load to `scaling.py`, which decides."""

from typing import Any

from ray.serve.config import AutoscalingContext

from latebind.cluster.scaling import Load, Since, next_since, replicas_needed

FIGURES = ("requests", "slack", "shed", "busy")  # what a replica tells, the fields of `Load`


class BySlack:
    """More replicas where answers were at risk for `up` seconds, one fewer where that would have done for `down`."""

    def __init__(self, up: float, down: float) -> None:
        self._up = up
        self._down = down

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there should be; Ray keeps them within their bounds."""
        replicas, now = context.target_num_replicas, context.current_time
        if context.current_num_replicas != replicas:
            return replicas, {}  # the last change is under way
        state = context.policy_state  # Ray keeps something of its own in it too
        since, loads = Since(state.get("at_risk"), state.get("spare")), _loads(context.aggregated_metrics or {})
        since = next_since(loads, replicas, since, now)
        found = replicas_needed(loads, replicas, since, now, up=self._up, down=self._down)
        return found, {"at_risk": since.at_risk, "spare": since.spare} if found == replicas else {}


def _loads(metrics: Any) -> list[Load]:
    """Return the load of each replica that told of all."""
    told = [metrics.get(name, {}) for name in FIGURES]
    replicas = set(told[0]).intersection(*told[1:])
    return [Load(*(figures[replica] for figures in told)) for replica in sorted(replicas, key=str)]
