"""Steps of queries as the driver performs them: what looks into tensors, and what staging hears of their inputs."""

import logging
from collections.abc import Sequence
from math import inf
from typing import Protocol

from latebind.domain.actions import Branch, Map, Reply, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Arrived, Branched, MapFailed, Mapped
from latebind.domain.query import lay_out
from latebind.engine.staging import Staging

logger = logging.getLogger(__name__)

Look = Map | Branch


class Tensors(Protocol):
    """What looks into tensors of queries and writes them; `engine.mapping` has the real one. From any thread."""

    def map(self, action: Map) -> None:
        """Write the inputs of a node, or behind the last one the outputs of the query."""

    def branch(self, action: Branch) -> tuple[bool, ...]:
        """Return whether the conditions of nodes hold, in their order."""


class NoTensors:
    """Stands in where no queries are served."""

    def map(self, action: Map) -> None:
        """Nobody asks."""
        raise AssertionError(f"{action}, and no queries are served")

    def branch(self, action: Branch) -> tuple[bool, ...]:
        """Nobody asks."""
        raise AssertionError(f"{action}, and no queries are served")


class Steps:
    """Performs `Map` and `Branch` and has `staging` hear of steps as of other requests. From any thread."""

    def __init__(self, config: SchedulerConfig, tensors: Tensors, staging: Staging) -> None:
        self._queries = {query.name: query for query in config.queries}
        self._rows = lay_out([served.spec.name for served in config.models], config.queries, config.slots)
        self._tensors = tensors
        self._staging = staging
        self._hears = staging.hears

    def perform_all(self, looks: Sequence[Look]) -> list[Branched | Mapped | MapFailed]:
        """Look into tensors, one after another; what comes of it is to be told together."""
        last = len(looks) - 1
        return [self.perform(action, more=place < last) for place, action in enumerate(looks)]

    def perform(self, action: Look, *, more: bool = False) -> Branched | Mapped | MapFailed:
        """Look into tensors; whatever that raises fails this request alone. For `more` see `Branched`."""
        try:
            if isinstance(action, Branch):
                return Branched(action.request, action.nodes, self._tensors.branch(action), more)
            self._tensors.map(action)
            if self._hears:
                self._stage(action)
            return Mapped(action.request, action.node, more)
        except Exception:
            doing, nodes = ("judging", action.nodes) if isinstance(action, Branch) else ("mapping", (action.node,))
            names = ", ".join([self._name(action.query, node) for node in nodes])
            logger.exception("%s %s of %s failed for request %d", doing, names, action.query, action.request)
            return MapFailed(action.request, nodes, more)

    def arrived(self, event: Arrived) -> None:
        """Hear of requests from the door. The inputs of queries are only read here."""
        if self._hears and event.model not in self._queries:
            self._staging.arrived(event)

    def step_ended(self, action: StepEnded) -> None:
        """Hear that a step has ended."""
        if self._hears:
            self._staging.ended(_number(action.request, action.node))

    def ended(self, reply: Reply) -> None:
        """Hear that a request has ended; some steps of a query may have been mapped and never begun."""
        if not self._hears:
            return
        query = self._queries.get(reply.model)
        if query is None:
            self._staging.ended(reply.request)
            return
        for node in range(len(query.nodes)):
            self._staging.ended(_number(reply.request, node))

    def _stage(self, action: Map) -> None:
        """Have the inputs of a step, which are complete, on their way to where its model computes."""
        nodes = self._queries[action.query].nodes
        if action.node == len(nodes):
            return
        option = action.chosen[action.node]
        row = self._rows.row(action.query, action.node, option, action.slot)
        number = _number(action.request, action.node)
        self._staging.arrived(Arrived(nodes[action.node].models[option], inf, (number,), (row,)))

    def _name(self, query: str, node: int) -> str:
        nodes = self._queries[query].nodes
        return f"step {nodes[node].name!r}" if node < len(nodes) else "the outputs"


def _number(request: int, node: int) -> int:
    """Return the number of the request that a step is."""
    return request + 1 + node
