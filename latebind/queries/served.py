"""One query as the scheduler has it: the order of its nodes, what its models take, and its planner. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from latebind.domain.costs import Outlook
from latebind.domain.query import Node, Query, StepRows
from latebind.queries import make_planner
from latebind.queries.prospect import Branches
from latebind.queries.view import Choice, PlanView
from latebind.scheduler import Scheduler

NEWEST = 0.05  # the weight of the newest time between two steps in their mean
PAUSE = 3.0  # a time counts as at most so many times the mean: the machine is sometimes busy with other things
CHANGED = 0.1  # planners hear of another mean only if it differs by this share, so that their tables stay valid


class ServedQuery:
    """What all requests for a query have in common. Nodes are numbered; the outputs come after the last node.

    `before[i]` is how many nodes node i waits for, `behind[i]` are the nodes that wait for it, and the `first` nodes
    wait for none. `rows[i]` are the first rows of the options of node i (`StepRows`). `overhead` is the time in seconds
    between the end of a step and the start of the next, for conditions, inputs and decisions.
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
        self.overhead = 0.0
        self._mean_overhead = 0.0
        self._scheduler = scheduler
        self._planner = make_planner(query.planner)
        self._models = tuple(dict.fromkeys(model for node in query.nodes for model in node.models))
        self._length = 1 + longest_path(query)
        self._always = steps_that_run(query.nodes, range(len(query.nodes)))
        self._always_after = [steps_that_run(query.nodes, _behind(query, number)) for number in range(len(query.nodes))]
        # What the models can be expected to take, and what was worked out of that: kept until it changes.
        self._looked = False  # whether it is up to date
        self._outlooks: Mapping[str, Outlook] = {}
        self._least: float | None = None
        self._least_after: dict[int, float] = {}
        self._of_step: tuple[float, Callable[[str], Outlook]] = 0.0, self._outlooks.__getitem__

    def pick(self, node: int, opened: frozenset[int], left: float, allowed: float) -> Choice:
        """Have the planner pick a model for a node. The time between steps is subtracted from what it may plan with.

        `left` are the seconds left of the deadline, of the `allowed` seconds that there were on arrival.
        """
        outlook, overhead = self.outlook_of_step(), self.overhead
        view = PlanView(self.query, opened, left - overhead, outlook, self.branches, allowed - overhead * self._length)
        return self._planner.pick(view, node)

    def is_late(self, seconds: float) -> bool:
        """Tell whether a query with so many seconds would be late even with all models in memory."""
        outlooks = self._scheduler.outlooks(self._models, loaded=True)
        return seconds < least_seconds(self.query.nodes, self._always, outlooks)

    @property
    def least(self) -> float:
        """The least number of seconds that the query takes now: with less, no request is in time."""
        self._look()
        if self._least is None:
            self._least = least_seconds(self.query.nodes, self._always, self._outlooks)
        return self._least

    def least_after(self, node: int) -> float:
        """Return the least seconds that the nodes behind a node take, whose waits are not known in advance."""
        self._look()
        found = self._least_after.get(node)
        if found is None:
            found = least_seconds(self.query.nodes, self._always_after[node], self._outlooks, waiting=False)
            self._least_after[node] = found
        return found

    def outlook_of_step(self) -> Callable[[str], Outlook]:
        """Return a function from a model to its outlook as a step, which waits for its inputs too.

        It is the same function as long as its results stay the same: planners keep what they worked out for it.
        """
        self._look()
        overhead, found = self._of_step
        if overhead != self.overhead:
            overhead = self.overhead
            outlooks = {
                model: Outlook(one.wait + overhead, one.ends, one.chances) for model, one in self._outlooks.items()
            }
            found = outlooks.__getitem__
            self._of_step = overhead, found
        return found

    def took_between_steps(self, seconds: float) -> None:
        """Learn from the time between the end of a step and the start of the next."""
        if self._mean_overhead:
            self._mean_overhead += NEWEST * (min(seconds, PAUSE * self._mean_overhead) - self._mean_overhead)
        else:
            self._mean_overhead = seconds
        if abs(self._mean_overhead - self.overhead) > CHANGED * self.overhead:
            self.overhead = self._mean_overhead

    def invalidate(self) -> None:
        """Note that the scheduler has handled events, so that the outlooks of models are looked up again."""
        self._looked = False

    def _look(self) -> None:
        if self._looked:
            return
        self._looked = True
        outlooks = self._scheduler.outlooks(self._models)
        if outlooks != self._outlooks:
            self._outlooks = outlooks
            self._least = None
            self._least_after = {}
            self._of_step = 0.0, outlooks.__getitem__


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
            ends[number] = min([max(ready, one.wait if waiting else 0.0) + one.ends[0] for one in models])
    return max(ends.values(), default=0.0)


def longest_path(query: Query) -> int:
    """Return the number of nodes on the longest path."""
    steps: list[int] = []
    for node in query.nodes:
        steps.append(1 + max([steps[i] for i in node.after], default=0))
    return max(steps)


def _behind(query: Query, number: int) -> set[int]:
    found: set[int] = set()
    for i in range(number + 1, len(query.nodes)):
        if not {number, *found}.isdisjoint(query.nodes[i].after):
            found.add(i)
    return found
