"""Performs the actions that concern tensors of queries, and reports their steps to staging like requests."""

import logging
from collections.abc import Sequence
from math import inf
from typing import Protocol

from msgspec.structs import replace

from latebind.domain.actions import Branch, Map, Reply, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Arrived, Branched, MapFailed, Mapped
from latebind.domain.query import lay_out
from latebind.engine.failures import Failures
from latebind.engine.owners import Owners
from latebind.engine.staging import Staging

logger = logging.getLogger(__name__)

TensorAction = Map | Branch
Looked = Branched | Mapped | MapFailed


class Tensors(Protocol):
    """Reads and writes tensors of queries; `engine.mapping` implements it. Called from any thread."""

    def map(self, action: Map) -> None:
        """Write the inputs of a node, or the outputs of the query if the node is behind the last one."""

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        """Return for each request whether the conditions of the nodes hold, in their order."""


class NoTensors:
    """For engines that serve no queries."""

    def map(self, action: Map) -> None:
        """Raise: nothing calls this."""
        raise AssertionError(f"{action}, and no queries are served")

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        """Raise: nothing calls this."""
        raise AssertionError(f"{action}, and no queries are served")


class Steps:
    """Performs `Map` and `Branch`, and reports steps to `staging` as if they were requests. From any thread.

    `owners` and `staging` hear here that requests and steps have ended, before the door does.
    """

    def __init__(self, config: SchedulerConfig, tensors: Tensors, staging: Staging, owners: Owners) -> None:
        self._queries = {query.name: query for query in config.queries}
        self._rows = lay_out([served.spec.name for served in config.models], config.queries, config.slots)
        self._tensors = tensors
        self._staging = staging
        self._owners = owners
        self._failures = Failures(logger)
        self._tracks_requests = staging.tracks_requests

    def perform_all(self, actions: Sequence[TensorAction]) -> list[Looked]:
        """Perform actions one after another; return the events, which are to be reported together."""
        last = len(actions) - 1
        return [event for place, action in enumerate(actions) for event in self.perform(action, more=place < last)]

    def perform(self, action: TensorAction, *, more: bool = False) -> list[Looked]:
        """Perform one action for all of its requests together. For `more` see `Branched`.

        If that raises, it is performed for each of them alone, and fails those for which it raises again.
        """
        try:
            if isinstance(action, Branch):
                return [Branched(action.requests, action.nodes, self._tensors.branch(action), more)]
            self._tensors.map(action)
            if self._tracks_requests:
                self._stage(action)
            return [Mapped(action.requests, action.node, more)]
        except Exception as error:
            if len(action.requests) > 1:
                return self._perform_each(action, more=more)
            return [self._failed(action, error, more=more)]

    def _perform_each(self, action: TensorAction, *, more: bool) -> list[Looked]:
        """Perform an action for one request after another."""
        rows = list(zip(action.requests, action.slots, strict=True))
        alone = [replace(action, requests=(request,), slots=(slot,)) for request, slot in rows]
        return [
            event
            for place, one in enumerate(alone, start=1)
            for event in self.perform(one, more=more or place < len(alone))
        ]

    def _failed(self, action: TensorAction, error: Exception, *, more: bool) -> MapFailed:
        """Log an error, and return what the scheduler is told of it."""
        doing, nodes = ("judging", action.nodes) if isinstance(action, Branch) else ("mapping", (action.node,))
        names = ", ".join([self._name(action.query, node) for node in nodes])
        (request,) = action.requests
        self._failures.log(f"{doing} {names} of {action.query}", error, f" for request {request}")
        return MapFailed(action.requests, nodes, more)

    def arrived(self, event: Arrived) -> None:
        """Report requests from the door to staging. Inputs of queries are not staged: only the host reads them."""
        if self._tracks_requests and event.model not in self._queries:
            self._staging.arrived(event)

    def step_ended(self, action: StepEnded) -> None:
        """Report the end of a step."""
        self._ended(_number(action.request, action.node))

    def ended(self, reply: Reply) -> None:
        """Report the end of a request; of a query, of all its steps: some may be mapped and never begin."""
        query = self._queries.get(reply.model)
        if query is None:
            self._ended(reply.request)
            return
        for node in range(len(query.nodes)):
            self._ended(_number(reply.request, node))

    def _ended(self, request: int) -> None:
        self._owners.end(request)
        if self._tracks_requests:
            self._staging.ended(request)

    def _stage(self, action: Map) -> None:
        """Report steps whose inputs are complete, so that staging can bring them to their model's device."""
        nodes = self._queries[action.query].nodes
        if action.node == len(nodes):
            return
        option = action.chosen[action.node]
        rows = tuple([self._rows.row(action.query, action.node, option, slot) for slot in action.slots])
        numbers = tuple([_number(request, action.node) for request in action.requests])
        self._staging.arrived(Arrived(nodes[action.node].models[option], inf, numbers, rows))

    def _name(self, query: str, node: int) -> str:
        nodes = self._queries[query].nodes
        return f"step {nodes[node].name!r}" if node < len(nodes) else "the outputs"


def _number(request: int, node: int) -> int:
    """Return the request number of a step."""
    return request + 1 + node
