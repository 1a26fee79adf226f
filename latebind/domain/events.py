"""The events that the scheduler handles, in past participles. The time of an event is passed beside it."""

from msgspec import Struct
from msgspec.structs import astuple


class Record(Struct, frozen=True, gc=False, array_like=True, tag=True):
    """An event or action. In the event log it is a list: its name and its fields in their order."""


class EqualButLast(Record, frozen=True, eq=False):
    """An event or action whose last field is only for metrics and traces: it is ignored by `==` and `hash`."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and astuple(self)[:-1] == astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash(astuple(self)[:-1])


class Arrived(Record, frozen=True):
    """One call of a client: requests for `model`, their inputs in `slots`, all due at `deadline`.

    A call of N rows is N requests; they are accepted or refused together. A request of a query also owns the ids after
    its own, one for each node of the query. `deadline` is in seconds of the scheduler's clock. `inputs` are the lengths
    of the requests, 1 where left out: the steps of a sequence, or the product of the sizes of named dimensions. Calls
    whose named dimensions have the same sizes have the same number for `sizes`; it is 0 where there are none. Among
    requests that wait for a model, priority 1 goes first, up to 255, and 0 last. If `trace` is not 0, the requests
    are traced (`domain.tracing`) under this number. `more` says that another call of this model arrived together with
    it and is the next event, so that nothing should start before that. `streams` says that the caller gets each
    token when it is written (`engine.pieces`). The requests run at `level` of their model's operating curve, or at a
    less sure one if the load requires it.
    """

    model: str
    deadline: float
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    inputs: tuple[int, ...] = ()
    priority: int = 0
    trace: int = 0
    more: bool = False
    streams: bool = False
    sizes: int = 0
    level: int = 0


class Cancelled(Record, frozen=True):
    """The client of this request has gone; the rest of its work is useless."""

    request: int


class StageDone(EqualButLast, frozen=True):
    """A worker has run a stage of its sub-batch.

    `exited` are the members that have their answer: from a learned cache, or because this was their last step. Its last
    `looked` seconds were spent on lookups in learned caches; that is for traces, and ignored in comparisons.
    """

    worker: int
    exited: tuple[int, ...] = ()
    looked: float = 0.0


class Exited(Record, frozen=True):
    """A lookup beside the worker, in the learned cache behind `stage`, has answered `requests` while they run on.

    Requests that have ended meanwhile are ignored.
    """

    worker: int
    stage: int
    requests: tuple[int, ...]


class StageFailed(Record, frozen=True):
    """A stage raised; none of its sub-batch has an answer. If it has several members, they run it again separately."""

    worker: int


class Loaded(Record, frozen=True):
    """All pieces of a `Load` are in memory; the load took `seconds`.

    `sizes` are the measured bytes of each piece, where they were measured. `read` is the number of bytes that were
    read, of which `cached` were in the page cache.
    """

    model: str
    pieces: tuple[int, ...]
    seconds: float
    sizes: tuple[int, ...] = ()
    read: int = 0
    cached: int = 0


class LoadFailed(Record, frozen=True):
    """The pieces of a `Load` could not be loaded; none of them is in memory."""

    model: str
    pieces: tuple[int, ...]


class Branched(Record, frozen=True):
    """The conditions of the `nodes` of a `Branch` were evaluated; `holds[i]` are those of `requests[i]`, in order.

    `more` says that the next event belongs to the same evaluation, so that nothing should start before that.
    """

    requests: tuple[int, ...]
    nodes: tuple[int, ...]
    holds: tuple[tuple[bool, ...], ...]
    more: bool = False


class Mapped(Record, frozen=True):
    """The inputs of `node` are where its model reads them; for the node after the last, the outputs of the query.

    For `more` see `Branched`. Where the model's rows differ in size, `inputs` and `sizes` have for each request what
    `Arrived` has for its model.
    """

    requests: tuple[int, ...]
    node: int
    more: bool = False
    inputs: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


class MapFailed(Record, frozen=True):
    """The conditions of `nodes`, or the inputs of a single one, could not be computed. For `more` see `Branched`."""

    requests: tuple[int, ...]
    nodes: tuple[int, ...]
    more: bool = False


class Limited(Record, frozen=True):
    """From now on requests of `model` may start only at the first `levels` levels of its operating curve.

    The first is the whole network. Those that have started keep theirs.
    """

    model: str
    levels: int


class Woke(Record, frozen=True):
    """A time asked for by `WakeAt` has come. A late or doubled one is harmless."""


Event = (
    Arrived
    | Cancelled
    | StageDone
    | Exited
    | StageFailed
    | Loaded
    | LoadFailed
    | Branched
    | Mapped
    | MapFailed
    | Limited
    | Woke
)
