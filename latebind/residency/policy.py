"""What an eviction policy is, how policies are found, and LRU. Policies only read; `memory.py` commits. Pure.

A policy of your own is one class that fulfils `EvictionPolicy`, which is named by its dotted path.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from latebind.domain.config import ResidencyConfig, find
from latebind.residency.memory import MemoryView, ModelState, Victim

__all__ = [  # what a policy of your own may need
    "POLICIES", "EvictionPolicy", "Lru", "MemoryView", "ModelState", "Victim", "first_whole", "make_policy",
    "may_evict_whole",
]  # fmt: skip

POLICIES = {"late": "latebind.residency.late:Late", "lru": "latebind.residency.policy:Lru"}


class EvictionPolicy(Protocol):
    """Chooses victims. It learns from the three notifications; otherwise it is a function of the view and the time.

    Times are in seconds. A policy that is `whole` names all pieces of a model or none.
    """

    whole: bool

    def requested(self, model: ModelState, now: float) -> None:
        """Record one request for `model`; several that arrive together are reported one by one."""

    def loaded(self, model: ModelState, now: float) -> None:
        """Note that pieces of `model` have been loaded."""

    def evicted(self, model: ModelState, now: float) -> None:
        """Note that nothing of `model` is left in memory."""

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Return evictable pieces of at least `need` bytes in all, to make room for more of `wanted`.

        Returns an empty list if all that may be evicted is less.
        """


def make_policy(config: ResidencyConfig) -> EvictionPolicy:
    """Make the policy that `config` names; an unknown name raises `ConfigError`."""
    policy: EvictionPolicy = find("residency.policy", config.policy, POLICIES)(config)
    return policy


def first_whole(models: Iterable[ModelState], view: MemoryView, need: int, wanted: ModelState) -> list[Victim]:
    """Return whole models in their order until they free `need` bytes; nothing if all together free less."""
    found: list[Victim] = []
    for model in models:
        if not may_evict_whole(model, view, wanted):
            continue
        found.append(Victim(model.name, model.evictable_pieces()))
        need -= model.bytes
        if need <= 0:
            return found
    return []


def may_evict_whole(model: ModelState, view: MemoryView, wanted: ModelState) -> bool:
    """Return whether all of a model may be evicted to make room for `wanted`."""
    return model is not wanted and model.wholly_evictable and model.name in view.evictable


class Lru:
    """Least recently used, as in most servers: whole models, the one whose last request is oldest first."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._last: OrderedDict[str, ModelState] = OrderedDict()  # requested or loaded models, the latest last

    def requested(self, model: ModelState, now: float) -> None:
        """Move it to the end."""
        del now
        self._last[model.name] = model
        self._last.move_to_end(model.name)

    def loaded(self, model: ModelState, now: float) -> None:
        """Append it if it has not been requested."""
        del now
        self._last.setdefault(model.name, model)

    def evicted(self, model: ModelState, now: float) -> None:
        """Forget it."""
        del now
        self._last.pop(model.name, None)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take models from the front."""
        del now
        return first_whole(self._last.values(), view, need, wanted)
