"""The memory that models share: what lies in it, what is on its way, never more than the budget. Pure.

It commits what others have chosen. A piece counts from the moment that its load is told of until its eviction is: a
driver performs both in that order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType

from latebind.domain.errors import ConfigError, IllegalEvent
from latebind.domain.footprint import Footprint
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.life import Life


class Memory:
    """All models, by name, and `budget` bytes for them."""

    def __init__(self, budget: int, footprints: Mapping[str, Footprint]) -> None:
        self.budget = budget
        self.models = {name: Held(name, footprint) for name, footprint in footprints.items()}
        self.used = 0  # bytes that are resident or on their way
        self._evictable: dict[str, Held] = {}
        self._seen = MappingProxyType(self._evictable)

    @property
    def free(self) -> int:
        """Bytes that nothing lies in; less than none where something was found larger than it was thought to be."""
        return self.budget - self.used

    def view(self, waiting: int = 0) -> MemoryView:
        """Return what policies see."""
        return MemoryView(self.models, self._seen, self.budget, waiting)

    def begin(self, name: str, pieces: tuple[int, ...]) -> None:
        """Have pieces on their way. Raises `IllegalEvent` where they are, or lie there, or there is no room."""
        model, size = self.models[name], self.models[name].lacking(pieces)
        if not pieces or model.loading or model.resident.intersection(pieces):
            raise IllegalEvent(f"pieces {pieces} of {name!r} are in memory or something is on its way already")
        if size > self.free:
            raise IllegalEvent(f"{name!r} needs {size} bytes and {self.free} of {self.budget} are free")
        model.move(Life.LOADING)
        model.loading = pieces
        self.used += size
        if model.parts:
            self.settle(model)

    def loaded(self, name: str, pieces: tuple[int, ...], sizes: Sequence[int] = ()) -> Held:
        """Have pieces arrived; `sizes` are their bytes as measured. Returns the model."""
        model = self._arriving(name, pieces)
        if sizes:
            self._measured(model, pieces, sizes)
        model.loading = ()
        model.resident.update(pieces)
        model.bytes += model.lacking(pieces)
        _drop_parts(model, pieces)
        model.lacks -= _stages(model, pieces)
        model.move(Life.PARTIAL if model.lacks else Life.READY)
        self.settle(model)
        return model

    def failed(self, name: str, pieces: tuple[int, ...]) -> Held:
        """Have pieces that were on their way come to nothing. Returns the model; what else lay there before stays."""
        model = self._arriving(name, pieces)
        model.loading = ()
        self.used -= model.size_of(pieces)
        model.bytes -= model.size_of(pieces) - model.lacking(pieces)
        _drop_parts(model, pieces)
        model.move(Life.FAILED)
        self.settle(model)
        return model

    def evict(self, victim: Victim) -> Held:
        """Let pieces go. Returns the model. Raises `IllegalEvent` where one of them may not go."""
        model = self.models[victim.model]
        stay = () if victim.part is None else victim.part[:1]
        pieces = (*victim.pieces, *stay)
        if not pieces or not set(pieces) <= set(model.may_go()):
            raise IllegalEvent(f"pieces {pieces} of {victim.model!r} may not all go")
        if victim.part is not None:
            _require_stays(model, *victim.part)
        size = sum([model.there(piece) for piece in pieces])
        model.lacks += _stages(model, tuple([piece for piece in pieces if piece in model.resident]))
        model.resident.difference_update(pieces)
        _drop_parts(model, pieces)
        if victim.part is not None:
            piece, stays = victim.part
            model.parts[piece] = stays
            size -= stays
        model.bytes -= size
        self.used -= size
        if model.absent and not model.loading and model.life is not Life.FAILED:
            model.move(Life.ABSENT)
        elif model.life is Life.READY and model.lacks:
            model.move(Life.PARTIAL)
        self.settle(model)
        return model

    def settle(self, model: Held) -> None:
        """Count a model among those of which something may go, or not, after its `kept` or `needed` has changed."""
        if model.kept or model.absent or ((model.needed < inf or model.parts) and not model.may_go()):
            self._evictable.pop(model.name, None)
        else:
            self._evictable[model.name] = model

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        models = self.models.values()
        assert self.used == sum(m.bytes + m.lacking(m.loading) for m in models), "the bytes in memory are off"
        for model in models:
            there = sum(map(model.there, {*model.resident, *model.parts}))
            assert model.bytes == there, f"the bytes of {model.name} are off"
            assert not model.resident.intersection(model.parts), f"a stage of {model.name} is there in part and wholly"
            assert not model.resident.intersection(model.loading), f"{model.name} loads what it has"
            assert bool(model.loading) == (model.life is Life.LOADING), f"{model.name} is {model.life.name}"
            assert not model.absent or model.life is not Life.PARTIAL, f"nothing of {model.name} is there"
            assert model.lacks == model.footprint.stages - _stages(model, tuple(model.resident)), (
                f"{model.name} lacks more"
            )
            assert not (model.life is Life.READY and model.lacks), f"{model.name} is not complete"
            assert model.absent or model.life is not Life.ABSENT, f"{model.name} is not absent"
            may_go = bool(model.may_go())
            assert (model.name in self._evictable) == may_go, f"whether {model.name} may go is off"

    def _arriving(self, name: str, pieces: tuple[int, ...]) -> Held:
        model = self.models.get(name)
        if model is None or not pieces or model.loading != pieces:
            raise IllegalEvent(f"pieces {pieces} of {name!r} have come, which were not on their way")
        return model

    def _measured(self, model: Held, pieces: tuple[int, ...], sizes: Sequence[int]) -> None:
        """Count what pieces were found to take in place of what they were thought to."""
        before = model.size_of(pieces)
        known = list(model.footprint.sizes)
        for piece, size in zip(pieces, sizes, strict=True):
            known[piece] = size
        model.footprint = replace(model.footprint, sizes=tuple(known))
        self.used += model.size_of(pieces) - before


def _require_stays(model: Held, piece: int, stays: int) -> None:
    """Raise `IllegalEvent` where of this piece not so many bytes can stay."""
    grain = model.footprint.grain
    if not grain or stays % grain or not 0 < stays < model.there(piece) or piece >= model.footprint.stages:
        raise IllegalEvent(f"{stays} bytes of piece {piece} of {model.name!r} cannot stay")


def _drop_parts(model: Held, pieces: tuple[int, ...]) -> None:
    if model.parts:
        for piece in pieces:
            model.parts.pop(piece, None)


def _stages(model: Held, pieces: tuple[int, ...]) -> int:
    """Return how many of these pieces are stages."""
    return sum([piece < model.footprint.stages for piece in pieces])


def require_room(model: Held, budget: int, *, whole: bool) -> None:
    """Raise `ConfigError` for a model that could never run."""
    sizes = model.footprint.sizes[: model.footprint.stages]
    need = sum(sizes) if whole else max((a + b for a, b in zip(sizes, (*sizes[1:], 0), strict=True)), default=0)
    if need > budget:
        what = "all of it" if whole else "two stages in turn"
        raise ConfigError(
            f"model {model.name!r} needs {need:,} bytes for {what} and residency.budget is {budget:,}: give more memory"
            + (", or a policy that evicts stages" if whole else "")
        )
