"""Requests of different lengths: who runs with whom, in which order, and what padding costs."""

from collections.abc import Sequence
from random import Random

import pytest

from latebind.batching.lengths import Pool
from latebind.batching.requests import Groups, Lane, Models, Request
from latebind.domain.actions import Outcome, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Grid, ModelCosts, batch_length, length_class
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival
from research.policies import BATCHING

LONGEST = 512
WORDS = TensorSpec("words", "int64", (LONGEST,), padding=0, sizes=("L",))
DIMS = (Dim("L", 1, LONGEST),)
OURS = ("late", "lazy+")


def text(
    *,
    stages: int = 2,
    fixed: float = 0.0,
    per_token: float = 1e-3,
    pads: bool = True,
    packs: bool = False,
    hits: dict[int, float] | None = None,
) -> ServedModel:
    """A model whose every stage takes `fixed` and so much more for each token of the padded batch."""
    lengths, batches = (1, LONGEST), (1, 32)
    curves = [Curve(batches, tuple([fixed + per_token * rows * length for rows in batches])) for length in lengths]
    costs = ModelCosts((Grid(lengths, tuple(curves)),) * stages, hit_rates=hits or {})
    spec = ModelSpec("text", "1", (WORDS,), (WORDS,), stages, 32, tuple(hits or ()), dims=DIMS, pads=pads, packs=packs)
    return ServedModel(spec, costs, 10_000)


class Watched(Simulator):
    """Notes the lengths and sizes of each run, and its stage."""

    def __init__(self, model: ServedModel, policy: str | PolicyConfig, *, shed: bool = True) -> None:
        config = PolicyConfig(BATCHING[policy], shed=shed) if isinstance(policy, str) else policy
        super().__init__(SchedulerConfig((model,), 1, config))
        self.ran: list[tuple[int, tuple[int, ...]]] = []
        self.sizes: list[set[int]] = []

    def _run(self, action: Run, now: float) -> None:
        arrivals = [self._arrivals[i] for i in action.requests]
        self.ran.append((action.stage, tuple([one.inputs for one in arrivals])))
        self.sizes.append({one.sizes for one in arrivals})
        super()._run(action, now)


def call(time: float, length: int, *, allowed: float = 1e3, stages: int = 2, sizes: int = 0) -> Arrival:
    return Arrival(time, "text", allowed, stages - 1, length, sizes=sizes)


def calls(random: Random, count: int, *, rate: float, allowed: float) -> list[Arrival]:
    time, found = 0.0, list[Arrival]()
    for _ in range(count):
        time += random.expovariate(rate)
        length = random.choice((5, 9, 17, 40, 41, 200))
        found.append(call(time, length, allowed=allowed, sizes=1 + length))
    return found


def ended(records: Sequence[Record]) -> dict[int, float]:
    return {record.request: record.ended for record in records if record.outcome is Outcome.ANSWERED}


@pytest.mark.parametrize("policy", BATCHING)
def test_only_equal_sizes_share_a_batch_where_padding_would_change_answers(policy: str) -> None:
    for shed in (True, False):
        simulator = Watched(text(fixed=0.02, pads=False, hits={0: 0.3}), policy, shed=shed)
        simulator.run(calls(Random(3), 300, rate=20.0, allowed=2.0))
        simulator.scheduler.check()
        assert all(len(sizes) == 1 for sizes in simulator.sizes)
        assert any(len(lengths) > 1 for _, lengths in simulator.ran), "nobody shares a batch"


@pytest.mark.parametrize("policy", OURS)
def test_every_request_of_any_length_ends_once(policy: str) -> None:
    for seed, pads in enumerate((True, False)):
        simulator = Watched(text(fixed=0.02, stages=3, pads=pads, hits={0: 0.3, 1: 0.2}), policy)
        arrivals = calls(Random(seed), 400, rate=30.0, allowed=1.0)
        records = simulator.run(arrivals)
        simulator.scheduler.check()
        assert sorted(record.request for record in records) == list(range(400))
        assert any(record.outcome is Outcome.ANSWERED for record in records)


@pytest.mark.parametrize("hits", [None, {0: 0.3}])
def test_workers_share_requests_of_any_length(hits: dict[int, float] | None) -> None:
    model, arrivals = text(fixed=0.02, stages=3, hits=hits), calls(Random(4), 400, rate=60.0, allowed=1.0)
    shares = []
    for workers, granularities in ((1, ()), (2, ()), (2, (4, 16))):
        simulator = Simulator(SchedulerConfig((model,), workers, PolicyConfig("late"), granularities=granularities))
        records = simulator.run(arrivals)
        simulator.scheduler.check()
        assert sorted(record.request for record in records) == list(range(400))
        shares.append(sum(record.outcome is Outcome.ANSWERED for record in records) / 400)
    assert min(shares[1:]) > 1.3 * shares[0]


@pytest.mark.parametrize("policy", OURS)
def test_short_requests_do_not_pay_for_a_long_one_that_came_first(policy: str) -> None:
    simulator = Watched(text(), policy)
    ends = ended(simulator.run([call(0.0, 10), call(0.001, 400), call(0.002, 10), call(0.003, 10)]))
    assert max(ends[2], ends[3]) < 0.1 < ends[1]
    assert all(len(set(lengths)) == 1 for _, lengths in simulator.ran)


@pytest.mark.parametrize("policy", OURS)
def test_where_rows_are_packed_a_long_one_shares_its_batch_with_short_ones(policy: str) -> None:
    arrivals = [call(0.0, 10), call(0.001, 201), call(0.002, 9), call(0.003, 12)]
    padded, packed = (Watched(text(fixed=0.1, packs=packs), policy) for packs in (False, True))
    last = max(ended(padded.run(arrivals)).values())
    assert all(len(lengths) < 4 and (201 not in lengths or len(lengths) == 1) for _, lengths in padded.ran)
    end = max(ended(packed.run(arrivals)).values())
    assert end < last
    assert (1, (9, 12, 201)) in [(stage, tuple(sorted(lengths))) for stage, lengths in packed.ran]
    assert end == pytest.approx(sum(0.1 + 1e-3 * len(one) * batch_length(one, True) for _, one in packed.ran))


@pytest.mark.parametrize("policy", OURS)
def test_a_short_request_passes_a_long_one_at_the_next_boundary(policy: str) -> None:
    simulator = Watched(text(), policy)
    ends = ended(simulator.run([call(0.0, 400), call(0.1, 10)]))
    assert simulator.ran == [(0, (400,)), (0, (10,)), (1, (10,)), (1, (400,))]
    assert ends[1] == pytest.approx(0.42)
    assert ends[0] == pytest.approx(0.82)


@pytest.mark.parametrize("policy", OURS)
def test_about_equal_lengths_run_together_where_a_batch_pays(policy: str) -> None:
    simulator = Watched(text(fixed=0.1), policy)
    simulator.run([call(0.0, 10), *[call(0.1, length) for length in (12, 300, 11, 13)]])
    assert (0, (11, 12, 13)) in [(stage, tuple(sorted(lengths))) for stage, lengths in simulator.ran]


@pytest.mark.parametrize("policy", OURS)
def test_a_long_request_does_not_starve_behind_a_stream_of_short_ones(policy: str) -> None:
    """Nine tenths of the time are taken; the long one takes 0.8 s and has 8."""
    short = [call(0.02 * number / 0.9, 10, allowed=5.0) for number in range(1000)]
    records = Watched(text(), policy).run(sorted([*short, call(1.001, 400, allowed=8.0)], key=lambda one: one.time))
    assert all(record.outcome is Outcome.ANSWERED for record in records)
    assert all(record.latency <= (8.0 if record.arrived == 1.001 else 5.0) for record in records)


@pytest.mark.parametrize("policy", OURS)
def test_a_long_request_does_not_starve_where_nobody_has_a_deadline(policy: str) -> None:
    """More short ones come than can be answered; the long one takes 0.8 s, and they come for 45."""
    short = [call(0.015 * number, 10, allowed=1e9) for number in range(3000)]
    records = Watched(text(), policy, shed=False).run([call(0.0, 10), call(0.001, 400, allowed=1e9), *short[1:]])
    assert next(record.latency for record in records if record.request == 1) < 30 * 0.8


@pytest.mark.parametrize("policy", OURS)
def test_an_exit_of_the_longest_lets_the_others_run_at_their_own_length(policy: str) -> None:
    model = text(stages=3, fixed=1.0, hits={0: 0.5})
    arrivals = [call(0.0, 20, stages=3), *[call(0.1, length, stages=3) for length in (20, 20, 22)]]
    leaving = Arrival(0.1, "text", 1e3, 0, 22)
    simulator = Watched(model, policy)
    records = simulator.run([*arrivals[:3], leaving])
    assert {record.stage for record in records if record.request == 3} == {0}
    assert all(22 not in lengths for stage, lengths in simulator.ran if stage)


@pytest.mark.parametrize("packs", [False, True])
def test_what_is_picked_is_contiguous_in_length(packs: bool) -> None:
    random = Random(0)
    for fixed in (0.0, 0.05, 1.0):
        for _ in range(50):
            lane = Lane(text(fixed=fixed, packs=packs), Models())
            for number in range(random.randint(1, 60)):
                lane.add(Request(number, "text", number, 1e6, 0.0, random.randint(1, 300)))
            assert lane.queue.groups is not None
            pool = Pool(lane, 0, lane.queue, lane.queue.groups, lane.queue.turns, 32, 1e3)
            picked = pool.shortest(0.0)
            taken = [lane.queue[number].length for number in picked.numbers]
            left = [one.length for number, one in lane.queue.items() if number not in set(picked.numbers)]
            assert max(taken) <= min(left, default=LONGEST)
            assert picked.length == length_class(batch_length(taken, packs))
            assert picked.seconds == pytest.approx(lane.estimate.whole(len(taken), picked.length))


def test_groups_are_of_a_length_class_each_and_come_and_go_with_their_requests() -> None:
    random, models = Random(1), Models()
    lane = Lane(text(), models)
    here: list[int] = []
    for number in range(300):
        lane.add(Request(number, "text", number, random.random(), 0.0, random.randint(1, 500)))
        here.append(number)
        if random.random() < 0.6:
            lane.remove(here.pop(random.randrange(len(here))))
        groups = lane.queue.groups
        assert groups is not None
        assert [group.length for group in groups.ascending] == sorted({one.length for one in lane.queue.values()})
        assert sorted(turn for group in groups.ascending for turn in group.turns) == lane.queue.turns
        assert all(one.length == length_class(one.inputs) for one in lane.queue.values())
    models.check()


def test_the_most_urgent_decides_whose_sizes_are_taken_first() -> None:
    lane = Lane(text(pads=False), Models())
    for number, sizes in enumerate((7, 8, 7, 8, 8)):
        lane.add(Request(number, "text", number, 10.0 - number, float(number), 10, sizes=sizes))
    assert [one.id for one in lane.queue.first(5)] == [0, 2]
    assert len(Groups(lane.spec, lane.queue.values()).ascending) == 2
