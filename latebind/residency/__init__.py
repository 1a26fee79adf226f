"""Which models, or pieces of models, are in memory. Here: the table of eviction policies. Pure.

A new policy is one class that fulfils the contract in `base.py`, and one line in the table.
"""

from collections.abc import Callable

from latebind.domain.config import ResidencyConfig
from latebind.domain.errors import ConfigError
from latebind.residency.arc import Arc
from latebind.residency.base import EvictionPolicy
from latebind.residency.belady import Belady
from latebind.residency.gdsf import Gdsf
from latebind.residency.iam import Iam, IamOracle
from latebind.residency.late import Late, LateOracle
from latebind.residency.lfu import Lfu, LfuInMemory
from latebind.residency.lru import Lru
from latebind.residency.srrip import Srrip

POLICIES: dict[str, Callable[[ResidencyConfig], EvictionPolicy]] = {
    "lru": Lru,
    "lfu": Lfu,
    "lfu-in-memory": LfuInMemory,
    "arc": Arc,
    "srrip": Srrip,
    "gdsf": Gdsf,
    "iam": Iam,
    "iam-oracle": IamOracle,
    "belady": Belady,
    "late": Late,
    "late-oracle": LateOracle,
}


def make_policy(config: ResidencyConfig) -> EvictionPolicy:
    """Make the policy that `config` names; an unknown name raises `ConfigError`."""
    try:
        return POLICIES[config.policy](config)
    except KeyError:
        known = ", ".join(POLICIES)
        raise ConfigError(
            f"residency.policy is {config.policy!r}: there is no such policy; take one of {known}"
        ) from None
