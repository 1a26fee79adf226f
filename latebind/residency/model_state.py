"""Which pieces of one model are in memory, and which of them may be evicted."""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from math import inf

from latebind.domain.costs import Footprint
from latebind.domain.errors import IllegalEvent


class LoadState(Enum):
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
    LoadState.ABSENT: frozenset({LoadState.LOADING}),
    LoadState.LOADING: frozenset({LoadState.PARTIAL, LoadState.READY, LoadState.FAILED}),
    LoadState.PARTIAL: frozenset({LoadState.LOADING, LoadState.ABSENT}),
    LoadState.READY: frozenset({LoadState.LOADING, LoadState.PARTIAL, LoadState.ABSENT}),  # LOADING: its learned caches
    LoadState.FAILED: frozenset({LoadState.LOADING, LoadState.ABSENT}),
}


NEWEST = 0.3  # weight of the newest measurement in the seconds that a piece takes to load


class ModelState:
    """The pieces of one model, numbered as in its `Footprint`. Policies only read it.

    `resident` are the pieces that are wholly in memory. `parts` maps each stage that is there in part to its bytes in
    memory. `loading` are the pieces whose load is under way.

    Nothing of a `pinned` model may be evicted. The requests that have started need the pieces of stage `needed_from`
    and later. `waiting` requests for the model have not started. `queue_position` is the number of requests that
    arrived between the oldest waiting request of all models and the oldest one of this model; None where policies are
    not told.
    """

    __slots__ = (
        "bytes",
        "footprint",
        "loading",
        "missing_stages",
        "name",
        "needed_from",
        "parts",
        "phase",
        "pinned",
        "queue_position",
        "resident",
        "waiting",
    )

    def __init__(self, name: str, footprint: Footprint) -> None:
        self.name = name
        self.footprint = footprint
        self.phase = LoadState.ABSENT
        self.resident: set[int] = set()
        self.parts: dict[int, int] = {}
        self.loading: tuple[int, ...] = ()
        self.bytes = 0  # in memory, without what is loading
        self.missing_stages = footprint.stages  # number of stages that are not resident
        self.pinned = False
        self.needed_from: float = inf
        self.waiting = 0
        self.queue_position: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all stages are in memory."""
        return self.missing_stages == 0

    @property
    def absent(self) -> bool:
        """Whether nothing of it is in memory."""
        return not self.resident and not self.parts

    @property
    def missing(self) -> tuple[int, ...]:
        """The stages that are neither wholly in memory nor being loaded, ascending."""
        if not self.missing_stages:
            return ()
        return tuple([p for p in range(self.footprint.stages) if p not in self.resident and p not in self.loading])

    @property
    def load_seconds(self) -> float:
        """The seconds until all stages are in memory if they were all loaded now."""
        if not self.missing_stages:
            return 0.0
        seconds = self.seconds_of([p for p in range(self.footprint.stages) if p not in self.resident])
        return seconds if self.loading or not self.absent else seconds + self.footprint.fixed

    @property
    def wait_seconds(self) -> float:
        """The seconds that a request would wait for stages if their loads began now.

        A stage that is loaded while earlier stages run causes no wait.
        """
        if not self.missing_stages or not self.footprint.runs:
            return self.load_seconds
        missing = [p for p in range(self.footprint.stages) if p not in self.resident]
        loaded_at = ran_at = self.load_seconds - self.seconds_of(missing)
        for stage, runs in enumerate(self.footprint.runs):
            if stage not in self.resident:
                loaded_at += self.seconds_of((stage,))
                ran_at = max(ran_at, loaded_at)
            ran_at += runs
        return max(0.0, ran_at - sum(self.footprint.runs))

    @property
    def stage_bytes(self) -> int:
        """The bytes of all stages."""
        return sum(self.footprint.sizes[: self.footprint.stages])

    @property
    def wholly_evictable(self) -> bool:
        """Whether everything of it that is in memory may be evicted."""
        return not self.pinned and not self.loading and self.needed_from == inf

    def evictable_pieces(self) -> tuple[int, ...]:
        """Return the pieces that may be evicted, in the order in which they should be.

        Later stages come first, because a model starts on its first stages.
        """
        if self.pinned:
            return ()
        present = self.resident.union(self.parts).difference(self.loading) if self.parts else self.resident
        if self.needed_from == inf and not self.footprint.behind:
            return tuple(sorted(present, reverse=True))
        if not self.footprint.behind:
            return tuple(sorted([stage for stage in present if stage < self.needed_from], reverse=True))
        return tuple(sorted([p for p in present if self.stage_of(p) < self.needed_from], key=self._last_first))

    def stage_of(self, piece: int) -> int:
        """Return the stage that a piece is, or, for a learned cache, the stage that it stands behind."""
        stages = self.footprint.stages
        return piece if piece < stages else self.footprint.behind[piece - stages]

    def size_of(self, pieces: tuple[int, ...]) -> int:
        """Return the bytes of these pieces, in memory or not."""
        return sum([self.footprint.sizes[piece] for piece in pieces])

    def resident_bytes(self, piece: int) -> int:
        """Return the bytes of a piece that are in memory."""
        return self.footprint.sizes[piece] if piece in self.resident else self.parts.get(piece, 0)

    def missing_bytes(self, pieces: tuple[int, ...]) -> int:
        """Return the bytes of these pieces that are not in memory; none of the pieces may be wholly resident."""
        if not self.parts:
            return self.size_of(pieces)
        return self.size_of(pieces) - sum([self.parts.get(piece, 0) for piece in pieces])

    def seconds_of(self, pieces: Sequence[int]) -> float:
        """Return the seconds that it takes to load the missing bytes of these pieces."""
        seconds, sizes, parts = self.footprint.seconds, self.footprint.sizes, self.parts
        if not parts:
            return sum([seconds[piece] for piece in pieces])
        return sum([seconds[piece] * (1.0 - parts.get(piece, 0) / max(sizes[piece], 1)) for piece in pieces])

    def learn(self, pieces: tuple[int, ...], seconds: float, expected: float) -> None:
        """Correct the load times of pieces that took `seconds` to load where `expected` seconds were predicted."""
        if expected <= 0.0:
            return
        known = list(self.footprint.seconds)
        for piece in pieces:
            known[piece] += NEWEST * (seconds - expected) * known[piece] / expected
        self.footprint = replace(self.footprint, seconds=tuple(known))

    def move(self, phase: LoadState) -> None:
        """Enter `phase`. Raises `IllegalEvent`, and changes nothing, where the table of moves does not allow it."""
        if phase not in LEGAL_MOVES[self.phase]:
            raise IllegalEvent(f"model {self.name!r} is {self.phase.name} and cannot become {phase.name}")
        self.phase = phase

    def _last_first(self, piece: int) -> tuple[int, int]:
        return -self.stage_of(piece), -piece
