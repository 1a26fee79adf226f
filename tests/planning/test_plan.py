"""A plan: its search, its samples and how sure they are, its bounds, and the figures of a run."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.domain.actions import Outcome
from latebind.domain.errors import ConfigError
from latebind.planning.plan import FINE, fewest, make_plan
from latebind.planning.question import WAYS, Question, Run, Way, way
from latebind.planning.runs import Figures, Runs, figures_of, playing
from latebind.planning.sampling import Estimate, Sampling, busy_workers, sampling_of
from latebind.simulation.cluster.fleet import Played, Requests
from latebind.simulation.cluster.population import population_of
from latebind.simulation.cluster.workload import read_workload
from tests.simulation.cluster.fleets import fleet, model


class Needs:
    """Offers are enough from so many machines on; records the probes."""

    def __init__(self, **needs: int) -> None:
        self.needs = needs
        self.probes: list[tuple[str, int]] = []
        self.rounds = 0

    def __call__(self, probes: Sequence[tuple[str, int]]) -> list[bool]:
        self.rounds += 1
        self.probes.extend(probes)
        return [machines >= self.needs[offer] for offer, machines in probes]


@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 1000))
def test_the_fewest_are_found_within_the_share_that_is_promised(need: int, first: int, most: int) -> None:
    needs = Needs(some=need)
    found = fewest({"some": first}, needs, most={"some": most}, prices={})["some"]
    if need > most:
        assert (found.machines, found.too_few) == (None, most)
    else:
        assert found.machines is not None
        assert need <= found.machines <= max(need, need / (1 - FINE))
    assert len(set(needs.probes)) == len(needs.probes), "nothing is tried twice"
    assert needs.rounds <= 40


def test_an_offer_that_is_sure_to_be_dearer_is_left_as_it_is() -> None:
    needs, prices = Needs(cheap=20, dear=18), {"cheap": 1.0, "dear": 2.0}
    found = fewest({"cheap": 16, "dear": 16}, needs, most=dict.fromkeys(prices, 100), prices=prices)
    assert found["cheap"].machines == 20
    assert found["dear"].dearer
    assert len([probe for probe in needs.probes if probe[0] == "dear"]) <= 2


class Draws(Runs):
    """Runs that are not simulated: each way is enough from so many machines on, by the draw."""

    def __init__(self, needs: dict[str, tuple[int, ...]]) -> None:
        self.sampling, self.expected = Sampling(), 0
        self._needs = needs

    def play(self, runs: Sequence[Run], doing: str, *, target: float = 0.0) -> list[Figures]:
        some = [float(run.machines >= self._needs[run.offer.way.label][run.seed]) for run in runs]
        return [Figures(100, share, share, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0) for share in some]


def test_what_is_cheaper_by_the_first_draw_is_compared_by_all_draws(tmp_path: Path) -> None:
    some = replace(question(tmp_path, count=10, rate=40.0), ways=WAYS, seeds=2)
    plan = make_plan(some, Draws({"late": (8, 16), "lru": (9, 11), "lru/wait": (12, 12)}))
    assert plan.best is not None
    assert {row.offer.way.label: row.machines for row in plan.rows} == {"late": 16, "lru": 11, "lru/wait": None}
    assert [row.dearer for row in plan.rows] == [False, False, True]
    assert (plan.best.offer.way.label, plan.best.machines) == ("lru", 11)


def test_an_offer_that_is_not_enough_for_every_draw_is_none(tmp_path: Path) -> None:
    some = replace(question(tmp_path, count=10, rate=40.0), seeds=2, most=20)
    plan = make_plan(some, Draws({"late": (8, 1000)}))
    assert (plan.best, plan.rows[0].machines, plan.rows[0].most) == (None, None, 20)


@pytest.mark.parametrize("one", WAYS)
def test_a_label_says_all_of_a_way(one: Way) -> None:
    assert way(one.label) == one


@pytest.mark.parametrize("text", ["", "fifo", "late/never", "late/wait/wait", "/wait"])
def test_what_is_no_way_is_told_with_those_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match="use one of"):
        way(text)


WORKLOAD = """
[[machines]]
name = "plain"
memory = "2GB"

[[models]]
count = {count}
size = {{ median = "100MB", spread = 0.5 }}
seconds = {{ median = 0.2, spread = 0.3 }}
deadline = 1.5

[traffic]
rate = {rate}
duration = 20
"""


def question(tmp_path: Path, *, count: int, rate: float) -> Question:
    file = tmp_path / "workload.toml"
    file.write_text(WORKLOAD.format(count=count, rate=rate))
    workload = read_workload(file)
    return Question(workload, population_of(workload), WAYS[:1], warm=2.0, seeds=1)


def test_a_sample_has_its_share_of_models_bytes_and_work(tmp_path: Path) -> None:
    whole = question(tmp_path, count=2000, rate=500.0)
    part = Sampling(0.05).question(whole, 3)

    def size(one: Question) -> int:
        return sum(model.served.footprint.size for model in one.population.models)

    assert size(part) / size(whole) == pytest.approx(0.05, rel=0.03)
    assert busy_workers(part) / busy_workers(whole) == pytest.approx(0.05, rel=0.2), "as drawn"
    rates = [float(one.population.rates.totals.max()) for one in (whole, part)]
    assert rates[1] < 0.5 * rates[0], "the most popular model needs several machines, and is split"
    other = Sampling(0.05).question(whole, 4)
    names = [{model.served.spec.name for model in one.population.models} for one in (part, other)]
    assert names[0] != names[1]


def test_only_large_clusters_are_simulated_in_samples(tmp_path: Path) -> None:
    assert not sampling_of(question(tmp_path, count=20, rate=10.0)).sampled
    large = sampling_of(question(tmp_path, count=2000, rate=2000.0))
    assert large.whole(large.part(1000)) == pytest.approx(1000, rel=0.05)
    assert large.share < 0.5


def test_samples_that_agree_are_as_sure_as_their_machines_are_many() -> None:
    late = {19: [200.0] * 4, 20: [100.0] * 4, 21: [50.0] * 4}  # of 10,000 requests each: 20 machines have 1 %
    assert Sampling(0.1).estimate(late, [10_000] * 4, 0.99) == Estimate(200, 200, 200, samples=4, is_narrow=True)
    between = Sampling(0.1).estimate(late, [10_000] * 4, 0.9929)  # half way, as shares fall by halves
    assert between.machines == 205


def test_a_sample_that_no_machines_help_counts_for_its_share_alone() -> None:
    late = {19: [60.0, 60.0, 60.0, 300.0], 20: [30.0, 30.0, 30.0, 300.0], 21: [15.0, 15.0, 15.0, 300.0]}
    estimate = Sampling(0.1).estimate(late, [10_000] * 4, 0.99)
    assert 195 <= estimate.machines <= 205
    assert estimate.low < estimate.machines < estimate.high
    assert estimate.high <= 300


def test_a_plan_by_samples_has_an_interval(tmp_path: Path) -> None:
    some = replace(question(tmp_path, count=30, rate=30.0), target=0.8)
    with playing(some, lambda doing, share: None, processes=1, sampling=Sampling(0.5)) as runs:
        plan = make_plan(some, runs)
    assert plan.best is not None
    assert plan.best.estimate is not None
    assert plan.best.estimate.samples >= 3
    assert plan.best.estimate.low <= plan.best.estimate.machines <= plan.best.estimate.high
    assert all(0.75 * 30 < one.goodput < 1.15 * 30 for one in plan.best.figures), "of the whole cluster"


FLEET = fleet(2, model("quick", allowed=1.0), model("slow", allowed=10.0))


def played(times: list[float], models: list[int], took: list[float], outcome: list[Outcome]) -> Played:
    n = len(times)
    requests = Requests(np.array(times), np.array(models, np.int32), np.zeros(n, np.int16), np.zeros(n, np.int32))
    ended = np.array(times) + np.array(took)
    return Played(requests, ended, np.array(outcome, np.int8), np.zeros(n, np.int32), 20, np.array([4.0, 6.0]))


def test_an_answer_is_in_time_by_what_its_own_model_is_allowed_and_a_refused_request_is_not() -> None:
    run = played([0.0, 0.0, 1.0, 9.0, 10.0], [0, 1, 1, 0, 0], [2.0, 2.0, 11.0, 0.1, 0.5], [Outcome.ANSWERED] * 5)
    run.outcome[3] = Outcome.REFUSED_LATE
    found = figures_of(FLEET, run)
    assert (found.requests, found.in_time, found.answered) == (5, 0.4, 0.8)
    assert found.goodput == pytest.approx(2 / 10)
    assert (found.mean, found.p50, found.p99) == (15.5 / 4, 2.0, 11.0)
    assert found.busy == pytest.approx(10 / (12 * 2)), "of the whole run, until the last answer"
    assert isnan(figures_of(FLEET, played([1.0], [0], [0.0], [Outcome.REFUSED_FULL])).p99)


def test_requests_of_the_warm_up_do_not_count_and_a_sample_stands_for_the_whole() -> None:
    run = played([0.0, 4.0, 10.0], [0, 0, 0], [9.0, 0.5, 0.5], [Outcome.ANSWERED] * 3)
    found = figures_of(FLEET, run, warm=4.0, share=0.01)
    assert (found.requests, found.in_time) == (2, 1.0)
    assert found.goodput == pytest.approx(2 / 6 / 0.01)
