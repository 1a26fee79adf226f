"""The actions that the scheduler returns, in imperatives. A driver performs them in order."""

from enum import IntEnum

from latebind.domain.events import EqualButLast, Record


class Outcome(IntEnum):
    """How a request ended."""

    ANSWERED = 0
    REFUSED_FULL = 1
    REFUSED_LATE = 2
    EXPIRED = 3
    CANCELLED = 4
    FAILED = 5
    NOT_LOADED = 6  # its model could not be loaded
    REFUSED_LOADING = 7  # its model is being loaded, which takes longer than its deadline allows


class Run(Record, frozen=True):
    """Run `stage` of `model` on `worker` for these requests; their inputs lie in `slots`, in the same order.

    At stage 0 the worker gathers the inputs from the slots; later it continues with the activations of `requests`.
    `levels` are those of the model's operating curve that they run at, in the same order; empty if it has none.
    """

    worker: int
    model: str
    stage: int
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    levels: tuple[int, ...] = ()


class Reply(EqualButLast, frozen=True):
    """End `request` of `model` with `outcome`.

    `stage` is the last stage that it ran, -1 if none; for a query, the last node that it reached. `waited` and `ran`
    are its seconds in the queue and on a worker; with REFUSED_LOADING, `waited` are the seconds until its model is
    expected. `slack` is the slack in seconds predicted when it arrived, below 0 if it was refused for that; it is
    ignored when replies are compared.
    """

    request: int
    model: str
    outcome: Outcome
    stage: int
    waited: float
    ran: float
    slack: float | None = None


class Load(Record, frozen=True):
    """Load these pieces of `model`, in this order; one `Loaded` or `LoadFailed` reports the end of the load.

    Pieces are numbered as in its `Footprint`. Nothing else of a model that `begins` is in memory or being loaded.
    """

    model: str
    pieces: tuple[int, ...]
    begins: bool = True


class Evict(Record, frozen=True):
    """Release the memory of these pieces of `model`, before any load of a later action starts."""

    model: str
    pieces: tuple[int, ...]


class Branch(Record, frozen=True):
    """Evaluate the conditions of `nodes` for `requests` of `query`; a `Branched` reports the results.

    The requests' own tensors are in `slots`. `chosen` is the model that each node has run with, by its place among the
    node's options: the same for all of these requests.
    """

    query: str
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    nodes: tuple[int, ...]
    chosen: tuple[int, ...]


class Map(Record, frozen=True):
    """Write the inputs of `node`, for the model `chosen` for it; a `Mapped` reports when they are written.

    The node after the last one stands for the outputs of the query. For the other fields see `Branch`.
    """

    query: str
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    node: int
    chosen: tuple[int, ...]


class StepEnded(EqualButLast, frozen=True):
    """Report that a step of a query has ended: a request of `model`, which is option `option` of `node`.

    `budget` are the seconds planned for it from when it could start, `spent` those that it took. It is for metrics.
    """

    query: str
    request: int
    node: int
    option: int
    model: str
    outcome: Outcome
    stage: int
    waited: float
    ran: float
    budget: float
    spent: float
    slack: float | None = None


class WakeAt(Record, frozen=True):
    """Send `Woke` at `time` or soon after; a later `WakeAt` replaces an earlier one."""

    time: float


Action = Run | Reply | Load | Evict | Branch | Map | StepEnded | WakeAt
