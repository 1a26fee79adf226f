"""Which models, or pieces of models, are in memory. Here: how eviction policies are found. Pure.

A policy of your own is one class that fulfils the contract in `base.py`. It is named by its dotted path.
"""

from latebind.domain.config import ResidencyConfig
from latebind.domain.plugins import find
from latebind.residency.base import EvictionPolicy

POLICIES = {"late": "latebind.residency.late:Late", "lru": "latebind.residency.lru:Lru"}


def make_policy(config: ResidencyConfig) -> EvictionPolicy:
    """Make the policy that `config` names; an unknown name raises `ConfigError`."""
    policy: EvictionPolicy = find("residency.policy", config.policy, POLICIES)(config)
    return policy
