"""The phases of a model in memory, and which phase may follow which."""

from enum import Enum, auto


class Phase(Enum):
    """How much of a model is in memory, and whether a load is under way.

    ABSENT: nothing is in memory. LOADING: a load is under way. PARTIAL: some stages are in memory and no load is under
    way. READY: all stages are in memory. FAILED: the last load failed, and the next attempt waits for a while.
    """

    ABSENT = auto()
    LOADING = auto()
    PARTIAL = auto()
    READY = auto()
    FAILED = auto()


LEGAL_MOVES = {
    Phase.ABSENT: frozenset({Phase.LOADING}),
    Phase.LOADING: frozenset({Phase.PARTIAL, Phase.READY, Phase.FAILED}),
    Phase.PARTIAL: frozenset({Phase.LOADING, Phase.ABSENT}),
    Phase.READY: frozenset({Phase.LOADING, Phase.PARTIAL, Phase.ABSENT}),  # LOADING: its learned caches
    Phase.FAILED: frozenset({Phase.LOADING, Phase.ABSENT}),
}
