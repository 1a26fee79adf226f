"""One query between its arrival and its reply: how far each node is, and the outputs as one node more. Pure."""

from collections.abc import Iterator
from enum import IntEnum, auto
from math import inf

from latebind.domain.actions import Outcome
from latebind.domain.errors import IllegalEvent
from latebind.domain.query import NOT_RUN, Query
from latebind.queries.planner import Choice


class Phase(IntEnum):
    """How far a node is."""

    WAITING = auto()
    JUDGED = auto()  # whether its condition holds is being found out
    MAPPED = auto()  # its inputs are being written
    RUNNING = auto()  # it is a request of its model
    ENDED = auto()
    LEFT_OUT = auto()


SETTLED = frozenset({Phase.ENDED, Phase.LEFT_OUT})
AT_WORK = frozenset({Phase.JUDGED, Phase.MAPPED, Phase.RUNNING})
OPEN = frozenset({Phase.WAITING, Phase.JUDGED})

# What may follow what.
LEGAL_MOVES = {
    Phase.WAITING: frozenset({Phase.JUDGED, Phase.MAPPED, Phase.LEFT_OUT}),
    Phase.JUDGED: frozenset({Phase.MAPPED, Phase.LEFT_OUT}),
    Phase.MAPPED: frozenset({Phase.RUNNING, Phase.ENDED, Phase.LEFT_OUT}),  # outputs end at once
    Phase.RUNNING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset[Phase](),
    Phase.LEFT_OUT: frozenset[Phase](),
}


class Life:
    """A request of a query. `doom` is how it will end, once nothing of it is at work any more, and `failed` the node.

    Of each node, `chosen` is the option that it runs with, `began` when it could begin, `planned` what was planned for
    it beforehand. The nodes in `open` may still begin.
    """

    def __init__(
        self, query: Query, request: int, slot: int, *, deadline: float, now: float, slack: float, priority: int
    ) -> None:
        nodes = len(query.nodes)
        self.query = query
        self.request = request
        self.slot = slot
        self.deadline = deadline
        self.arrived = now
        self.slack = slack
        self.priority = priority  # of its steps
        self.reached = now  # when it last got any further
        self.phases = [Phase.WAITING] * (nodes + 1)
        self.chosen = [NOT_RUN] * nodes
        self.budgets = [0.0] * nodes
        self.began = [inf] * nodes
        self.planned: dict[int, Choice] = {}
        self.open = frozenset(range(nodes))
        self.has_run = False  # any step, to its end
        self._settled: set[int] = set()
        self.waited = 0.0
        self.doom: Outcome | None = None
        self.failed = NOT_RUN
        self._working = 0

    @property
    def outputs(self) -> int:
        """The number by which the outputs go."""
        return len(self.query.nodes)

    @property
    def at_work(self) -> bool:
        """Whether anything is done for it, which has to end before it can."""
        return self._working > 0

    @property
    def running(self) -> list[int]:
        """The nodes that are requests of their models now."""
        return [node for node, phase in enumerate(self.phases) if phase is Phase.RUNNING]

    @property
    def came_to(self) -> int:
        """The node that the query came to: the one that failed, or the last that has run."""
        if self.failed != NOT_RUN:
            return self.failed
        return max([node for node in range(self.outputs) if self.has_answered(node)], default=NOT_RUN)

    def has_answered(self, node: int) -> bool:
        """Tell whether a node has run and its tensors are there."""
        return self.phases[node] is Phase.ENDED and node != self.failed

    def step(self, node: int) -> int:
        """Return the number of the request that a node makes."""
        return self.request + 1 + node

    def ready(self) -> Iterator[int]:
        """Yield the nodes whose turn it is, in order; those that cannot run any more are left out on the way.

        Nobody's turn comes once the query has to end.
        """
        for number, node in enumerate(self.query.nodes):
            if self.doom is not None:
                return
            if self.phases[number] is not Phase.WAITING or not self._settled.issuperset(node.after):
                continue
            if all(any(self.has_answered(i) for i in group) for group in node.needs):
                yield number
            else:
                self.move(number, Phase.LEFT_OUT)
        if self.doom is None and self.phases[-1] is Phase.WAITING and len(self._settled) == self.outputs:
            yield self.outputs

    def move(self, node: int, phase: Phase) -> None:
        """Go to `phase`, or raise `IllegalEvent` and stay."""
        before = self.phases[node]
        if phase not in LEGAL_MOVES[before]:
            raise IllegalEvent(f"node {node} of request {self.request} is {before.name} and cannot become {phase.name}")
        self.phases[node] = phase
        self._working += (phase in AT_WORK) - (before in AT_WORK)
        if phase not in OPEN and before in OPEN:
            self.open -= {node}
        if phase in SETTLED:
            self._settled.add(node)
        if before is Phase.RUNNING:
            self.has_run = True

    def fail(self, node: int, outcome: Outcome) -> None:
        """Have the query end with `outcome`, unless it already has to end."""
        if self.doom is None:
            self.doom, self.failed = outcome, node
