"""Which requests run together. Here: the table of batching policies. Pure.

A new policy is one class that fulfils the contract `BatchPolicy` in `view.py`, and one line in the table.
"""

from collections.abc import Callable

from latebind.batching.continuous import Cellular, Continuous
from latebind.batching.elastic import Elastic
from latebind.batching.graph import GraphBatching
from latebind.batching.late import Late
from latebind.batching.lazy import Lazy, Oracle
from latebind.batching.lazy_plus import LazyPlus
from latebind.batching.queues import DeepestFirst
from latebind.batching.serial import Serial
from latebind.batching.static import Static
from latebind.batching.view import BatchPolicy
from latebind.domain.config import PolicyConfig
from latebind.domain.errors import ConfigError

POLICIES: dict[str, Callable[[PolicyConfig], BatchPolicy]] = {
    "serial": Serial,
    "graph": GraphBatching,
    "static": Static,
    "cellular": Cellular,
    "continuous": Continuous,
    "lazy": Lazy,
    "oracle": Oracle,
    "lazy+": LazyPlus,
    "queues": DeepestFirst,
    "elastic": Elastic,
    "late": Late,
}


def make_policy(config: PolicyConfig) -> BatchPolicy:
    """Make the policy that `config` names; an unknown name raises `ConfigError`."""
    try:
        return POLICIES[config.name](config)
    except KeyError:
        known = ", ".join(POLICIES)
        raise ConfigError(f"policy.name is {config.name!r}: there is no such policy; take one of {known}") from None
