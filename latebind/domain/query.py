"""A query: an acyclic graph of steps, each answered by one of several models (GATI, section 5). Numbers only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from latebind.domain.model import ModelSpec

NOT_RUN = -1  # the chosen option of a node that has not run


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a query. Any of `models` may answer it; `accuracies` are the shares of inputs that they get right.

    Once the nodes `after`, which all have smaller numbers, have ended or been left out, the step either starts or is
    left out. It starts if one node of each group in `needs` has run and, if the step is `guarded`, its condition holds.
    """

    name: str
    models: tuple[str, ...]
    accuracies: tuple[float, ...]
    after: tuple[int, ...] = ()
    needs: tuple[tuple[int, ...], ...] = ()
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """What may answer a node: one of its models by place, at a level of its operating curve.

    `name` is that of the model, or of the level of it (`level_name`).
    """

    name: str
    model: int
    level: int
    accuracy: float


def level_name(model: str, level: int) -> str:
    """Return a name for a level of a model's operating curve; no model has such a name."""
    return f"{model}@{level}"


class PlannerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which planner picks the model of each step, and when.

    If it does not `replan`, all models are picked when the query arrives.
    """

    name: str = "expected"
    replan: bool = True


@dataclass(frozen=True, slots=True)
class Query:
    """A query as clients see it (`spec`, with a stage for each node) and as it is planned.

    A node comes after all nodes that it waits for. A request for the query owns its id and the next ones, one for each
    node. `deadline` (seconds) is for requests that name none; 0: the server's.
    """

    spec: ModelSpec
    nodes: tuple[Node, ...]
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    deadline: float = 0.0

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        return self.spec.name

    @property
    def models(self) -> tuple[str, ...]:
        """The models of all nodes, each once."""
        return tuple(dict.fromkeys(model for node in self.nodes for model in node.models))


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where tensors of steps are: `first[query][node][option]` is the first of `slots` rows of that option's model.

    A query in slot s has the row `first + s` there, so no two queries and no two steps share a row. `total` is the
    number of rows of each model, of which the first `slots` are for requests to the model itself.
    """

    slots: int
    first: dict[str, tuple[tuple[int, ...], ...]]
    total: dict[str, int]

    def row(self, query: str, node: int, option: int, slot: int) -> int:
        """Return the row of a step."""
        return self.first[query][node][option] + slot


def lay_out(models: Iterable[str], queries: Iterable[Query], slots: int) -> StepRows:
    """Return the rows of the slots of all models and of the steps of queries, `slots` for each."""
    return lay_out_options(models, {query.name: [node.models for node in query.nodes] for query in queries}, slots)


def lay_out_options(models: Iterable[str], queries: Mapping[str, Sequence[Sequence[str]]], slots: int) -> StepRows:
    """Do what `lay_out` does for queries of which only the models of each node are known."""
    total = dict.fromkeys(models, slots)
    first: dict[str, tuple[tuple[int, ...], ...]] = {}
    for name, nodes in queries.items():
        rows = []
        for node in nodes:
            options = []
            for model in node:
                options.append(total[model])
                total[model] += slots
            rows.append(tuple(options))
        first[name] = tuple(rows)
        total[name] = slots
    return StepRows(slots, first, total)
