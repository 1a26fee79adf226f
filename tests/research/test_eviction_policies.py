"""Small traces by hand after the papers' definitions, and Belady's rule against every way to evict."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from random import Random

import pytest

from latebind.domain.config import ResidencyConfig
from latebind.residency.memory import Memory
from latebind.residency.policy import Victim, make_policy
from research.mcache.policies import LateOracle, Oracle
from research.policies import EVICTION
from tests.residency.memories import load, serve, sized


def played(policy: str, names: str, budget: int, **seconds: float) -> tuple[int, str]:
    memory = Memory(budget, {name: sized(seconds=seconds.get(name)) for name in set(names)})
    chosen = make_policy(ResidencyConfig(budget, EVICTION[policy]))
    if isinstance(chosen, Oracle):
        chosen.foretell({name: [float(i) for i, other in enumerate(names) if other == name] for name in set(names)})
    loads, gone = serve(memory, chosen, names)
    return loads, "".join(gone)


def gone(policy: str, names: str, budget: int, **seconds: float) -> str:
    return played(policy, names, budget, **seconds)[1]


def test_figure_5_of_mcache_lru_evicts_the_oldest_and_iam_the_least_important() -> None:
    assert gone("lru", "1112334", 3) == "1"
    assert gone("iam", "1112334", 3) == "2"


def test_iam_keeps_what_takes_long_to_load() -> None:
    assert gone("iam", "1112334", 3, **{"2": 9.0}) == "1"
    assert gone("iam-oracle", "abcab", 2, b=9.0) == "ac"
    assert gone("belady", "abcab", 2, b=9.0) == "ba"


def test_iam_with_foreknowledge_evicts_what_is_not_asked_for_again() -> None:
    assert gone("iam", "aabcbb", 2) == "bc"
    assert gone("iam-oracle", "aabcbb", 2) == "a"


def test_lfu_keeps_counts_of_what_is_absent() -> None:
    assert gone("lfu", "aabcbc", 2) == "bca"


def test_srrip_lets_those_age_that_were_not_asked_for_again() -> None:
    assert gone("srrip", "abcadef", 3) == "bcd"
    assert gone("lru", "abcadef", 3) == "bca"


def test_gdsf_lets_go_even_of_what_is_dear_once_others_have_been_used_for_long() -> None:
    assert gone("gdsf", "abcdefghi", 3, a=4.0, d=2.0) == "bcedfa"


def test_arc_gives_to_the_list_that_should_have_kept_more() -> None:
    assert gone("arc", "aabcba", 2) == "bac"


def fewest_misses(names: str, budget: int) -> int:
    """Try everything that could be evicted at each miss."""

    @cache
    def least(place: int, held: frozenset[str]) -> int:
        if place == len(names):
            return 0
        name = names[place]
        if name in held:
            return least(place + 1, held)
        choices: Sequence[tuple[str, ...]] = [()] if len(held) < budget else list(combinations(sorted(held), 1))
        return 1 + min(least(place + 1, held - set(out) | {name}) for out in choices)

    return least(0, frozenset())


@pytest.mark.parametrize("seed", range(20))
def test_belady_has_the_fewest_misses_on_unit_sizes(seed: int) -> None:
    names = "".join(Random(seed).choices("abcdef", k=25))
    loads = {policy: played(policy, names, 3)[0] for policy in ("belady", "iam-oracle", "lru", "lfu", "arc", "srrip")}
    assert loads["belady"] == fewest_misses(names, 3)
    assert loads["iam-oracle"] == loads["belady"]  # with equal penalties and sizes it is the same rule
    assert min(loads.values()) == loads["belady"]


def test_who_is_told_rates_goes_by_them_whatever_came() -> None:
    policy = LateOracle(ResidencyConfig())
    policy.foretell({"rare": [float(second) for second in range(200)], "common": [50.0, 150.0]})
    memory = Memory(100, {"rare": sized(2, stages=4), "common": sized(2, stages=4), "new": sized()})
    for name in ("rare", "common"):
        load(memory, policy, name, 0.0)
    assert policy.victims(memory.view(), 2, memory.models["new"], 100.0) == [Victim("common", (3,))]
