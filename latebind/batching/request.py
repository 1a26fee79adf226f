"""A request between its arrival and its reply."""

from enum import IntEnum, auto
from math import inf

from latebind.domain.errors import IllegalEvent


class State(IntEnum):
    """The state of a request, which is forgotten when it has ended."""

    QUEUED = auto()
    RUNNING = auto()
    LEAVING = auto()


# The states that may follow each state; the end of a request (its reply) may follow any.
LEGAL_MOVES = {
    State.QUEUED: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.LEAVING}),  # cancelled while a stage runs: it leaves when that stage has ended
    State.LEAVING: frozenset[State](),
}


# Looking a member up in its class takes ten times as long.
QUEUED, RUNNING, LEAVING = State.QUEUED, State.RUNNING, State.LEAVING


class Request:
    """One request. Times are in seconds. Not a dataclass, because mypyc compiles their constructors badly.

    `inputs` is the number of steps of its input; `steps` is the number of decoder steps that have run. Among requests
    that wait for its model, `priority` 1 goes first and 0 last. `slack` is the estimate made when it arrived. Other
    requests that were let past it have delayed it `preempted` times, by `delayed` seconds in all.
    """

    __slots__ = (
        "arrived",
        "deadline",
        "delayed",
        "id",
        "inputs",
        "model",
        "preempted",
        "priority",
        "slack",
        "slot",
        "started",
        "state",
        "steps",
    )

    def __init__(
        self,
        id: int,
        model: str,
        slot: int,
        deadline: float,
        arrived: float,
        inputs: int = 1,
        priority: int = 0,
        slack: float | None = None,
        started: float = inf,
        steps: int = 0,
    ) -> None:
        self.id = id
        self.model = model
        self.slot = slot
        self.deadline = deadline
        self.arrived = arrived
        self.inputs = inputs
        self.priority = priority
        self.slack = slack
        self.started = started
        self.steps = steps
        self.delayed = 0.0
        self.preempted = 0
        self.state: State = QUEUED

    def move(self, state: State) -> None:
        """Enter `state`. Raises `IllegalEvent`, and changes nothing, where the table of moves does not allow it."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalEvent(f"request {self.id} is {self.state.name} and cannot become {state.name}")
        self.state = state
