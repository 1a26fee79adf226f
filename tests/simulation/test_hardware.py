"""Cores as hardware: records are those of the simulator before it knew any other."""

from hashlib import sha256
from random import Random
from struct import pack

import pytest

from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.simulation.driver import Simulator
from latebind.simulation.hardware import Agenda
from latebind.simulation.workloads import Lengths, poisson
from research.hardware.networks import NETWORKS
from research.policies import BATCHING
from tests.models import served

EXITING = served(stages=4, seconds=0.001, per_row=0.0002, hit_rates={0: 0.3, 2: 0.2})
ASIDE = served(stages=4, seconds=0.001, per_row=0.0002, hit_rates={1: 0.5}, aside=0.0005)
AT_ONCE = served(stages=4, seconds=0.001, hit_rates={1: 0.5}, aside=0.0)
TRANSLATOR = NETWORKS["gnmt"]().served(output_steps=(4, 9, 20, 40))
ONE: Lengths = ((1, 1),)
SENTENCES: Lengths = ((4, 5), (9, 9), (22, 20), (50, 41))


# Digests of what commit f739d17 made, which fixed the end of a run when it began.
@pytest.mark.parametrize(
    ("model", "rate", "workers", "policy", "lengths", "digest"),
    [
        (EXITING, 900.0, 1, PolicyConfig("graph", window=0.002), ONE, "aa06e7acb309d44b"),
        (EXITING, 1500.0, 3, PolicyConfig("lazy+"), ONE, "e624bc84250fe212"),
        (ASIDE, 1500.0, 2, PolicyConfig("graph"), ONE, "3fd87c962812a72a"),
        (AT_ONCE, 1500.0, 2, PolicyConfig("graph"), ONE, "15d2627fcfd245c0"),
        (TRANSLATOR, 700.0, 1, PolicyConfig("lazy+"), SENTENCES, "456f610ecd5bddb2"),
        (TRANSLATOR, 400.0, 2, PolicyConfig(BATCHING["waiting"], shed=False), SENTENCES, "66f2f1fc9fbbcec5"),
    ],
)
def test_independent_workers_give_the_records_that_they_gave_bit_for_bit(
    model: ServedModel, rate: float, workers: int, policy: PolicyConfig, lengths: Lengths, digest: str
) -> None:
    arrivals = poisson(model, rate=rate, requests=2000, allowed=0.08, random=Random(5), lengths=lengths)
    seen = sha256()
    for record in Simulator(SchedulerConfig((model,), workers, policy)).run(arrivals):
        seen.update(pack("<qddbq", record.request, record.arrived, record.ended, record.outcome, record.stage))
    assert seen.hexdigest()[:16] == digest


def test_calls_are_made_in_order_of_time_then_of_scheduling_unless_cancelled() -> None:
    agenda, made = Agenda(), list[str]()
    agenda.at(2.0, lambda now: made.append("second"))

    def first(now: float) -> None:
        made.append("first")
        agenda.at(now + 1.0, lambda now: made.append("third"))

    agenda.at(1.0, first)
    agenda.cancel(agenda.at(1.5, lambda now: made.append("cancelled")))
    agenda.cancel(99)
    agenda.run_until(1.0)
    assert made == ["first"]
    agenda.run_until()
    assert made == ["first", "second", "third"]
