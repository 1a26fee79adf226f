"""The memory that models share: which of their pieces are in it or being loaded, never more than the budget. Pure.

It commits what others have chosen. A piece counts from the `Load` action until the `Evict` action, because the driver
performs actions in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from latebind.domain.costs import Footprint
from latebind.domain.errors import DoesNotFit, IllegalEvent

NEWEST = 0.3  # weight of the newest measurement in the seconds that a piece takes to load


class ModelState:
    """The pieces of one model, numbered as in its `Footprint`. Policies only read it.

    `resident` are the pieces that are in memory, `loading` those whose load is under way. Nothing of a `pinned` model
    may be evicted. The requests that have started need the pieces of stage `needed_from` and later. `waiting` requests
    for the model have not started. `queue_position` is the number of requests that arrived between the oldest waiting
    request of all models and the oldest one of this model; None if policies do not get them.
    """

    def __init__(self, name: str, footprint: Footprint) -> None:
        self.name = name
        self.footprint = footprint
        self.resident: set[int] = set()
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
    def missing(self) -> tuple[int, ...]:
        """The stages that are neither in memory nor being loaded, ascending."""
        if not self.missing_stages:
            return ()
        return tuple([p for p in range(self.footprint.stages) if p not in self.resident and p not in self.loading])

    @property
    def missing_caches(self) -> list[int]:
        """The learned caches that are not in memory, by their pieces."""
        footprint = self.footprint
        return [p for p in range(footprint.stages, len(footprint.sizes)) if p not in self.resident]

    @property
    def load_seconds(self) -> float:
        """The seconds until all stages are in memory if they were all loaded now."""
        if not self.missing_stages:
            return 0.0
        seconds = self.seconds_of([p for p in range(self.footprint.stages) if p not in self.resident])
        return seconds if self.loading or self.resident else seconds + self.footprint.fixed

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
                loaded_at += self.footprint.seconds[stage]
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
        needed_from = self.needed_from
        if self.footprint.behind:
            found = [p for p in self.resident if self.stage_of(p) < needed_from]
            return tuple(sorted(found, key=lambda piece: (-self.stage_of(piece), -piece)))
        found = [*self.resident] if needed_from == inf else [p for p in self.resident if p < needed_from]
        return tuple(sorted(found, reverse=True))

    def stage_of(self, piece: int) -> int:
        """Return the stage that a piece is, or, for a learned cache, the stage that it stands behind."""
        stages = self.footprint.stages
        return piece if piece < stages else self.footprint.behind[piece - stages]

    def size_of(self, pieces: Sequence[int]) -> int:
        """Return the bytes of these pieces, in memory or not."""
        return sum([self.footprint.sizes[piece] for piece in pieces])

    def seconds_of(self, pieces: Sequence[int]) -> float:
        """Return the seconds that it takes to load these pieces."""
        return sum([self.footprint.seconds[piece] for piece in pieces])

    def learn(self, pieces: Sequence[int], seconds: float, expected: float) -> None:
        """Correct the load times of pieces that took `seconds` to load where `expected` seconds were predicted."""
        if expected <= 0.0:
            return
        known = list(self.footprint.seconds)
        for piece in pieces:
            known[piece] += NEWEST * (seconds - expected) * known[piece] / expected
        self.footprint = replace(self.footprint, seconds=tuple(known))


class Victim(NamedTuple):
    """What is evicted of one model."""

    model: str
    pieces: tuple[int, ...]


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


class Memory:
    """All models, by name, and `budget` bytes for them."""

    def __init__(self, budget: int, footprints: Mapping[str, Footprint]) -> None:
        self.budget = budget
        self.models = {name: ModelState(name, footprint) for name, footprint in footprints.items()}
        self.used = 0  # bytes that are in memory or being loaded
        self._evictable: dict[str, ModelState] = {}
        self._evictable_view = MappingProxyType(self._evictable)

    @property
    def free(self) -> int:
        """The unused bytes of the budget; negative if a piece turned out larger than expected."""
        return self.budget - self.used

    def view(self, waiting: int = 0) -> MemoryView:
        """Return what policies see."""
        return MemoryView(self.models, self._evictable_view, self.budget, waiting)

    def begin(self, name: str, pieces: tuple[int, ...]) -> None:
        """Note that pieces are being loaded.

        Raises `IllegalEvent` if they are in memory, another load of the model is under way, or there is no room.
        """
        model, size = self.models[name], self.models[name].size_of(pieces)
        if not pieces or model.loading or model.resident.intersection(pieces):
            raise IllegalEvent(f"pieces {pieces} of {name!r} are in memory, or a load is under way already")
        if size > self.free:
            raise IllegalEvent(f"{name!r} needs {size} bytes and {self.free} of {self.budget} are free")
        model.loading = pieces
        self.used += size

    def loaded(self, name: str, pieces: tuple[int, ...], sizes: Sequence[int] = ()) -> ModelState:
        """Note that the load of pieces has ended; `sizes` are their bytes as measured. Returns the model."""
        model = self._end_load(name, pieces)
        if sizes:
            known = list(model.footprint.sizes)
            for piece, size in zip(pieces, sizes, strict=True):
                self.used += size - known[piece]
                known[piece] = size
            model.footprint = replace(model.footprint, sizes=tuple(known))
        model.resident.update(pieces)
        model.bytes += model.size_of(pieces)
        model.missing_stages -= _stage_count(model, pieces)
        self.update_evictable(model)
        return model

    def failed(self, name: str, pieces: tuple[int, ...]) -> ModelState:
        """Note that the load of pieces has failed. Returns the model; its other pieces stay in memory."""
        model = self._end_load(name, pieces)
        self.used -= model.size_of(pieces)
        return model

    def evict(self, victim: Victim) -> ModelState:
        """Remove pieces from memory. Returns the model. Raises `IllegalEvent` if one of them may not be evicted."""
        model, pieces = self.models[victim.model], victim.pieces
        if not pieces or not set(pieces) <= set(model.evictable_pieces()):
            raise IllegalEvent(f"pieces {pieces} of {victim.model!r} may not all be evicted")
        size = model.size_of(pieces)
        model.resident.difference_update(pieces)
        model.missing_stages += _stage_count(model, pieces)
        model.bytes -= size
        self.used -= size
        self.update_evictable(model)
        return model

    def update_evictable(self, model: ModelState) -> None:
        """Offer a model to the policy, or not, after its `pinned`, `needed_from` or pieces have changed."""
        if model.pinned or not model.resident or (model.needed_from < inf and not model.evictable_pieces()):
            self._evictable.pop(model.name, None)
        else:
            self._evictable[model.name] = model

    def check(self) -> None:
        """Raise `AssertionError` if an invariant does not hold."""
        models = self.models.values()
        assert self.used == sum(m.bytes + m.size_of(m.loading) for m in models), "the bytes in memory are off"
        for model in models:
            assert model.bytes == model.size_of([*model.resident]), f"the bytes of {model.name} are off"
            assert not model.resident.intersection(model.loading), f"{model.name} loads what is in memory"
            missing = model.footprint.stages - _stage_count(model, model.resident)
            assert model.missing_stages == missing, f"the missing stages of {model.name} are off"
            evictable = bool(model.evictable_pieces())
            assert (model.name in self._evictable) == evictable, f"whether {model.name} is evictable is off"

    def _end_load(self, name: str, pieces: tuple[int, ...]) -> ModelState:
        model = self.models.get(name)
        if model is None or not pieces or model.loading != pieces:
            raise IllegalEvent(f"pieces {pieces} of {name!r} have come, but were not being loaded")
        model.loading = ()
        return model


def _stage_count(model: ModelState, pieces: Sequence[int] | set[int]) -> int:
    """Return how many of these pieces are stages."""
    return sum([piece < model.footprint.stages for piece in pieces])


def require_room(model: ModelState, budget: int, *, whole: bool) -> None:
    """Raise `DoesNotFit` for a model that could never run: `whole`, or with two successive stages in memory."""
    sizes = model.footprint.sizes[: model.footprint.stages]
    need = sum(sizes) if whole else max((a + b for a, b in zip(sizes, (*sizes[1:], 0), strict=True)), default=0)
    if need > budget:
        what = "all of it" if whole else "two stages in turn"
        raise DoesNotFit(
            f"model {model.name!r} needs {need:,} bytes for {what} and residency.budget is {budget:,}: give more memory"
            + (", or a policy that evicts stages" if whole else ""),
            model.name,
        )
