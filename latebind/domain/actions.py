"""What is to be done: the actions that the scheduler answers with, in imperatives. A driver performs them in order."""

from enum import IntEnum

from msgspec import Struct

from latebind.domain.equality import EqualButLast


class Outcome(IntEnum):
    """How a request ended."""

    ANSWERED = 0
    REFUSED_FULL = 1
    REFUSED_LATE = 2
    EXPIRED = 3
    CANCELLED = 4
    FAILED = 5
    NOT_LOADED = 6  # its model could not be brought into memory
    REFUSED_LOADING = 7  # its model is being loaded, which takes longer than it may


class Run(Struct, frozen=True, gc=False):
    """Run `stage` of `model` on `worker` for these requests; their inputs lie in `slots`, in the same order.

    At stage 0 the worker gathers the inputs from the slots; at a later stage it goes on with the activations it
    holds, of which only those of `requests` are still wanted. Where batches are not rid of those who have left, it
    computes so many `rows`; 0: one for each request. A `wide` run has the cores of all workers, of whom no other runs.
    """

    worker: int
    model: str
    stage: int
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    rows: int = 0
    wide: bool = False


class Reply(EqualButLast, frozen=True, gc=False):
    """End `request` of `model` with `outcome`.

    `stage` is the last stage it ran, -1 if none; of a query, the node that it came to. `waited` and `ran` are its
    seconds in the queue and on a worker; `waited` of one REFUSED_LOADING those until its model is expected. `slack` are
    those that it was taken to have to spare when it came, below 0 where it was refused for that; it is told for the
    figures and makes no difference between two replies.
    """

    request: int
    model: str
    outcome: Outcome
    stage: int
    waited: float
    ran: float
    slack: float | None = None


class Load(Struct, frozen=True, gc=False):
    """Bring these pieces of `model` into memory, in this order; one `Loaded` or `LoadFailed` tells when all are there.

    Pieces are numbered as its `Footprint` counts them. `begins` says that nothing else of the model is there or on its
    way. Of each piece so many bytes are `there`; empty: of none any.
    """

    model: str
    pieces: tuple[int, ...]
    begins: bool = True
    there: tuple[int, ...] = ()


class Evict(Struct, frozen=True, gc=False):
    """Give the memory of these pieces of `model` back, before anything is loaded that is told of after this.

    Of one more, `part`, only the first bytes stay, so many as stand behind its number.
    """

    model: str
    pieces: tuple[int, ...]
    part: tuple[int, int] | None = None


class Branch(Struct, frozen=True, gc=False):
    """Find out whether the conditions of `nodes` hold for a request of `query`; a `Branched` tells.

    Its own tensors lie in `slot`; `chosen` is the model, by its place among the options, that each node has run with.
    """

    query: str
    request: int
    slot: int
    nodes: tuple[int, ...]
    chosen: tuple[int, ...]


class Map(Struct, frozen=True, gc=False):
    """Write the inputs of `node`, to run with the model that is `chosen` for it; a `Mapped` tells when they are there.

    Behind the last node are the outputs of the query.
    """

    query: str
    request: int
    slot: int
    node: int
    chosen: tuple[int, ...]


class StepEnded(EqualButLast, frozen=True, gc=False):
    """A step of a query has ended, as a request of `model` ends, in option `option` of `node`.

    `budget` is how many seconds it was planned to take from when it could begin, `spent` how many it took. Nothing is
    to be done but to tell.
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


class WakeAt(Struct, frozen=True, gc=False):
    """Send `Woke` at `time` or soon after; a later `WakeAt` replaces an earlier one."""

    time: float


Action = Run | Reply | Load | Evict | Branch | Map | StepEnded | WakeAt
