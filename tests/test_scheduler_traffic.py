"""Random traffic: whatever happens, each request ends once, and what is decided is what was decided before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.domain.actions import Outcome
from research.policies import BATCHING, EVICTION
from tests.traffic import Play

LIVE = [name for name in EVICTION if "oracle" not in name and name != "belady"]


@pytest.mark.parametrize("policy", BATCHING)
@given(seed=st.integers(0, 10**9), limited=st.booleans(), evict=st.sampled_from(LIVE))
def test_every_request_ends_once_whatever_happens(policy: str, seed: int, limited: bool, evict: str) -> None:
    Play(seed, policy, EVICTION[evict] if limited else "").run(40)


# Requests by how they ended, in the order of `Outcome`; launches, their rows, loads; the sum of the last stages; the
# seconds that requests waited, and twice those that they ran.
# Whoever means to change a decision writes these figures anew and says in the commit by how much they have changed.
GOLDEN: dict[tuple[str, str], list[float]] = {
    ("late", ""): [1097, 123, 189, 101, 34, 15, 0, 0, 2813, 5146, 0, 1510, 98.759688],
    ("lazy+", ""): [1042, 239, 204, 68, 20, 38, 0, 0, 4381, 6105, 0, 2826, 102.86982],
    ("graph", ""): [961, 154, 403, 41, 26, 15, 0, 0, 2898, 4617, 0, 1078, 147.966482],
    ("late", "late"): [928, 111, 192, 185, 36, 21, 59, 58, 2775, 4645, 358, 1468, 223.087521],
    ("graph", "late"): [1079, 64, 119, 86, 33, 36, 47, 122, 3938, 6695, 417, 2685, 237.947277],
    ("lazy+", "lru"): [1004, 88, 204, 148, 24, 24, 10, 99, 2916, 4488, 134, 1072, 231.01754],
}


@pytest.mark.parametrize(("policy", "evict"), GOLDEN)
def test_decisions_are_those_of_before(policy: str, evict: str) -> None:
    figures = [0.0] * (len(Outcome) + 5)
    for seed in range(8):
        found = Play(seed, policy, evict, checked=False).run(100)
        ends = [found.outcomes[outcome.name] for outcome in Outcome]
        more = [*ends, found.launches, found.rows, found.loads, found.stages, found.seconds]
        figures = [total + one for total, one in zip(figures, more, strict=True)]
    assert [round(figure, 6) for figure in figures] == GOLDEN[policy, evict]
