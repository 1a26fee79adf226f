"""Models that requests were refused for: whether loading one pays, at the cost of what is in memory. Pure.

No request waits for these models, so they need not be loaded, and what is in memory stays unless the policy holds the
wanted model to be worth more. A policy that keeps models by importance is asked with a margin, because importance is an
estimate. Any other policy holds the model that was requested last to be worth most. A model stays for a while after it
has been loaded, so that refused requests cannot keep the memory busy with nothing but loads.
"""

from collections.abc import Iterator, Mapping, Sequence

from latebind.residency.base import EvictionPolicy, Victim
from latebind.residency.importance import ByImportance
from latebind.residency.model_state import ModelState

MARGIN = 1.3  # worth of the wanted model over that of its victims: of equal models none is evicted for the other
STAYS = 4.0  # times its load time: so at most a fifth of the memory is being loaded for such models


class RefusedModels:
    """The models that requests were refused for, the earliest first. `policy` says what models are worth."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy if isinstance(policy, ByImportance) else None
        self._models: dict[str, ModelState] = {}
        self._loaded_at: dict[str, float] = {}  # when models were last complete

    def __contains__(self, model: ModelState) -> bool:
        return model.name in self._models

    def __iter__(self) -> Iterator[ModelState]:
        return iter(list(self._models.values()))

    def add(self, model: ModelState) -> None:
        """Add a model that is not being loaded."""
        self._models.setdefault(model.name, model)

    def discard(self, model: ModelState) -> None:
        """Forget a model."""
        self._models.pop(model.name, None)

    def loaded(self, model: ModelState, now: float) -> None:
        """Note that all of a model is in memory."""
        self.discard(model)
        self._loaded_at[model.name] = now

    def pays(self, wanted: ModelState, victims: Sequence[Victim], models: Mapping[str, ModelState], now: float) -> bool:
        """Return whether these victims should be evicted for a model that no request waits for."""
        evicted = [(models[victim.model], victim) for victim in victims]
        for model, _ in evicted:
            loaded_at = self._loaded_at.get(model.name)
            if loaded_at is not None and now - loaded_at < STAYS * model.footprint.penalty:
                return False
        if self._policy is None:
            return True
        loss = sum([self._policy.worth(model, now) * _lost_bytes(model, victim) for model, victim in evicted])
        return self._policy.gain(wanted, now) * wanted.stage_bytes > MARGIN * loss


def _lost_bytes(model: ModelState, victim: Victim) -> int:
    """Return the bytes that are of no use after an eviction.

    Without one of its stages that is all of a model, because deadlines leave no time to load a stage again.
    """
    loses_stage = victim.part is not None or min(victim.pieces) < model.footprint.stages
    return model.bytes if loses_stage else model.size_of(victim.pieces)
