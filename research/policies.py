"""The short names under which commands take policies, and what each stands for in a configuration."""

from latebind.batching.policy import POLICIES
from latebind.residency.policy import POLICIES as RESIDENCY_POLICIES

_LAZYBATCHING, _EBIRD, _MCACHE = (f"research.{paper}.policies" for paper in ("lazybatching", "ebird", "mcache"))

BATCHING = {
    **{name: name for name in POLICIES},
    "waiting": f"{_LAZYBATCHING}:Waiting",
    "cellular": f"{_LAZYBATCHING}:Cellular",
    "continuous": f"{_LAZYBATCHING}:Continuous",
    "lazy": f"{_LAZYBATCHING}:Lazy",
    "oracle": f"{_LAZYBATCHING}:Oracle",
    "elastic": f"{_EBIRD}:Elastic",
}

EVICTION = {
    **{name: name for name in RESIDENCY_POLICIES},
    "lfu": f"{_MCACHE}:Lfu",
    "arc": f"{_MCACHE}:Arc",
    "srrip": f"{_MCACHE}:Srrip",
    "gdsf": f"{_MCACHE}:Gdsf",
    "iam": f"{_MCACHE}:Iam",
    "iam-oracle": f"{_MCACHE}:IamOracle",
    "belady": f"{_MCACHE}:Belady",
    "late-oracle": f"{_MCACHE}:LateOracle",
}
