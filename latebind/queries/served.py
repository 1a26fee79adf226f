"""One query as the scheduler has it: the order of its nodes, its planner, and what that plans with. Pure."""

from latebind.domain.query import Query, StepRows
from latebind.queries import make_planner
from latebind.queries.bounds import LowerBound, longest_path
from latebind.queries.branches import Branches
from latebind.queries.estimates import Estimates
from latebind.queries.overhead import StepOverhead
from latebind.queries.view import Choice, PlanView
from latebind.scheduler import Scheduler


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
        self.guarded = [*(node.guarded for node in query.nodes), False]
        self.branches = Branches()
        self.overhead = StepOverhead()
        self._scheduler = scheduler
        self._planner = make_planner(query.planner)
        self._models = tuple(dict.fromkeys(model for node in query.nodes for model in node.models))
        self._length = 1 + longest_path(query)
        self._least = LowerBound(query)
        self._estimates = Estimates(self._least, {})
        self._looked = False  # whether the estimates are up to date

    def pick(self, node: int, opened: frozenset[int], left: float, allowed: float) -> Choice:
        """Have the planner pick a model for a node. The time between steps is subtracted from what it may plan with.

        `left` are the seconds left of the deadline, of the `allowed` seconds that there were on arrival.
        """
        overhead = self.overhead.seconds
        outlook = self.estimates.of_step(overhead)
        view = PlanView(self.query, opened, left - overhead, outlook, self.branches, allowed - overhead * self._length)
        return self._planner.pick(view, node)

    def is_late(self, seconds: float) -> bool:
        """Tell whether a query with so many seconds would be late even with all models in memory."""
        return seconds < Estimates(self._least, self._scheduler.outlooks(self._models, loaded=True)).least

    @property
    def estimates(self) -> Estimates:
        """What to expect of the query's models now; the same object as long as nothing has changed."""
        if not self._looked:
            outlooks = self._scheduler.outlooks(self._models)
            if outlooks != self._estimates.outlooks:
                self._estimates = Estimates(self._least, outlooks)
            self._looked = True
        return self._estimates

    def invalidate(self) -> None:
        """Note that the scheduler has handled events, so that estimates are looked up again."""
        self._looked = False
