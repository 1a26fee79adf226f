"""A query: a graph of steps without cycles, each answered by one of several models (GATI, section 5). Numbers only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec

NOT_RUN = -1  # what a node has chosen that has not run


@dataclass(frozen=True, slots=True)
class Node:
    """One step. Any of `models` may answer it, which are right on the shares `accuracies` of inputs.

    It begins when the nodes `after`, all of smaller number, have ended or been left out, if of each group in `needs`
    one has run and, where it is `guarded`, its condition holds; else it is left out.
    """

    name: str
    models: tuple[str, ...]
    accuracies: tuple[float, ...]
    after: tuple[int, ...] = ()
    needs: tuple[tuple[int, ...], ...] = ()
    guarded: bool = False


class PlannerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who picks the model of each step, and when.

    Where it does not `replan`, all are picked when the query comes. `price` is what a second costs in shares of
    accuracy, where the planner weighs them; 0: accuracy alone counts, as long as the deadline is met. Where there is
    none, what learned caches earn is divided between accuracy and latency (`queries/bargain.py`).
    """

    name: str = "expected"
    replan: bool = True
    price: float | None = None

    def __post_init__(self) -> None:
        if self.price is not None and not 0.0 <= self.price < float("inf"):
            raise ConfigError(f"price is {self.price} of accuracy a second: give 0 or more")


@dataclass(frozen=True, slots=True)
class Query:
    """A query as clients see it (`spec`, with a stage for each node) and as it is planned.

    A node stands behind all that it waits for. A request for it owns its number and one more for each node, in order.
    `deadline` (seconds) is for requests that name none, 0: the server's.
    """

    spec: ModelSpec
    nodes: tuple[Node, ...]
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    deadline: float = 0.0

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where tensors of steps lie: `first[query][node][option]` is the first of `slots` rows of that option's model.

    A query in slot s has row `first + s` there: no two queries and no two steps share a row. `total` rows has each
    model, the first `slots` of them for requests of its own.
    """

    slots: int
    first: dict[str, tuple[tuple[int, ...], ...]]
    total: dict[str, int]

    def row(self, query: str, node: int, option: int, slot: int) -> int:
        """Return the row of a step."""
        return self.first[query][node][option] + slot


def lay_out(models: Iterable[str], queries: Iterable[Query], slots: int) -> StepRows:
    """Return the rows of all models' slots and of queries' steps in them, `slots` for each."""
    return lay_out_options(models, {query.name: [node.models for node in query.nodes] for query in queries}, slots)


def lay_out_options(models: Iterable[str], queries: Mapping[str, Sequence[Sequence[str]]], slots: int) -> StepRows:
    """Return the same for queries of which only the models of each node are known."""
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
