"""One model as it lies in memory: which of its pieces are there, and which of those may go."""

from math import inf

from latebind.domain.errors import IllegalEvent
from latebind.domain.footprint import Footprint
from latebind.residency.life import LEGAL_MOVES, Life


class Held:
    """A model's pieces, numbered as its `Footprint` counts them. Policies only read.

    Nothing of a model that is `kept` may go. Pieces from stage `needed` on are needed by those who have begun.
    `waiting` requests have come for it and have not begun; where policies are to know, `place` says how many came
    between the oldest of all who wait and the oldest of these.
    """

    __slots__ = ("bytes", "footprint", "kept", "life", "loading", "name", "needed", "place", "resident", "waiting")

    def __init__(self, name: str, footprint: Footprint) -> None:
        self.name = name
        self.footprint = footprint
        self.life = Life.ABSENT
        self.resident: set[int] = set()
        self.loading: tuple[int, ...] = ()
        self.bytes = 0  # of what is resident
        self.kept = False
        self.needed: float = inf
        self.waiting = 0
        self.place: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all stages are in memory."""
        return self.life is Life.READY

    @property
    def missing(self) -> tuple[int, ...]:
        """The stages that are neither in memory nor on their way, ascending."""
        return tuple([p for p in range(self.footprint.stages) if p not in self.resident and p not in self.loading])

    @property
    def load_seconds(self) -> float:
        """The seconds that its missing stages take to load."""
        if self.life is Life.READY:
            return 0.0
        seconds = sum([self.footprint.seconds[piece] for piece in self.missing])
        return seconds + self.footprint.fixed if seconds and self.life is not Life.LOADING else seconds

    @property
    def whole(self) -> bool:
        """Whether all of it that is in memory may go."""
        return not self.kept and not self.loading and self.needed == inf

    def may_go(self) -> tuple[int, ...]:
        """Return the pieces that may go, in the order in which they should: a model starts on its first stages."""
        if self.kept:
            return ()
        return tuple(sorted([p for p in self.resident if self.stage_of(p) < self.needed], key=self._last_first))

    def stage_of(self, piece: int) -> int:
        """Return the stage that a piece is, or behind which it stands."""
        stages = self.footprint.stages
        return piece if piece < stages else self.footprint.behind[piece - stages]

    def size_of(self, pieces: tuple[int, ...]) -> int:
        """Return the bytes of these pieces."""
        return sum([self.footprint.sizes[piece] for piece in pieces])

    def move(self, life: Life) -> None:
        """Go to `life`, or raise `IllegalEvent` and stay."""
        if life not in LEGAL_MOVES[self.life]:
            raise IllegalEvent(f"model {self.name!r} is {self.life.name} and cannot become {life.name}")
        self.life = life

    def _last_first(self, piece: int) -> tuple[int, int]:
        return -self.stage_of(piece), -piece
