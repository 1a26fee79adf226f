"""The sides that are compared: those of Ebird's evaluation, some that it lacks, `late`, and Ebird in parts."""

from dataclasses import dataclass
from enum import StrEnum

from latebind.domain.config import PolicyConfig
from research.hardware.chip import LARGEST
from research.policies import BATCHING

WINDOWS = (0.005, 0.010, 0.020, 0.030, 0.050, 0.075)  # seconds
PAPERS_WINDOW = 0.030  # that of ResNet-152 (section III-A)
GRANULARITIES = (1, 1, 2, 4, 8, 16)  # section VI-C


class Kind(StrEnum):
    """What a side stands for. With a window or several workers it is there for some, and counts by its best."""

    NO_WAIT = "no wait"
    OPTIMAL = "optimal wait"
    STATIC = "static"
    POOL_ZERO = "no wait, with pool"
    POOL_WORKERS = "no wait, with pool and workers"
    ELASTIC = "elastic"
    LATE = "late"
    POOL = "only pool"
    WORKERS = "only workers"
    SIZES = "only sizes"


@dataclass(frozen=True, slots=True)
class Side:
    """One policy with its settings and workers, which find inputs on the card where there is a pool.

    No request is refused or dropped.
    """

    kind: Kind
    policy: PolicyConfig
    pool: bool = False
    workers: int = 1
    granularities: tuple[int, ...] = ()
    at_once: int = 0

    @property
    def window(self) -> float:
        """How long a batch is held back, in seconds."""
        return self.policy.window

    @property
    def setting(self) -> str:
        """The setting in which sides of the same kind differ."""
        if self.granularities:
            return ""
        workers = f"{self.workers} workers" if self.workers > 1 else ""
        window = f"{self.window * 1e3:g} ms" if self.window else ""
        return ", ".join(filter(None, (window, workers)))

    @property
    def label(self) -> str:
        """The kind and its setting."""
        return f"{self.kind} ({self.setting})" if self.setting else str(self.kind)


def _graph(window: float = 0.0) -> PolicyConfig:
    return PolicyConfig("graph", LARGEST, window=window, shed=False)


NO_WAIT = Side(Kind.NO_WAIT, _graph())
OPTIMAL = tuple(Side(Kind.OPTIMAL, _graph(window)) for window in WINDOWS)
STATIC = tuple(Side(Kind.STATIC, _graph(window)) for window in WINDOWS)
POOL_ZERO = Side(Kind.POOL_ZERO, _graph(), pool=True)
POOL_WORKERS = tuple(Side(Kind.POOL_WORKERS, _graph(), True, workers) for workers in (2, 4))
LATE = tuple(Side(Kind.LATE, PolicyConfig("late", LARGEST, shed=False), True, workers) for workers in (1, 2, 4))
_ALGORITHM_1 = PolicyConfig(BATCHING["elastic"], LARGEST, shed=False)
ELASTIC = Side(Kind.ELASTIC, _ALGORITHM_1, True, len(GRANULARITIES), GRANULARITIES)

EVALUATED = (NO_WAIT, *OPTIMAL, *STATIC, POOL_ZERO, *POOL_WORKERS, ELASTIC, *LATE)
PARTS = (  # each is optimal wait with one thing of Ebird; a window of 0 may be the best of several workers
    *(Side(Kind.POOL, _graph(window), pool=True) for window in WINDOWS),
    *(Side(Kind.WORKERS, _graph(window), workers=len(GRANULARITIES)) for window in (0.0, *WINDOWS)),
    Side(Kind.SIZES, _ALGORITHM_1, False, len(GRANULARITIES), GRANULARITIES, at_once=1),
)
