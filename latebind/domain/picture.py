"""What is under way at one moment, for somebody to look at: plain types that cross between processes as JSON. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum


class Doing(StrEnum):
    """What becomes of a sub-batch at this moment."""

    RUNS = "runs"
    RESTS = "rests"  # at a stage boundary: others run
    ASIDE = "aside"  # its next stage is not in memory


@dataclass(frozen=True, slots=True)
class MemberPicture:
    """A request in a sub-batch: the seconds since it came and to its deadline, and how often others were let past."""

    request: int
    age: float
    left: float
    preempted: int


@dataclass(frozen=True, slots=True)
class BatchPicture:
    """A sub-batch of `size` requests before or in `stage` of its model; `members` are the first of them."""

    model: str
    stage: int
    stages: int
    size: int
    doing: Doing
    members: tuple[MemberPicture, ...]


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """The batch table of a worker, the newest sub-batch first. It has run for `seconds`, 0 where it does not."""

    largest: int  # of its batches; 0: what model and policy allow
    seconds: float
    batches: tuple[BatchPicture, ...]


@dataclass(frozen=True, slots=True)
class LanePicture:
    """Who waits for a model: those who may begin, those `held` until it is in memory, and for how long the oldest has.

    `rate` is how many have come a second of late. Where memory is limited, `resident` are the pieces that are there,
    the stages first, then the learned caches, `loading` those on their way, and `importance` what a byte of it is
    worth to the policy, where that says so.
    """

    waiting: int
    held: int
    oldest: float
    rate: float
    resident: tuple[int, ...] | None = None
    loading: tuple[int, ...] = ()
    importance: float | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """All workers, all models by name, and how many requests of each query are at each of its steps."""

    workers: tuple[WorkerPicture, ...] = ()
    models: dict[str, LanePicture] = field(default_factory=dict)
    queries: dict[str, tuple[int, ...]] = field(default_factory=dict)
