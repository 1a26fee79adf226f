"""What has happened: the events that the scheduler is told of, in past participles. Times are given beside them."""

from msgspec import Struct

from latebind.domain.equality import EqualButLast


class Arrived(Struct, frozen=True, gc=False):
    """One call of a client: requests for `model`, their inputs in `slots`, all due at `deadline`.

    A call of N rows is N requests; they are accepted or refused together. A request of a query also owns as many
    numbers behind its own as the query has nodes. `deadline` is in seconds of the scheduler's clock. `inputs` are the
    steps of the input of each request, 1 where it is left out; `outputs` those of its answer, which only an oracle
    knows beforehand. Of those who wait for a model, `priority` 1 goes first, up to 255, and 0 last. Where `trace` is
    not 0, their life is followed (`domain.tracing`) and told under this number. `more` says that another call of this
    model has come with it and is told next, so that nothing need begin before.
    """

    model: str
    deadline: float
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    priority: int = 0
    trace: int = 0
    more: bool = False


class Cancelled(Struct, frozen=True, gc=False):
    """The client of this request has gone; whatever is left of its work is in vain."""

    request: int


class StageDone(EqualButLast, frozen=True, gc=False):
    """A worker has run a stage of its sub-batch.

    `exited` are the members that have their answer: by a learned cache, or because their last step was this one. The
    last seconds of it were `looked` up in learned caches; that is told for traces and makes no difference.
    """

    worker: int
    exited: tuple[int, ...] = ()
    looked: float = 0.0


class Exited(Struct, frozen=True, gc=False):
    """A learned cache behind `stage`, asked aside, has answered `requests` while their network runs on.

    Those that have ended meanwhile do not count.
    """

    worker: int
    stage: int
    requests: tuple[int, ...]


class StageFailed(Struct, frozen=True, gc=False):
    """A stage raised; none of its sub-batch has an answer."""

    worker: int


class Loaded(Struct, frozen=True, gc=False):
    """All pieces of a `Load` are in memory, which took so many `seconds`.

    `sizes` are the bytes that each was found to take, where that was measured. Of the bytes `read` for it so many lay
    in the page cache, `cached`.
    """

    model: str
    pieces: tuple[int, ...]
    seconds: float
    sizes: tuple[int, ...] = ()
    read: int = 0
    cached: int = 0


class LoadFailed(Struct, frozen=True, gc=False):
    """These pieces of a `Load` could not be brought into memory, and none of them is there."""

    model: str
    pieces: tuple[int, ...]


class Branched(Struct, frozen=True, gc=False):
    """Whether the conditions of the `nodes` of a `Branch` hold, in their order.

    Where `more` is to be told at once of what was looked into together, nothing begins until it has been.
    """

    request: int
    nodes: tuple[int, ...]
    holds: tuple[bool, ...]
    more: bool = False


class Mapped(Struct, frozen=True, gc=False):
    """The inputs of `node` lie where its model reads them; behind the last node, the outputs of the query.

    For `more` see `Branched`.
    """

    request: int
    node: int
    more: bool = False


class MapFailed(Struct, frozen=True, gc=False):
    """The conditions of `nodes`, or the inputs of the one, could not be worked out. For `more` see `Branched`."""

    request: int
    nodes: tuple[int, ...]
    more: bool = False


class Woke(Struct, frozen=True, gc=False):
    """A time asked for by `WakeAt` has come. A late or doubled one is harmless."""


Event = (
    Arrived | Cancelled | StageDone | Exited | StageFailed | Loaded | LoadFailed | Branched | Mapped | MapFailed | Woke
)
