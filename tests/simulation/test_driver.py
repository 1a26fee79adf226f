"""The simulator: same seed, same run; its log replays; its figures follow from the costs."""

import io
from hashlib import sha256
from random import Random
from struct import pack

import pytest

from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import EventLog, read_log
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator, summarize
from latebind.simulation.workloads import Arrival, Lengths, poisson, stepped
from research.hardware.networks import NETWORKS
from research.policies import BATCHING
from tests.models import config, served

EXITING = served(stages=4, seconds=0.001, per_row=0.0002, hit_rates={0: 0.3, 2: 0.2})

ASIDE = served(stages=4, seconds=0.001, per_row=0.0002, hit_rates={1: 0.5}, aside=0.0005)
AT_ONCE = served(stages=4, seconds=0.001, hit_rates={1: 0.5}, aside=0.0)
TRANSLATOR = NETWORKS["gnmt"]().served(output_steps=(4, 9, 20, 40))
ONE: Lengths = ((1, 1),)
SENTENCES: Lengths = ((4, 5), (9, 9), (22, 20), (50, 41))


def simulate(model: ServedModel, *, rate: float, seed: int, log: io.BytesIO | None = None) -> list[Record]:
    settings = config(model, window=0.002)
    simulator = Simulator(settings, log=EventLog(log, settings) if log else None)
    records = simulator.run(poisson(model, rate=rate, requests=2000, allowed=0.05, random=Random(seed)))
    simulator.scheduler.check()
    return records


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert simulate(EXITING, rate=300, seed=1) == simulate(EXITING, rate=300, seed=1)
    assert simulate(EXITING, rate=300, seed=1) != simulate(EXITING, rate=300, seed=2)


def test_every_arrival_ends_once() -> None:
    records = simulate(EXITING, rate=3000, seed=3)  # far past capacity
    assert sorted(record.request for record in records) == list(range(2000))
    assert {record.outcome for record in records} >= {Outcome.ANSWERED, Outcome.REFUSED_LATE}


def test_lookups_aside_answer_early_and_cost_the_others_nothing() -> None:
    model = served(stages=4, seconds=0.001, hit_rates={1: 0.5}, aside=0.0005)
    arrivals = [Arrival(0.0, "net", 0.1, leaves_at=1), Arrival(1.0, "net", 0.1, leaves_at=3)]
    hit, missed = Simulator(config(model)).run(arrivals)
    assert (hit.stage, missed.stage) == (1, 3)
    assert hit.latency == pytest.approx(0.0025)
    assert missed.latency == pytest.approx(0.004)


def test_exits_are_drawn_at_the_hit_rates() -> None:
    records = simulate(EXITING, rate=100, seed=5)
    summary = summarize(records, allowed=0.05)
    latencies = sorted(record.latency for record in records if record.outcome is Outcome.ANSWERED)
    assert (summary.p50, summary.p99) == (
        latencies[(len(latencies) + 1) // 2 - 1],
        latencies[-(len(latencies) // 100) - 1],
    )
    assert summary.left_at == pytest.approx({0: 0.3, 2: 0.2, 3: 0.5}, abs=0.04)


def test_a_log_replays_to_the_identical_actions() -> None:
    file = io.BytesIO()
    simulate(EXITING, rate=800, seed=4, log=file)
    file.seek(0)
    settings, entries = read_log(file)
    scheduler = Scheduler(settings)
    count = 0
    for entry in entries:
        assert tuple(scheduler.handle(entry.event, entry.now)) == entry.actions
        count += 1
    assert count > 3000


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"hello\n", "line 1"), (b"", "line 1"), (None, "line 2")],
)
def test_a_broken_log_names_its_line(content: bytes | None, words: str) -> None:
    file = io.BytesIO()
    if content is None:
        EventLog(file, config())
        file.write(b'[1.0,["Nothing"],[]]\n')
    else:
        file.write(content)
    file.seek(0)
    with pytest.raises(ConfigError, match=words):
        list(read_log(file)[1])


def test_arrivals_in_steps_come_at_the_rate_of_each() -> None:
    arrivals = list(stepped(EXITING, steps=((10.0, 1000), (200.0, 3000)), allowed=1.0, random=Random(0)))
    assert len(arrivals) == 4000
    change = arrivals[999].time
    assert 1000 / change == pytest.approx(10.0, rel=0.1)
    assert 3000 / (arrivals[-1].time - change) == pytest.approx(200.0, rel=0.1)


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
