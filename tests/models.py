"""Small real configurations that tests of the deciding code share."""

from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.model import ModelSpec, TensorSpec
from research.policies import BATCHING

VECTOR = TensorSpec("x", "float32", (4,))
SCORES = TensorSpec("y", "float32", (3,))


def served(
    name: str = "net",
    *,
    stages: int = 3,
    seconds: float = 0.01,
    per_row: float = 0.0,
    max_batch: int = 4,
    max_queued: int = 100,
    hit_rates: dict[int, float] | None = None,
    aside: float | None = None,
) -> ServedModel:
    """A model whose every stage takes `seconds` and `per_row` more for each row past the first.

    Lookups cost nothing, or answer `aside` so many seconds after their stage.
    """
    curve = Curve((1, 2), (seconds, seconds + per_row))
    rates = hit_rates or {}
    spec = ModelSpec(name, "1", (VECTOR,), (SCORES,), stages, max_batch, tuple(rates))
    lookups = {} if aside is None else dict.fromkeys(rates, Curve((1,), (aside,)))
    costs = ModelCosts(at_any_length(curve) * stages, lookups, rates, aside=aside is not None)
    return ServedModel(spec, costs, max_queued)


def config(
    *models: ServedModel, workers: int = 1, policy: str = "graph", max_batch: int = 0, window: float = 0.0
) -> SchedulerConfig:
    """A scheduler of these models, or of `served()` if none is given."""
    return SchedulerConfig(models or (served(),), workers, PolicyConfig(BATCHING[policy], max_batch, window))
