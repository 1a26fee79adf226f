"""The life of a model in memory: a table of legal moves."""

from enum import Enum, auto


class Life(Enum):
    """Where a model is in its life. Some of its stages may be in memory in any state but ABSENT and READY.

    ABSENT, nothing of it is there; LOADING, pieces are on their way; PARTIAL, some stages are there and nothing is on
    its way; READY, all stages are there; DRAINING, who has begun may end, nobody begins, then it goes; FAILED, it could
    not be loaded and is not tried again for a while.
    """

    ABSENT = auto()
    LOADING = auto()
    PARTIAL = auto()
    READY = auto()
    DRAINING = auto()
    FAILED = auto()


LEGAL_MOVES = {
    Life.ABSENT: frozenset({Life.LOADING}),
    Life.LOADING: frozenset({Life.PARTIAL, Life.READY, Life.FAILED}),
    Life.PARTIAL: frozenset({Life.LOADING, Life.DRAINING, Life.ABSENT}),
    Life.READY: frozenset({Life.LOADING, Life.PARTIAL, Life.DRAINING, Life.ABSENT}),  # loading learned caches
    Life.DRAINING: frozenset({Life.PARTIAL, Life.READY, Life.ABSENT}),
    Life.FAILED: frozenset({Life.LOADING, Life.ABSENT}),
}
