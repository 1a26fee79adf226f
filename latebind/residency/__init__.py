"""What lies in memory: policies under one contract. Pure. A new policy is one class and one line here."""

from collections.abc import Callable

from latebind.domain.config import ResidencyConfig
from latebind.domain.errors import ConfigError
from latebind.residency.base import EvictionPolicy
from latebind.residency.lru import Lru

POLICIES: dict[str, Callable[[ResidencyConfig], EvictionPolicy]] = {
    "lru": Lru,
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
