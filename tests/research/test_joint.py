"""Exits, batching and deadlines together: what counts, what refilling can gain, live and simulated."""

import asyncio
from collections.abc import Sequence
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.bench.rounds import Progress
from latebind.bench.subject import Setting, Subject
from latebind.domain.config import ServedModel
from latebind.domain.costs import EMPTY_STAGE, Curve, ModelCosts
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from research.joint import batches, goodput, refill
from research.joint.bound import least_work, most_in_time
from research.joint.command import on_engines
from research.joint.goodput import Block, Cell, JointReport
from research.joint.sides import OURS, Kind, contenders
from research.joint.simulated import Costs, Scaling, on_costs, relative
from research.live import Contest, Played
from research.policies import BATCHING
from research.sides import SERIAL, of_kind
from tests.digits import Built
from tests.research.conftest import quiet

VECTOR = TensorSpec("x", "float32", (1,))
FLAT, LINEAR = Curve((1, 8), (1.0, 1.0)), Curve((1, 8), (1.0, 8.0))


def played(seconds: list[float], *, early: bool = False) -> Played:
    return Played(np.array(seconds), np.full(len(seconds), early), np.full(len(seconds), True))


def test_what_comes_too_late_or_not_at_all_is_no_goodput() -> None:
    block = Block(span=2.0, allowed=0.5, played=played([0.1, 0.5, 0.6, np.inf]))
    assert block.goodput == 1.0
    assert block.in_time.tolist() == [True, True, False, False]


def test_the_best_of_a_kind_is_judged_by_rounds_that_did_not_choose_it() -> None:
    report = JointReport(0, contenders())
    cell = Cell(1.0, 3.0)
    for serial, graph, ours in ((4, 1, 3), (1, 4, 3), (1, 4, 3), (1, 4, 3)):
        counts = {SERIAL: serial, "GraphB(0, 4)": graph, OURS: ours}
        report.add(cell, {name: Block(1.0, 1.0, played([0.5] * count)) for name, count in counts.items()})
    found = report.over_best(cell, Kind.WHOLE)
    assert found is not None
    assert found.value == pytest.approx(12 / (1 + 4 + 4 + 4))  # in the first round the graph's, for the others
    assert report.over_best(cell, Kind.GATI) is None
    assert report.fidelity(OURS) == 1.0


def test_every_kind_has_sides_and_gati_may_be_unbatched() -> None:
    every = contenders()
    assert all(of_kind(every, kind) for kind in Kind)
    assert {every[name].exits for name in of_kind(every, Kind.WHOLE)} == {False}
    assert "GATI" in of_kind(every, Kind.GATI)
    assert "GATI" not in of_kind(every, Kind.SHARED)
    assert {every[name].policy.name for name in of_kind(every, Kind.SHARED)} == {BATCHING["waiting"]}


@pytest.mark.parametrize(
    ("curve", "batch", "bound"),
    [
        (LINEAR, 8, 1.0),  # small batches are no dearer
        (FLAT, 8, 2 / 1.25),  # a quarter runs the second stage for the price of all
        (FLAT, 1, 1.0),  # in batches of one nothing is ever empty
    ],
)
def test_refilling_gains_at_most_what_small_batches_cost(curve: Curve, batch: int, bound: float) -> None:
    assert refill.refill_bound([curve, curve], [1.0, 0.25], batch) == pytest.approx(bound)


def test_a_decoder_is_as_many_stages_as_the_longest_answer_has_steps() -> None:
    kinds = (StageKind.STATIC, StageKind.DECODER)
    served = ServedModel(
        ModelSpec("writer", "1", (VECTOR,), (VECTOR,), 2, 8, kinds=kinds),
        ModelCosts((LINEAR, FLAT), slopes={0: FLAT}, output_steps=(1, 1, 2, 4)),
    )
    curves, alive = refill.unrolled(served)
    assert curves == [Curve((1, 8), (2.0, 9.0)), FLAT, FLAT, FLAT, FLAT]  # two words in, as are answered on average
    assert alive == [1.0, 1.0, 0.5, 0.25, 0.25]


def test_a_lookup_is_part_of_its_stage_and_hits_do_not_go_on() -> None:
    served = ServedModel(
        ModelSpec("net", "1", (VECTOR,), (VECTOR,), 2, 8, lookups=(0,)),
        ModelCosts((EMPTY_STAGE, LINEAR), lookups={0: FLAT}, hit_rates={0: 0.75}),
    )
    curves, alive = refill.unrolled(served)
    assert curves == [FLAT, LINEAR]
    assert alive == [1.0, 0.25]


def test_given_scalings_keep_what_one_takes_and_gain_what_they_say() -> None:
    assert relative(Scaling.STEEP).at(1) == relative(Scaling.NPU).at(1) == 1.0
    assert 32 / relative(Scaling.STEEP).at(32) == pytest.approx(13.0)


@pytest.fixture(scope="module")
def costs(built: Built) -> Costs:
    return Costs.read(built.directory.path.parents[1], "digits", Scaling.STEEP)


def test_simulated_runs_repeat_and_exits_bring_more_in_time(costs: Costs) -> None:
    some = ("GraphB(0, 16)", "Ebird", "GATI, unshed", "GATI, batch 4", "GATI, batch 16, unshed", "compacted, batch 16")
    plan = goodput.Plan((1.2,), (3.0,), rounds=2, seconds=200 * costs.whole.costs.remaining(0, 1), sides=some)
    reports = []
    for _ in range(2):
        report = JointReport(0, plan.chosen())

        async def part(contest: Contest, random: Random, tell: Progress, report: JointReport = report) -> None:
            await goodput.measure(report, contest, plan, random, tell, least_work(costs.whole, costs.exits))

        on_costs(costs, report.contenders, part, seed=0, progress=quiet)
        reports.append(report)
    first, second = reports
    (cell,) = plan.cells
    assert first.rows(cell) == second.rows(cell)
    best = first.over_best(cell, Kind.WHOLE)
    assert best is not None
    assert best.value > 1.0
    shares = {row["side"]: row["left early"] for row in first.rows(cell)}
    assert shares[SERIAL] == "0.0%"
    assert shares[OURS] != "0.0%"
    assert all(first.goodputs(cell, name).max() <= max(first.bounds[cell]) for name in first.contenders)
    (row,) = first.kind_rows()
    assert row[Kind.PUBLISHED]
    assert 0.5 < float(str(row["of any policy's"])) <= 1.0
    assert str(row["at most"]).endswith("over GATI, batches of 2 or more")


def test_what_exits_gain_is_told_for_every_batch_over_the_same_policy_without(costs: Costs) -> None:
    report = batches.BatchesReport(batches.Plan(load=0.5, rounds=2, seconds=200 * costs.whole.costs.remaining(0, 1)), 0)

    async def part(contest: Contest, random: Random, tell: Progress) -> None:
        await batches.measure(report, contest, random, tell)

    on_costs(costs, batches.sides(), part, seed=0, progress=quiet)
    rows = report.rows()
    assert len(rows) == len(batches.WITHOUT) * len(batches.SIZES)
    first = [row["of batch 1"] for row in rows if row["largest batch"] == 1]
    assert first == ["1.000 [1.000, 1.000]"] * len(batches.WITHOUT)
    assert {side.policy.name for name, side in batches.sides().items() if name.startswith("late")} == {"late"}


def test_a_round_that_the_machine_spoilt_does_not_change_what_is_kept_of_a_gain() -> None:
    report = batches.BatchesReport(batches.Plan((batches.OURS,), (1, 4)), 0)
    report.means = {
        "late without exits, 1": [4.0, 2.0, 40.0],
        "late, 1": [2.0, 1.0, 2.0],
        "late without exits, 4": [4.0, 2.0, 4.0],
        "late, 4": [2.5, 1.25, 2.5],
    }
    assert report.kept(report.means, batches.OURS, 4).value == pytest.approx(0.8)


def in_time(times: Sequence[float], work: Sequence[float], allowed: float) -> bool:
    """Progress whether all can be in time, one after another."""
    end = 0.0
    for came, seconds in zip(times, work, strict=True):
        end = max(end, came) + seconds
        if end > came + allowed:
            return False
    return True


@given(
    calls=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=7),
    allowed=st.integers(3, 12),
)
def test_the_most_in_time_is_the_largest_set_that_can_be(calls: list[tuple[int, int]], allowed: int) -> None:
    calls = sorted(calls, key=lambda call: call[0])
    sets = [some for count in range(len(calls) + 1) for some in combinations(calls, count)]
    most = max(len(some) for some in sets if in_time([c for c, _ in some], [w for _, w in some], allowed))
    times, work = ([float(call[place]) for call in calls] for place in (0, 1))
    assert most_in_time(times, work, float(allowed)) == most


def test_a_request_takes_at_least_its_share_of_the_cheapest_batches_with_an_exit_or_without() -> None:
    whole = ServedModel(ModelSpec("net", "1", (VECTOR,), (VECTOR,), 2, 8), ModelCosts((EMPTY_STAGE, LINEAR)))
    spec = ModelSpec("net", "1", (VECTOR,), (VECTOR,), 2, 8, lookups=(0,))
    exits = ServedModel(spec, ModelCosts((EMPTY_STAGE, LINEAR), lookups={0: FLAT}, hit_rates={0: 0.75}))
    assert least_work(whole, exits) == (1 / 8, 1.0)


def test_refilling_stays_below_its_bound(costs: Costs) -> None:
    bound = refill.refill_bound(*refill.unrolled(costs.exits), costs.exits.spec.max_batch)
    report = refill.RefillReport(bound, 0)

    async def part(contest: Contest, random: Random, tell: Progress) -> None:
        await refill.measure(report, contest, costs.exits, 2, 400 * contest.alone, random, tell)

    on_costs(costs, refill.sides(costs.exits), part, seed=0, progress=quiet)
    gains = {
        name: np.mean(report.times_over[refill.ALONE]) / np.mean(times) for name, times in report.times_over.items()
    }
    assert gains[OURS] <= 1.05 * bound  # the bound is by the share that hits on average
    assert gains["all wait for the last"] <= 1.0


def test_engines_are_asked_with_deadlines_and_held_against_the_base_model(built: Built) -> None:
    plan = goodput.Plan((0.8,), (20.0,), rounds=1, seconds=0.4, sides=("GATI",))
    report = JointReport(0, plan.chosen())
    assert list(report.contenders) == [SERIAL, "GATI", OURS]

    async def part(contest: Contest, random: Random, tell: Progress) -> None:
        await goodput.measure(report, contest, plan, random, tell)

    inputs = {"image": built.unseen[:100].numpy()}
    asked, setting = Subject(built.directory.path.parents[1], "digits", inputs), Setting(backend="eager", paced=0.02)
    asyncio.run(on_engines(asked, report.contenders, part, setting, Random(0), quiet))
    ((cell, sides),) = report.blocks.items()
    assert cell == Cell(0.8, 20.0)
    assert len({len(blocks[0].played.seconds) for blocks in sides.values()}) == 1
    assert report.fidelity(SERIAL) == 1.0
    assert report.fidelity(OURS) >= 0.8
    assert not sides[SERIAL][0].played.early.any()
    assert sides[OURS][0].played.early.any()
    assert report.capacities[0].most > 0
