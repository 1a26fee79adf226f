"""A snapshot of what is running, for the dashboard: plain types that cross between processes as JSON. Pure."""

from dataclasses import dataclass, field
from typing import Literal

Doing = Literal["runs", "rests", "aside"]  # resting at a stage boundary, others run; aside, its stage is not in memory


@dataclass(frozen=True, slots=True)
class MemberPicture:
    """A request in a sub-batch: seconds since it arrived, seconds to its deadline, and how often it was preempted."""

    request: int
    age: float
    left: float
    preempted: int


@dataclass(frozen=True, slots=True)
class BatchPicture:
    """A sub-batch of `size` requests before or in `stage` of its model, which has `stages`; `members` are the first."""

    model: str
    stage: int
    stages: int
    size: int
    doing: Doing
    members: tuple[MemberPicture, ...]


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """The batch table of a worker, the newest sub-batch first. Its launch runs for `seconds` so far, 0 without one."""

    largest: int  # its largest batch; 0: what model and policy allow
    seconds: float
    batches: tuple[BatchPicture, ...]


@dataclass(frozen=True, slots=True)
class LanePicture:
    """The requests that wait for a model: `waiting` ones may start, `held` ones wait until it is in memory.

    `oldest` is the longest wait in seconds, `rate` the recent arrivals per second. Where memory is limited, `resident`
    are the pieces in memory, the stages first, then the learned caches; `loading` those being loaded; `importance` what
    a byte of it is worth to the policy, where it knows.
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
    """All workers, all models by name, and the number of requests of each query at each of its steps.

    It is `age` seconds old if the engine has not answered since.
    """

    workers: tuple[WorkerPicture, ...] = ()
    models: dict[str, LanePicture] = field(default_factory=dict)
    queries: dict[str, tuple[int, ...]] = field(default_factory=dict)
    age: float = 0.0
