"""Measures what an eviction decision costs, by policy: a request for an absent model, and the choice of victims."""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from random import Random
from statistics import median, quantiles
from time import perf_counter

from latebind.cli.console import Rows
from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.residency.memory import Memory, ModelState
from latebind.residency.policy import Victim, make_policy
from research.mcache.policies import Oracle
from research.policies import EVICTION

STAGES = 12
ABSENT = 0.1  # of the models in memory so many more are not
BETWEEN = 10  # requests between two decisions


def decision_rows(policies: Sequence[str] = tuple(EVICTION), *, models: int = 10_000, decisions: int = 2000) -> Rows:
    """Time `decisions` of each policy with so many models in memory, in microseconds."""
    rows: Rows = []
    for name in policies:
        play = _Play(ResidencyConfig(policy=EVICTION[name]), models, Random(0))
        micros = [1e6 * play.decide() for _ in range(decisions)]
        rows.append(
            {
                "policy": name,
                "models go": "whole" if play.policy.whole else "piece by piece",
                "models": models,
                "median": f"{median(micros):.1f}",
                "p99": f"{quantiles(micros, n=100)[-1]:.1f}",
                "longest": f"{max(micros):.0f}",
            }
        )
    return rows


class _Play:
    """A full memory. Between two requests for models that are absent come some for others, of long-tailed popularity.

    Oracles are told of times that others than these come at: to look them up takes as long.
    """

    def __init__(self, config: ResidencyConfig, models: int, random: Random) -> None:
        self._random = random
        footprints = {f"m{number}": _footprint(random) for number in range(models)}
        absent = {f"n{number}": _footprint(random) for number in range(int(models * ABSENT))}
        self._memory = Memory(sum(footprint.size for footprint in footprints.values()), footprints | absent)
        self.policy = make_policy(config)
        if isinstance(self.policy, Oracle):
            self.policy.foretell({name: self._times() for name in self._memory.models})
        self._now = 0.0
        self._names = list(self._memory.models)
        self._weights = list(accumulate(random.paretovariate(1.0) for _ in self._names))
        self._absent = list(absent)
        for name in footprints:
            self._request(self._memory.models[name])
            self._load(self._memory.models[name])

    def decide(self) -> float:
        """Let requests arrive until one needs room; return the seconds of telling the policy and choosing victims."""
        while True:
            for name in self._random.choices(self._names, cum_weights=self._weights, k=BETWEEN):
                if self._memory.models[name].complete:
                    self._request(self._memory.models[name])
            model = self._memory.models[self._absent.pop(self._random.randrange(len(self._absent)))]
            self._need(model, 0)
            seconds = self._make_room(model)
            self._load(model)
            self._need(model, inf)
            if seconds:
                return seconds

    def _make_room(self, model: ModelState) -> float:
        need = model.size_of(model.missing) - self._memory.free
        if need <= 0:
            self.policy.requested(model, self._now)
            return 0.0
        view = self._memory.view()
        begun = perf_counter()
        self.policy.requested(model, self._now)
        victims = self.policy.victims(view, need, model, self._now)
        seconds = perf_counter() - begun
        for victim in victims:
            self._let_go(victim)
        return seconds

    def _need(self, model: ModelState, stage: float) -> None:
        """Keep what is in memory of a model from `stage` on."""
        model.needed_from = stage
        self._memory.update_evictable(model)

    def _request(self, model: ModelState) -> None:
        self._now += self._random.expovariate(1.0)
        self.policy.requested(model, self._now)

    def _load(self, model: ModelState) -> None:
        pieces = model.missing
        self._memory.begin(model.name, pieces)
        self.policy.loaded(self._memory.loaded(model.name, pieces), self._now)

    def _let_go(self, victim: Victim) -> None:
        model = self._memory.models[victim.model]
        if model.complete:
            self._absent.append(victim.model)
        self._memory.evict(victim)
        if not model.resident:
            self.policy.evicted(model, self._now)

    def _times(self) -> list[float]:
        return sorted(self._random.uniform(0.0, 1e5) for _ in range(20))


def _footprint(random: Random) -> Footprint:
    """Return stages of equal size that load at 110 MB/s, .15 s beside, 400 MB in all in the middle."""
    size = int(random.lognormvariate(0.0, 0.8) * 4e8 / STAGES)
    return Footprint((size,) * STAGES, (size / 110e6,) * STAGES, fixed=0.15)
