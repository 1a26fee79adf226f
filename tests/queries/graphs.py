"""Small real queries that tests share: graphs of models of `tests.models`."""

from collections.abc import Sequence
from math import inf

from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.model import ModelSpec, StepSpec
from latebind.domain.query import Node, PlannerConfig, Query
from latebind.queries import PLANNERS
from latebind.queries.planners import Choice, PlanView, most_accurate
from latebind.simulation.workloads import Arrival, Step
from tests.models import SCORES, VECTOR

SLOTS = 16


class Quickest:
    """Always picks the model that is expected to answer first, whatever the deadline."""

    def pick(self, view: PlanView, node: int) -> Choice:
        seconds = [one.wait + one.whole for one in view.outlooks(node)]
        return Choice(most_accurate(view, node, -inf, seconds).option, view.left)


class Best:
    """Always picks the most accurate model, whatever the deadline."""

    def pick(self, view: PlanView, node: int) -> Choice:
        seconds = [one.wait + one.whole for one in view.outlooks(node)]
        return Choice(most_accurate(view, node, inf, seconds).option, view.left)


PLANNERS |= {"quickest": Quickest, "best": Best}  # planners of tests: what others pick does not matter there


def node(
    name: str, *models: str, after: Sequence[int] = (), guarded: bool = False, accuracies: Sequence[float] = ()
) -> Node:
    """A node that needs all that it waits for. Models are ever more accurate, unless that is given."""
    known = tuple(accuracies) or tuple(0.8 + 0.05 * i for i in range(len(models)))
    return Node(name, models, known, tuple(after), tuple((i,) for i in after), guarded)


def query(*nodes: Node, name: str = "query", planner: str = "best", replan: bool = True) -> Query:
    """A query of these nodes."""
    steps = tuple(StepSpec(one.name, one.models) for one in nodes)
    spec = ModelSpec(name, "1", (VECTOR,), (SCORES,), len(nodes), 1, steps=steps)
    return Query(spec, nodes, PlannerConfig(planner, replan))


def config(*models: ServedModel, queries: Sequence[Query], workers: int = 1, policy: str = "late") -> SchedulerConfig:
    """A scheduler of these models and queries."""
    return SchedulerConfig(models, workers, PolicyConfig(policy), queries=tuple(queries), slots=SLOTS)


def asked(
    of: Query,
    served: Sequence[ServedModel],
    *,
    time: float = 0.0,
    allowed: float = 1e3,
    holds: Sequence[bool] = (),
    leaves: dict[str, int] | None = None,
) -> Arrival:
    """A request for a query: whose conditions hold, and which models it leaves early, at which stage."""
    last = {model.spec.name: model.spec.stages - 1 for model in served} | (leaves or {})
    ways = tuple(holds) or (True,) * len(of.nodes)
    steps = [Step(tuple(last[model] for model in one.models), way) for one, way in zip(of.nodes, ways, strict=True)]
    return Arrival(time, of.name, allowed, 0, steps=tuple(steps))
