"""One query between its arrival and its reply: the phase of each node, with the outputs as one more node. Pure."""

from bisect import insort
from enum import IntEnum, auto
from math import inf

from latebind.domain.actions import Outcome
from latebind.domain.errors import IllegalEvent
from latebind.domain.query import NOT_RUN
from latebind.queries.served import ServedQuery
from latebind.queries.view import Choice


class Phase(IntEnum):
    """The phase of a node. Up to JUDGED it may still start; from ENDED on it is settled."""

    WAITING = auto()
    JUDGED = auto()  # its condition is being evaluated
    MAPPED = auto()  # its inputs are being written
    RUNNING = auto()  # it is a request of its model
    ENDED = auto()
    LEFT_OUT = auto()


WAITING, JUDGED, MAPPED, RUNNING, ENDED, LEFT_OUT = Phase  # to look a member up in its class takes ten times as long

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

    For each node, `chosen` is the option that it runs with, `began` when it could begin, and `planned` what was planned
    for it in advance. Nodes in `open` may still begin; those in `due` can begin now, in this order. `work` is how many
    nodes are at work: all of them must end before the query can. Once `failure` is set, the query ends with it as soon
    as nothing is at work any more; `failed_node` caused it.
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
        """Have the query end with `outcome`, unless it has failed already."""
        if self.failure is None:
            self.failure, self.failed_node = outcome, node
