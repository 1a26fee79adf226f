"""What every eviction policy keeps to; a new one is in this test by its line in `research.policies`."""

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError
from latebind.residency.memory import Memory
from latebind.residency.policy import EvictionPolicy, Victim, make_policy
from research.mcache.policies import Oracle
from research.policies import EVICTION

BUDGET = 40
EVERY = [ResidencyConfig(BUDGET, path) for path in EVICTION.values()]
NAMES = list(EVICTION)


def drawn(random: Random) -> dict[str, Footprint]:
    """Some models of one to four stages, with and without learned caches."""
    footprints = {}
    for number in range(random.randint(2, 7)):
        stages, caches = random.randint(1, 4), random.randint(0, 2)
        sizes = tuple(random.randint(1, 8) for _ in range(stages + caches))
        seconds = tuple(random.random() for _ in sizes)
        behind = tuple(sorted(random.randrange(stages) for _ in range(caches)))
        footprints[f"m{number}"] = Footprint(sizes, seconds, behind, tuple(random.random() for _ in behind), 0.1)
    return footprints


def told(policy: EvictionPolicy, times: dict[str, list[float]]) -> EvictionPolicy:
    if isinstance(policy, Oracle):
        policy.foretell(times)
    return policy


class Play:
    """Requests, loads and evictions in random order, everything that is named checked against what may be named."""

    def __init__(self, config: ResidencyConfig, seed: int) -> None:
        self.random = Random(seed)
        self.memory = Memory(BUDGET, drawn(self.random))
        times = {name: sorted(self.random.uniform(0, 60) for _ in range(8)) for name in self.memory.models}
        self.policy = told(make_policy(config), times)
        self.now = 0.0
        self.told: list[list[Victim]] = []

    def go_on(self) -> None:
        self.now += self.random.choice((0.0, 0.5, 5.0))
        model = self.memory.models[self.random.choice(list(self.memory.models))]
        self._hold()
        model.waiting += 1
        model.queue_position = self.random.randint(0, 3)
        self.policy.requested(model, self.now)
        pieces = self._wanted(model.missing)
        if pieces and not model.loading:
            self._make_room(model.name, model.size_of(pieces))
            if model.size_of(pieces) <= self.memory.free:
                self.memory.begin(model.name, pieces)
                self.policy.loaded(self.memory.loaded(model.name, pieces), self.now)
        self.memory.check()

    def _hold(self) -> None:
        """Have models held back, or at work, or served, or loaded with their learned caches."""
        held = self.memory.models[self.random.choice(list(self.memory.models))]
        held.pinned = self.random.random() < 0.2
        held.needed_from = self.random.choice((inf, inf, 0, 1, 2))
        held.waiting, held.queue_position = 0, None
        self.memory.update_evictable(held)

    def _wanted(self, missing: tuple[int, ...]) -> tuple[int, ...]:
        return missing if self.policy.whole else missing[: self.random.randint(1, 4)]

    def _make_room(self, wanted: str, size: int) -> None:
        need = size - self.memory.free
        if need <= 0:
            return
        model, view = self.memory.models[wanted], self.memory.view(self.random.randint(0, 5))
        victims = self.policy.victims(view, need, model, self.now)
        self.told.append(victims)
        self._check(victims, need, wanted)
        for victim in victims:
            gone = self.memory.evict(victim)  # raises where it may not go
            if not gone.resident:
                self.policy.evicted(gone, self.now)
            self.memory.check()

    def _check(self, victims: list[Victim], need: int, wanted: str) -> None:
        models = self.memory.models
        # 1. Enough or nothing; nothing only where all that may go is not enough.
        freed = sum(models[victim.model].size_of(victim.pieces) for victim in victims)
        others = [
            model
            for model in models.values()
            if not self.policy.whole or (model.wholly_evictable and model.name != wanted)
        ]
        assert freed >= need or (not victims and sum(m.size_of(m.evictable_pieces()) for m in others) < need)
        # 2. Each model once, each piece once, only what may go.
        assert len({victim.model for victim in victims}) == len(victims)
        for victim in victims:
            assert len(set(victim.pieces)) == len(victim.pieces) > 0
            assert set(victim.pieces) <= set(models[victim.model].evictable_pieces())
            # 3. Who takes models whole takes all of them, and never the one that is wanted.
            if self.policy.whole:
                assert set(victim.pieces) == models[victim.model].resident
                assert victim.model != wanted


@pytest.mark.parametrize("config", EVERY, ids=NAMES)
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_a_policy_keeps_to_its_contract(config: ResidencyConfig, seed: int) -> None:
    play, again = Play(config, seed), Play(config, seed)
    for _ in range(40):
        play.go_on()
        again.go_on()
    assert play.told == again.told  # it is deterministic


@pytest.mark.parametrize("config", EVERY, ids=NAMES)
def test_naming_victims_changes_nothing(config: ResidencyConfig) -> None:
    play = Play(config, 3)
    for _ in range(30):
        play.go_on()
    for model in play.memory.models.values():
        model.pinned, model.needed_from = False, inf
        play.memory.update_evictable(model)
    wanted = play.memory.models["m0"]
    asked = (play.memory.view(), 5, wanted, play.now)
    used = play.memory.used
    first = play.policy.victims(*asked)
    assert first
    assert play.policy.victims(*asked) == first
    assert play.memory.used == used
    play.memory.check()


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="choose late or lru"):
        make_policy(ResidencyConfig(policy="best"))
