"""With many models of which few wait, policies decide as if they looked at all of them."""

from random import Random

import pytest

from latebind.batching.decisions import Decision
from latebind.batching.policy import BatchPolicy
from latebind.batching.requests import ModelView
from latebind.batching.workers import BatchTable, WorkView
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from research.overhead import scheduler as costs
from research.policies import BATCHING
from tests.batching.chains import STATIC, chain, models_of
from tests.residency.limited import with_pieces

MODELS = 30


class LooksAtAll:
    """A policy that is asked twice: as it is, and with the models that somebody waits for looked up among all."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.order = policy.order
        self.counts_exits = policy.counts_exits
        self.asked = 0

    def batch_limit(self, model: ModelView) -> int:
        return self._policy.batch_limit(model)

    def table(self) -> BatchTable:
        return self._policy.table()

    def decide(self, view: WorkView, now: float) -> Decision:
        crew: list[WorkView] = []
        all_of_them = WorkView(models_of(*view.models.by_name.values()), view.entries, view.granularity, crew)
        all_of_them.aside = view.aside
        crew += [all_of_them if one is view else one for one in view.crew]
        expected = self._policy.decide(all_of_them, now)
        assert self._policy.decide(view, now) == expected
        self.asked += 1
        return expected


@pytest.mark.parametrize("policy", BATCHING)
@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("budget", [0, 20])
def test_who_waits_is_found_in_the_order_of_the_models(policy: str, exits: bool, budget: int) -> None:
    random = Random(f"{policy} {exits} {budget}")
    rates = {0: 0.4} if exits else None
    models = [
        with_pieces(chain(STATIC, STATIC, name=f"m{i}", hit_rates=rates), (2, 2), seconds=0.3) for i in range(MODELS)
    ]
    config = SchedulerConfig(
        tuple(models), 2, PolicyConfig(BATCHING[policy], window=0.3), residency=ResidencyConfig(budget)
    )
    simulator = Simulator(config)
    assert isinstance(simulator.scheduler, Scheduler)
    looking = LooksAtAll(simulator.scheduler.policy)
    simulator.scheduler.policy = looking
    arrivals = [
        Arrival(
            random.uniform(0.0, 100.0), f"m{random.randrange(MODELS)}", random.choice((3.0, 30.0)), random.randrange(2)
        )
        for _ in range(300)
    ]
    assert len(simulator.run(sorted(arrivals, key=lambda arrival: arrival.time))) == 300
    assert looking.asked > 100
    simulator.scheduler.check()


def test_the_benchmark_of_many_models_keeps_some_of_them_busy() -> None:
    assert costs.many("late", 2 * costs.BUSY, True, 60) > 0.0
