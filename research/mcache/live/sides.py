"""The sides that are compared with limited memory: eviction policy, order of loads, and what runs meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.engine.cores import at_once
from latebind.engine.order import EngineOrder
from research.mcache.live.zoo import Zoo
from research.policies import EVICTION

LRU, IAM, LATE = "lru", "iam", "late"
SIDES = {
    # These differ from `late` in what goes, and in that models come and go whole.
    LRU: ResidencyConfig(policy="lru"),
    IAM: ResidencyConfig(policy=EVICTION["iam"]),
    LATE: ResidencyConfig(policy="late"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all sides have in common. `patience` in seconds; no side refuses or drops anybody for being late."""

    tier: str = "disk"
    workers: int = 1
    threads: int = 1
    slots: int = 64
    patience: float = 30.0

    @property
    def engine(self) -> EngineConfig:
        """The engine of every side. Learned caches are off: what is compared is memory."""
        return EngineConfig(workers=self.workers, threads=self.threads, slots=self.slots, exits=False)


def order(zoo: Zoo, names: Sequence[str], side: ResidencyConfig, budget: int, setting: Setting) -> EngineOrder:
    """Return what an engine is told: these models, in `budget` bytes beside its slots and what batches take."""
    beside = zoo.beside_weights(names, setting.slots, at_once(setting.engine))
    residency = msgspec.structs.replace(side, budget=budget + beside, tier=setting.tier, patience=setting.patience)
    directories = tuple([str(zoo.models[name].path) for name in names])
    return EngineOrder(directories, setting.engine, PolicyConfig(shed=False), residency=residency)
