"""The memory that models share: what is in it and what is being loaded, never more than the budget. Pure.

It commits what others have chosen. A piece counts from the `Load` action until the `Evict` action, because the driver
performs actions in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType

from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError, IllegalEvent
from latebind.residency.model_state import LoadState, ModelState
from latebind.residency.policy import MemoryView, Victim


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
        """The unused bytes of the budget; negative where a piece turned out larger than it was thought to be."""
        return self.budget - self.used

    def view(self, waiting: int = 0) -> MemoryView:
        """Return what policies see."""
        return MemoryView(self.models, self._evictable_view, self.budget, waiting)

    def begin(self, name: str, pieces: tuple[int, ...]) -> None:
        """Note that pieces are being loaded.

        Raises `IllegalEvent` where they are in memory, another load of the model is under way, or there is no room.
        """
        model, size = self.models[name], self.models[name].missing_bytes(pieces)
        if not pieces or model.loading or model.resident.intersection(pieces):
            raise IllegalEvent(f"pieces {pieces} of {name!r} are in memory, or a load is under way already")
        if size > self.free:
            raise IllegalEvent(f"{name!r} needs {size} bytes and {self.free} of {self.budget} are free")
        model.move(LoadState.LOADING)
        model.loading = pieces
        self.used += size
        if model.parts:
            self.update_evictable(model)

    def loaded(self, name: str, pieces: tuple[int, ...], sizes: Sequence[int] = ()) -> ModelState:
        """Note that the load of pieces has ended; `sizes` are their bytes as measured. Returns the model."""
        model = self._require_loading(name, pieces)
        if sizes:
            self._measure(model, pieces, sizes)
        model.loading = ()
        model.resident.update(pieces)
        model.bytes += model.missing_bytes(pieces)
        _drop_parts(model, pieces)
        model.missing_stages -= _stage_count(model, pieces)
        model.move(LoadState.PARTIAL if model.missing_stages else LoadState.READY)
        self.update_evictable(model)
        return model

    def failed(self, name: str, pieces: tuple[int, ...]) -> ModelState:
        """Note that the load of pieces has failed. Returns the model; its other pieces stay in memory."""
        model = self._require_loading(name, pieces)
        model.loading = ()
        self.used -= model.size_of(pieces)
        model.bytes -= model.size_of(pieces) - model.missing_bytes(pieces)
        _drop_parts(model, pieces)
        model.move(LoadState.FAILED)
        self.update_evictable(model)
        return model

    def evict(self, victim: Victim) -> ModelState:
        """Remove pieces from memory. Returns the model. Raises `IllegalEvent` where one of them may not be evicted."""
        model = self.models[victim.model]
        trimmed = () if victim.part is None else victim.part[:1]
        pieces = (*victim.pieces, *trimmed)
        if not pieces or not set(pieces) <= set(model.evictable_pieces()):
            raise IllegalEvent(f"pieces {pieces} of {victim.model!r} may not all be evicted")
        if victim.part is not None:
            _require_trimmable(model, *victim.part)
        size = sum([model.resident_bytes(piece) for piece in pieces])
        model.missing_stages += _stage_count(model, tuple([piece for piece in pieces if piece in model.resident]))
        model.resident.difference_update(pieces)
        _drop_parts(model, pieces)
        if victim.part is not None:
            piece, stays = victim.part
            model.parts[piece] = stays
            size -= stays
        model.bytes -= size
        self.used -= size
        if model.absent and not model.loading and model.phase is not LoadState.FAILED:
            model.move(LoadState.ABSENT)
        elif model.phase is LoadState.READY and model.missing_stages:
            model.move(LoadState.PARTIAL)
        self.update_evictable(model)
        return model

    def update_evictable(self, model: ModelState) -> None:
        """Offer a model to the policy, or not, after its `pinned`, `needed_from` or pieces have changed."""
        if model.pinned or model.absent or ((model.needed_from < inf or model.parts) and not model.evictable_pieces()):
            self._evictable.pop(model.name, None)
        else:
            self._evictable[model.name] = model

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        models = self.models.values()
        assert self.used == sum(m.bytes + m.missing_bytes(m.loading) for m in models), "the bytes in memory are off"
        for model in models:
            in_memory = sum(map(model.resident_bytes, {*model.resident, *model.parts}))
            assert model.bytes == in_memory, f"the bytes of {model.name} are off"
            assert not model.resident.intersection(model.parts), (
                f"a stage of {model.name} is there both in part and wholly"
            )
            assert not model.resident.intersection(model.loading), f"{model.name} loads what is in memory"
            assert bool(model.loading) == (model.phase is LoadState.LOADING), f"{model.name} is {model.phase.name}"
            assert not model.absent or model.phase is not LoadState.PARTIAL, f"nothing of {model.name} is there"
            assert model.missing_stages == model.footprint.stages - _stage_count(model, tuple(model.resident)), (
                f"the missing stages of {model.name} are off"
            )
            assert not (model.phase is LoadState.READY and model.missing_stages), f"{model.name} is not complete"
            assert model.absent or model.phase is not LoadState.ABSENT, f"{model.name} is not absent"
            evictable = bool(model.evictable_pieces())
            assert (model.name in self._evictable) == evictable, f"whether {model.name} is evictable is off"

    def _require_loading(self, name: str, pieces: tuple[int, ...]) -> ModelState:
        model = self.models.get(name)
        if model is None or not pieces or model.loading != pieces:
            raise IllegalEvent(f"pieces {pieces} of {name!r} have come, which were not being loaded")
        return model

    def _measure(self, model: ModelState, pieces: tuple[int, ...], sizes: Sequence[int]) -> None:
        """Replace the known sizes of pieces by their measured ones."""
        before = model.size_of(pieces)
        known = list(model.footprint.sizes)
        for piece, size in zip(pieces, sizes, strict=True):
            known[piece] = size
        model.footprint = replace(model.footprint, sizes=tuple(known))
        self.used += model.size_of(pieces) - before


def _require_trimmable(model: ModelState, piece: int, stays: int) -> None:
    """Raise `IllegalEvent` where the first `stays` bytes of this piece cannot stay while the rest is evicted."""
    grain = model.footprint.grain
    if not grain or stays % grain or not 0 < stays < model.resident_bytes(piece) or piece >= model.footprint.stages:
        raise IllegalEvent(f"{stays} bytes of piece {piece} of {model.name!r} cannot stay")


def _drop_parts(model: ModelState, pieces: tuple[int, ...]) -> None:
    if model.parts:
        for piece in pieces:
            model.parts.pop(piece, None)


def _stage_count(model: ModelState, pieces: tuple[int, ...]) -> int:
    """Return how many of these pieces are stages."""
    return sum([piece < model.footprint.stages for piece in pieces])


def require_room(model: ModelState, budget: int, *, whole: bool) -> None:
    """Raise `ConfigError` for a model that could never run: `whole`, or with two successive stages in memory."""
    sizes = model.footprint.sizes[: model.footprint.stages]
    need = sum(sizes) if whole else max((a + b for a, b in zip(sizes, (*sizes[1:], 0), strict=True)), default=0)
    if need > budget:
        what = "all of it" if whole else "two stages in turn"
        raise ConfigError(
            f"model {model.name!r} needs {need:,} bytes for {what} and residency.budget is {budget:,}: give more memory"
            + (", or a policy that evicts stages" if whole else "")
        )
