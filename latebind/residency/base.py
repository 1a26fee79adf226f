"""The contract of eviction policies: what they see and what they answer. They only read; `memory.py` commits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from latebind.residency.model_state import ModelState


class Victim(NamedTuple):
    """What is evicted of one model: `pieces` wholly, and of stage `part[0]` all but its first `part[1]` bytes."""

    model: str
    pieces: tuple[int, ...]
    part: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory as policies see it, in bytes.

    `evictable` are the models of which something may be evicted; the dictionary is live. `waiting` requests, over all
    models, have arrived and not started.
    """

    models: Mapping[str, ModelState]
    evictable: Mapping[str, ModelState]
    budget: int
    waiting: int = 0


class EvictionPolicy(Protocol):
    """Chooses victims. It learns from the three notifications; otherwise it is a function of the view and the time.

    Times are in seconds. A policy that is `whole` names all pieces of a model or none.
    """

    whole: bool

    def requested(self, model: ModelState, now: float) -> None:
        """Note one request for `model`; several that arrive together are told one by one."""

    def loaded(self, model: ModelState, now: float) -> None:
        """Note that pieces of `model` have been loaded."""

    def evicted(self, model: ModelState, now: float) -> None:
        """Note that nothing of `model` is left in memory."""

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Return evictable pieces of at least `need` bytes in all, to make room for more of `wanted`.

        Returns an empty list where all that may be evicted is less.
        """
