"""A request between its arrival and its reply."""

from enum import IntEnum, auto
from math import inf

from latebind.domain.errors import IllegalEvent


class State(IntEnum):
    """Where a request is in its life; it is forgotten when it has ended."""

    QUEUED = auto()
    RUNNING = auto()
    LEAVING = auto()


# What may follow what; the end of a request (its reply) may follow any state.
LEGAL_MOVES = {
    State.QUEUED: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.LEAVING}),  # cancelled while a stage runs: it leaves at the end of that
    State.LEAVING: frozenset[State](),
}


QUEUED, RUNNING, LEAVING = (
    State.QUEUED,
    State.RUNNING,
    State.LEAVING,
)  # to look a member up in its class takes ten times as long


class Request:
    """One request. Times in seconds. One is made for each that comes, so it is no dataclass: these compile badly.

    `inputs` are the steps of its input and `outputs` those of its answer, 0 where nobody knows them beforehand; so many
    decoder `steps` it has behind it. Of those who wait for its model, `priority` 1 goes first and 0 last. When it came
    it was taken to have `slack` to spare. Others that were let past it have held it up `delayed` seconds, in
    `preempted` goes.
    """

    __slots__ = (
        "arrived",
        "deadline",
        "delayed",
        "id",
        "inputs",
        "model",
        "outputs",
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
        outputs: int = 0,
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
        self.outputs = outputs
        self.priority = priority
        self.slack = slack
        self.started = started
        self.steps = steps
        self.delayed = 0.0
        self.preempted = 0
        self.state: State = QUEUED

    def move(self, state: State) -> None:
        """Go to `state`, or raise `IllegalEvent` and stay."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalEvent(f"request {self.id} is {self.state.name} and cannot become {state.name}")
        self.state = state
