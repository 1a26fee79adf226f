"""One model as it lies in memory: which of its pieces are there, and which of those may go."""

from dataclasses import replace
from math import inf

from latebind.domain.errors import IllegalEvent
from latebind.domain.footprint import Footprint
from latebind.residency.life import LEGAL_MOVES, Life

NEWEST = 0.3  # of what a piece is taken to need, when it was measured again


class Held:
    """A model's pieces, numbered as its `Footprint` counts them. Policies only read.

    Nothing of a model that is `kept` may go. Pieces from stage `needed` on are needed by those who have begun.
    `waiting` requests have come for it and have not begun; where policies are to know, `place` says how many came
    between the oldest of all who wait and the oldest of these.
    """

    __slots__ = (
        "bytes",
        "footprint",
        "kept",
        "lacks",
        "life",
        "loading",
        "name",
        "needed",
        "place",
        "resident",
        "waiting",
    )

    def __init__(self, name: str, footprint: Footprint) -> None:
        self.name = name
        self.footprint = footprint
        self.life = Life.ABSENT
        self.resident: set[int] = set()
        self.loading: tuple[int, ...] = ()
        self.bytes = 0  # of what is resident
        self.lacks = footprint.stages  # stages that are not resident
        self.kept = False
        self.needed: float = inf
        self.waiting = 0
        self.place: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all stages are in memory."""
        return self.lacks == 0

    @property
    def missing(self) -> tuple[int, ...]:
        """The stages that are neither in memory nor on their way, ascending."""
        if not self.lacks:
            return ()
        return tuple([p for p in range(self.footprint.stages) if p not in self.resident and p not in self.loading])

    @property
    def load_seconds(self) -> float:
        """The seconds until all stages are in memory, if they were loaded now and at once."""
        if not self.lacks:
            return 0.0
        seconds = sum(
            [s for p, s in enumerate(self.footprint.seconds[: self.footprint.stages]) if p not in self.resident]
        )
        return seconds if self.loading else seconds + self.footprint.fixed

    @property
    def stage_bytes(self) -> int:
        """The bytes of all stages."""
        return sum(self.footprint.sizes[: self.footprint.stages])

    @property
    def whole(self) -> bool:
        """Whether all of it that is in memory may go."""
        return not self.kept and not self.loading and self.needed == inf

    def may_go(self) -> tuple[int, ...]:
        """Return the pieces that may go, in the order in which they should: a model starts on its first stages."""
        if self.kept:
            return ()
        if not self.footprint.behind:
            return tuple(sorted([stage for stage in self.resident if stage < self.needed], reverse=True))
        return tuple(sorted([p for p in self.resident if self.stage_of(p) < self.needed], key=self._last_first))

    def stage_of(self, piece: int) -> int:
        """Return the stage that a piece is, or behind which it stands."""
        stages = self.footprint.stages
        return piece if piece < stages else self.footprint.behind[piece - stages]

    def size_of(self, pieces: tuple[int, ...]) -> int:
        """Return the bytes of these pieces."""
        return sum([self.footprint.sizes[piece] for piece in pieces])

    def learn(self, pieces: tuple[int, ...], seconds: float) -> None:
        """Take into account how long pieces took to load."""
        footprint = self.footprint
        expected = sum([footprint.seconds[piece] for piece in pieces])
        if expected <= 0.0:
            return
        known = list(footprint.seconds)
        for piece in pieces:
            known[piece] += NEWEST * (seconds - expected) * known[piece] / expected
        self.footprint = replace(footprint, seconds=tuple(known))

    def move(self, life: Life) -> None:
        """Go to `life`, or raise `IllegalEvent` and stay."""
        if life not in LEGAL_MOVES[self.life]:
            raise IllegalEvent(f"model {self.name!r} is {self.life.name} and cannot become {life.name}")
        self.life = life

    def _last_first(self, piece: int) -> tuple[int, int]:
        return -self.stage_of(piece), -piece
