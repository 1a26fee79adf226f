"""A query: what all requests for it share, and one request between its arrival and its reply. Pure."""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum, auto
from math import inf

from latebind.domain.actions import Outcome
from latebind.domain.costs import Outlook
from latebind.domain.errors import IllegalEvent
from latebind.domain.query import NOT_RUN, Node, Option, Query, StepRows, level_name
from latebind.queries import PLANNERS
from latebind.queries.planners import Branches, Choice, PlanView
from latebind.scheduler import Scheduler

NEWEST = 0.05  # the weight of the newest time between two steps in their mean
PAUSE = 3.0  # a time counts as at most this many times the mean: the machine is sometimes busy with other things


class ServedQuery:
    """What all requests for a query have in common. Nodes are numbered; the outputs come after the last node.

    `before[i]` is how many nodes node i waits for, `behind[i]` are the nodes that wait for it, and the `first` nodes
    wait for none. `rows[i]` are the first rows of the options of node i (`StepRows`).
    """

    def __init__(self, query: Query, rows: StepRows, scheduler: Scheduler) -> None:
        after = [*(frozenset(node.after) for node in query.nodes), frozenset(range(len(query.nodes)))]
        self.query = query
        self.name = query.name
        self.before = [len(nodes) for nodes in after]
        self.behind = [tuple([i for i, nodes in enumerate(after) if number in nodes]) for number in range(len(after))]
        self.first = [number for number, nodes in enumerate(after) if not nodes]
        self.rows = rows.first[query.name]
        self.models = [node.models for node in query.nodes]
        self.options = [options_of(node, scheduler.curve) for node in query.nodes]
        self._planned = replace(query, nodes=tuple(map(with_options, query.nodes, self.options)))
        self.guarded = [*(node.guarded for node in query.nodes), False]
        self.branches = Branches()
        self._overhead = 0.0  # mean seconds between the end of a step and the start of the next
        self._scheduler = scheduler
        self._planner = PLANNERS[query.planner.name]()
        self._names = query.models
        every = range(len(query.nodes))
        self._always = steps_that_run(query.nodes, every)
        self._always_after = [steps_that_run(query.nodes, _all_behind(query, number)) for number in every]
        self._stale = True
        self._outlooks: Mapping[str, Outlook] = {}
        # The outlook of a step, which waits for its inputs too.
        self._of_step: Callable[[str], Outlook] = self._outlooks.__getitem__

    def pick(self, node: int, opened: frozenset[int], left: float, now: float) -> Choice:
        """Let the planner pick a model for a node with `left` seconds left, less the time between steps."""
        self._at(now)
        view = PlanView(self._planned, opened, left - self._overhead, self._of_step, self.branches)
        return self._planner.pick(view, node)

    def is_late(self, seconds: float, now: float) -> bool:
        """Return whether a query with so many `seconds` left would be late even with all models in memory."""
        outlooks = self._scheduler.outlooks(self._names, now, loaded=True)
        return seconds < least_seconds(self.query.nodes, self._always, outlooks)

    def least(self, now: float) -> float:
        """Return the fewest seconds that the query takes now: with less, no request is in time."""
        return least_seconds(self.query.nodes, self._always, self._at(now))

    def least_after(self, node: int, now: float) -> float:
        """Return the fewest seconds that the nodes after a node take, whose waits are not known in advance."""
        return least_seconds(self.query.nodes, self._always_after[node], self._at(now), waiting=False)

    def took_between_steps(self, seconds: float) -> None:
        """Learn from the time between the end of a step and the start of the next."""
        if self._overhead:
            self._overhead += NEWEST * (min(seconds, PAUSE * self._overhead) - self._overhead)
        else:
            self._overhead = seconds

    def invalidate(self) -> None:
        """Note that the scheduler has handled events, so that the outlooks of models are looked up again."""
        self._stale = True

    def _at(self, now: float) -> Mapping[str, Outlook]:
        """Return the outlooks of requests that arrive at `now`, and keep `_of_step` up to date.

        That stays the same function while it returns the same: then a planner need not check whether its plans still
        hold, which takes a seventh of the time of a query of two steps here.
        """
        if self._stale:
            self._stale = False
            outlooks, overhead = self._scheduler.outlooks(self._names, now), self._overhead
            if outlooks != self._outlooks:
                self._outlooks = outlooks
                self._of_step = {
                    model: Outlook(one.wait + overhead, one.ends, one.chances, one.strict)
                    for model, one in outlooks.items()
                }.__getitem__
        return self._outlooks


def options_of(node: Node, curve: Callable[[str], Sequence[float]]) -> list[Option]:
    """Return what may answer a node: each of its models, at each level of its `curve` if it has one.

    An answer that is not the whole network's counts as wrong, so the accuracy of a level is the network's times the
    promised fidelity. After other nodes only the load chooses the level: the time left there shows whether those were
    left early, so the level of a row would depend on how hard it is, and would not keep its promise.
    """
    found = []
    for place, (model, accuracy) in enumerate(zip(node.models, node.accuracies, strict=True)):
        fidelities = curve(model)
        if not fidelities:
            found.append(Option(model, place, 0, accuracy))
        for level, fidelity in enumerate(fidelities[:1] if node.after else fidelities):
            found.append(Option(level_name(model, level), place, level, accuracy * fidelity))
    return found


def with_options(node: Node, options: Sequence[Option]) -> Node:
    """Return the node as planners see it, with options in place of its models."""
    names, accuracies = [one.name for one in options], [one.accuracy for one in options]
    return replace(node, models=tuple(names), accuracies=tuple(accuracies))


class Phase(IntEnum):
    """The phase of a node. Up to JUDGED it may still start; from ENDED on it is settled."""

    WAITING = auto()
    JUDGED = auto()  # its condition is being evaluated
    MAPPED = auto()  # its inputs are being written
    RUNNING = auto()  # it is a request of its model
    ENDED = auto()
    LEFT_OUT = auto()


WAITING, JUDGED, MAPPED, RUNNING, ENDED, LEFT_OUT = Phase  # looking a member up in its class takes ten times as long

# The legal moves, each with the change in the number of nodes at work.
LEGAL_MOVES: dict[Phase, dict[Phase, int]] = {
    WAITING: {JUDGED: 1, MAPPED: 1, LEFT_OUT: 0},
    JUDGED: {MAPPED: 0, LEFT_OUT: -1},
    MAPPED: {RUNNING: 0, ENDED: -1, LEFT_OUT: -1},  # outputs end at once
    RUNNING: {ENDED: -1},
    ENDED: {},
    LEFT_OUT: {},
}


class LiveQuery:
    """A request of a query, from its arrival to its reply.

    For each node, `chosen` is the place of the model that it runs with, `levels` the surest level that it may run at,
    `began` when it could begin, and `planned` what was planned for it in advance. Nodes in `open` may still begin;
    those in `due` can begin now, in this order. `work` is how many nodes are at work: all of them must end before the
    query can. Once `failure` is set, the query ends with it as soon as nothing is at work any more; `failed_node`
    caused it.
    """

    def __init__(
        self, served: ServedQuery, request: int, slot: int, *, deadline: float, now: float, slack: float, priority: int
    ) -> None:
        nodes = len(served.query.nodes)
        self.served = served
        self.outputs = nodes  # the number of the node that stands for the outputs
        self.request = request
        self.slot = slot
        self.deadline = deadline
        self.arrived = now
        self.slack = slack
        self.priority = priority  # of its steps
        self.reached = now  # when a step last ended, or the query arrived
        self.phases = [WAITING] * (nodes + 1)
        self.chosen = [NOT_RUN] * nodes
        self.levels = [0] * nodes
        self.budgets = [0.0] * nodes
        self.began = [inf] * nodes
        self.planned: dict[int, Choice] = {}
        self.open = frozenset(range(nodes))
        self.ran: set[int] = set()  # nodes whose models have run
        self._before = served.before.copy()  # how many each node still waits for
        self.due = served.first.copy()
        self.waited = 0.0
        self.failure: Outcome | None = None
        self.failed_node = NOT_RUN
        self.work = 0

    @property
    def running(self) -> list[int]:
        """The nodes that are requests of their models now."""
        return [node for node, phase in enumerate(self.phases) if phase is RUNNING]

    @property
    def last_node(self) -> int:
        """The node that failed or, if none did, the last one that has run."""
        if self.failed_node != NOT_RUN:
            return self.failed_node
        return max(self.ran, default=NOT_RUN)

    def step(self, node: int) -> int:
        """Return the number of the request that a node makes."""
        return self.request + 1 + node

    def ready(self) -> list[int]:
        """Return the nodes that can start now, in order; those that can never run are marked as left out.

        None can start once the query has failed.
        """
        found: list[int] = []
        while self.due and self.failure is None:
            node = self.due.pop(0)
            if node < self.outputs and any(map(self.ran.isdisjoint, self.served.query.nodes[node].needs)):
                self.move(node, LEFT_OUT)
            else:
                found.append(node)
        return found

    def move(self, node: int, phase: Phase) -> None:
        """Move a node to `phase`. Raises `IllegalEvent`, with nothing changed, if that is no legal move."""
        before = self.phases[node]
        more = LEGAL_MOVES[before].get(phase)
        if more is None:
            raise IllegalEvent(f"node {node} of request {self.request} is {before.name} and cannot become {phase.name}")
        self.phases[node] = phase
        self.work += more
        if before <= JUDGED < phase:
            self.open -= {node}
        if before is RUNNING:
            self.ran.add(node)
        if phase >= ENDED:
            for other in self.served.behind[node]:
                self._before[other] -= 1
                if not self._before[other]:
                    insort(self.due, other)

    def fail(self, node: int, outcome: Outcome) -> None:
        """Let the query end with `outcome`, unless it has failed already."""
        if self.failure is None:
            self.failure, self.failed_node = outcome, node


def steps_that_run(nodes: Sequence[Node], among: Iterable[int]) -> Sequence[int]:
    """Return those `among` the nodes that run in any case, and those before them, which may be conditional."""
    kept, before = list[int](), set[int]()
    for number in sorted(among, reverse=True):
        if not nodes[number].guarded or number in before:
            kept.append(number)
            before.update(nodes[number].after)
    return kept[::-1]


def least_seconds(
    nodes: Sequence[Node], steps: Sequence[int], outlooks: Mapping[str, Outlook], *, waiting: bool = True
) -> float:
    """Return the seconds of the longest path through `steps`, each with the model that ends first; conditional ones 0.

    Waits are those of requests that arrive now, and pass while earlier steps run: along a path they do not add up.
    """
    ends: dict[int, float] = {}
    for number in steps:
        node = nodes[number]
        ready = max([ends[i] for i in node.after if i in ends], default=0.0)
        if node.guarded:
            ends[number] = ready
        else:
            models = [outlooks[model] for model in node.models]
            ends[number] = min([max(ready, one.wait if waiting else 0.0) + one.least for one in models])
    return max(ends.values(), default=0.0)


def _all_behind(query: Query, number: int) -> set[int]:
    found: set[int] = set()
    for i in range(number + 1, len(query.nodes)):
        if not {number, *found}.isdisjoint(query.nodes[i].after):
            found.add(i)
    return found
