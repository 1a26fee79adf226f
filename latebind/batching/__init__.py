"""Which requests run together. Here: how batching policies are found. Pure.

A policy of your own is one class that fulfils the contract `BatchPolicy` in `view.py`. It is named by its dotted path.
"""

from latebind.batching.view import BatchPolicy
from latebind.domain.config import PolicyConfig
from latebind.domain.plugins import find

POLICIES = {
    "late": "latebind.batching.late:Late",
    "lazy+": "latebind.batching.lazy_plus:LazyPlus",
    "graph": "latebind.batching.graph:GraphBatching",
}


def make_policy(config: PolicyConfig) -> BatchPolicy:
    """Make the policy that `config` names; an unknown name raises `ConfigError`."""
    policy: BatchPolicy = find("policy.name", config.name, POLICIES)(config)
    return policy
