"""What has happened: the events that the scheduler is told of, in past participles. Times are given beside them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request for `model` lies in slot `slot` and wants its answer by `deadline` (seconds, the scheduler's clock)."""

    request: int
    model: str
    slot: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client of this request has gone; whatever is left of its work is in vain."""

    request: int


@dataclass(frozen=True, slots=True)
class StageDone:
    """A worker has run a stage of its sub-batch; `exited` are the members that its learned cache answered."""

    worker: int
    exited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage raised; none of its sub-batch has an answer."""

    worker: int


@dataclass(frozen=True, slots=True)
class Woke:
    """A time asked for by `WakeAt` has come. A late or doubled one is harmless."""


Event = Arrived | Cancelled | StageDone | StageFailed | Woke
