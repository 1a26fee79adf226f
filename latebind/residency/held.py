"""One model as it lies in memory: which of its pieces are there, and which of those may go."""

from collections.abc import Sequence
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
    between the oldest of all who wait and the oldest of these. Of stages that are there in part, `parts` are the bytes.
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
        "parts",
        "place",
        "resident",
        "waiting",
    )

    def __init__(self, name: str, footprint: Footprint) -> None:
        self.name = name
        self.footprint = footprint
        self.life = Life.ABSENT
        self.resident: set[int] = set()
        self.parts: dict[int, int] = {}
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
    def absent(self) -> bool:
        """Whether nothing of it is in memory."""
        return not self.resident and not self.parts

    @property
    def missing(self) -> tuple[int, ...]:
        """The stages that are neither wholly in memory nor on their way, ascending."""
        if not self.lacks:
            return ()
        return tuple([p for p in range(self.footprint.stages) if p not in self.resident and p not in self.loading])

    @property
    def load_seconds(self) -> float:
        """The seconds until all stages are in memory, if they were loaded now and at once."""
        if not self.lacks:
            return 0.0
        seconds = self.seconds_of([p for p in range(self.footprint.stages) if p not in self.resident])
        return seconds if self.loading or not self.absent else seconds + self.footprint.fixed

    @property
    def wait_seconds(self) -> float:
        """The seconds that a request would wait for stages, if loads began now: what comes while it runs costs none."""
        if not self.lacks or not self.footprint.runs:
            return self.load_seconds
        lacks = [p for p in range(self.footprint.stages) if p not in self.resident]
        come = ran = self.load_seconds - self.seconds_of(lacks)
        for stage, runs in enumerate(self.footprint.runs):
            if stage not in self.resident:
                come += self.seconds_of((stage,))
                ran = max(ran, come)
            ran += runs
        return max(0.0, ran - sum(self.footprint.runs))

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
        there = self.resident.union(self.parts).difference(self.loading) if self.parts else self.resident
        if self.needed == inf and not self.footprint.behind:
            return tuple(sorted(there, reverse=True))
        if not self.footprint.behind:
            return tuple(sorted([stage for stage in there if stage < self.needed], reverse=True))
        return tuple(sorted([p for p in there if self.stage_of(p) < self.needed], key=self._last_first))

    def stage_of(self, piece: int) -> int:
        """Return the stage that a piece is, or behind which it stands."""
        stages = self.footprint.stages
        return piece if piece < stages else self.footprint.behind[piece - stages]

    def size_of(self, pieces: tuple[int, ...]) -> int:
        """Return the bytes of these pieces."""
        return sum([self.footprint.sizes[piece] for piece in pieces])

    def there(self, piece: int) -> int:
        """Return the bytes of a piece that are in memory."""
        return self.footprint.sizes[piece] if piece in self.resident else self.parts.get(piece, 0)

    def lacking(self, pieces: tuple[int, ...]) -> int:
        """Return the bytes of these pieces, none of which is wholly there, that are not in memory."""
        if not self.parts:
            return self.size_of(pieces)
        return self.size_of(pieces) - sum([self.parts.get(piece, 0) for piece in pieces])

    def seconds_of(self, pieces: Sequence[int]) -> float:
        """Return the seconds that what is lacking of these pieces takes to load."""
        seconds, sizes, parts = self.footprint.seconds, self.footprint.sizes, self.parts
        if not parts:
            return sum([seconds[piece] for piece in pieces])
        return sum([seconds[piece] * (1.0 - parts.get(piece, 0) / max(sizes[piece], 1)) for piece in pieces])

    def learn(self, pieces: tuple[int, ...], seconds: float, expected: float) -> None:
        """Take into account how long pieces took to load, beside what was expected."""
        if expected <= 0.0:
            return
        known = list(self.footprint.seconds)
        for piece in pieces:
            known[piece] += NEWEST * (seconds - expected) * known[piece] / expected
        self.footprint = replace(self.footprint, seconds=tuple(known))

    def move(self, life: Life) -> None:
        """Go to `life`, or raise `IllegalEvent` and stay."""
        if life not in LEGAL_MOVES[self.life]:
            raise IllegalEvent(f"model {self.name!r} is {self.life.name} and cannot become {life.name}")
        self.life = life

    def _last_first(self, piece: int) -> tuple[int, int]:
        return -self.stage_of(piece), -piece
