"""What a policy of residency sees and what it may answer. Read-only: `memory` alone changes anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from latebind.residency.held import Held


class Victim(NamedTuple):
    """These pieces of `model` are to go, and of one stage, `part`, all but so many bytes from its start."""

    model: str
    pieces: tuple[int, ...]
    part: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class MemoryView:
    """What lies in memory, in bytes. Of `evictable` models something lies there that may go; the dictionary is live.

    `waiting` requests have come and not begun, over all models.
    """

    models: Mapping[str, Held]
    evictable: Mapping[str, Held]
    budget: int
    waiting: int = 0


class EvictionPolicy(Protocol):
    """Names victims. It learns from what it is told of and is otherwise a function of the view and the time (seconds).

    A policy with `foresight` looks at who waits; one that takes models `whole` names all pieces of a model or none.
    """

    whole: bool

    def requested(self, model: Held, now: float) -> None:
        """Hear that a request for `model` has come, or one more of several at the same time."""

    def loaded(self, model: Held, now: float) -> None:
        """Hear that pieces of `model` have come to memory."""

    def evicted(self, model: Held, now: float) -> None:
        """Hear that nothing of `model` is left in memory."""

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Name evictable pieces of at least `need` bytes together, which go to make room for more of `wanted`.

        Where all that may go is less, name nothing.
        """


@runtime_checkable
class Oracle(Protocol):
    """A policy that is told the future: only a simulator knows it."""

    def foretell(self, times: Mapping[str, Sequence[float]]) -> None:
        """Hear when requests for each model are going to come, in seconds, ascending."""
