"""Sides in turn: what counts, who is compared with whom, what refilling can gain; live and simulated alike."""

import asyncio
import time
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from latebind.bench.subject import Setting, Subject
from latebind.domain.errors import ConfigError
from research import contest
from research.contest import Cell, Costs, Plan, Played, Report, Simulated, on_engines
from research.ebird import command as ebird
from research.joint import command as joint
from research.joint import sides as joint_sides
from research.joint.sides import BASELINES, OURS, Kind
from research.lazybatching import command as lazybatching
from research.live import in_time
from research.policies import BATCHING
from research.sides import SERIAL, Side, chosen, least
from tests.digits import Built
from tests.research.conftest import quiet, subject_of

CELL = Cell(1.0, 3.0)


def played(*seconds: float, allowed: float = 1.0) -> Played:
    flags = np.full(len(seconds), True)
    return Played(np.array(seconds), flags, flags, 1.0, allowed)


def test_what_comes_too_late_or_not_at_all_is_not_in_time() -> None:
    assert played(0.1, 0.5, 0.6, np.inf, allowed=0.5).in_time.tolist() == [True, True, False, False]
    report = Report({"a": Side("a")}, ("a",), (), blocks={CELL: {"a": [played(0.1, 0.5, np.inf, allowed=0.2)]}})
    assert report.goodputs(CELL, "a").tolist() == [1.0]
    assert report.means(CELL, "a").tolist() == pytest.approx([0.3])


def test_the_best_of_a_kind_is_chosen_by_the_rounds_that_it_is_not_judged_by() -> None:
    sides = {"a": [1.0, 8.0, 9.0], "b": [5.0, 5.0, 5.0], "c": [6.0, 6.0, 1.0]}
    assert least({name: np.array(some) for name, some in sides.items()}).tolist() == [6.0, 6.0, 9.0]
    assert least({"a": np.array([2.0]), "b": np.array([1.0])}).tolist() == [1.0]
    kinds = {"a": "base", "b": "base", "o": "ours"}
    report = Report({name: Side(name, kinds=(kind,)) for name, kind in kinds.items()}, ("o",), ("base", "none"))
    report.blocks = {
        CELL: {
            name: [played(*[0.5] * count) for count in counts]
            for name, counts in {"a": (4, 1, 1, 1), "b": (1, 4, 4, 4), "o": (3, 3, 3, 3)}.items()
        }
    }
    _, over = report.against(CELL, "o", "base")
    assert over is not None
    assert over.value == pytest.approx(12 / (1 + 4 + 4 + 4))  # in the first round b's, for the others
    assert report.against(CELL, "o", "none") == (None, None)


def test_every_kind_has_sides_and_baselines_take_part_as_described() -> None:
    every = joint_sides.contenders()
    of_kind = {kind: [side for side in every.values() if kind in side.kinds] for kind in Kind}
    assert all(of_kind.values())
    assert {side.exits for side in of_kind[Kind.WHOLE]} == {False}
    assert "GATI" not in [side.label for side in of_kind[Kind.SHARED]]
    assert {side.policy.name for side in of_kind[Kind.SHARED]} == {BATCHING["waiting"]}
    waits = [side for side in ebird.contenders(2).values() if ebird.Kind.BASELINE in side.kinds]
    assert {(side.workers, side.threads) for side in waits} == {(1, 2), (2, 1)}
    assert {side.policy.window for side in waits} == {0.0, *ebird.WINDOWS}
    for recurrent in (False, True):
        assert {SERIAL, lazybatching.OURS} < set(lazybatching.live_sides(recurrent=recurrent))
    with pytest.raises(ConfigError, match="take some of"):
        chosen(every, ["GraphB"])


@pytest.fixture(scope="module")
def costs(built: Built) -> Costs:
    found = Costs.read(built.directory.path.parents[1], "digits", steep=True)
    stage = found.whole.costs.stages[-1]
    assert 32 * stage.at(1) / stage.at(32) == pytest.approx(contest.STEEP_GAIN)
    return found


def simulated(costs: Costs, report: Report, plan: Plan) -> Report:
    asyncio.run(report.measure(plan, Simulated(costs, report.sides), Random(0), quiet))
    return report


def test_simulated_runs_repeat_and_exits_bring_more_in_time(costs: Costs) -> None:
    some = ("GraphB(0, 16)", "Ebird", "GATI, unshed", "GATI, batch 4", "compacted, batch 16")
    sides = chosen(joint_sides.contenders(), some, always=(SERIAL, OURS))
    plan = Plan((1.2,), (3.0,), 2, 200 * costs.whole.costs.remaining(0, 1), Kind.WHOLE)
    first, second = [simulated(costs, Report(sides, (OURS,), BASELINES), plan) for _ in range(2)]
    (cell,) = plan.cells
    assert first.rows(cell) == second.rows(cell)
    _, over = first.against(cell, OURS, Kind.WHOLE)
    assert over is not None
    assert over.value > 1.0
    shares = {row["side"]: row["left early"] for row in first.rows(cell)}
    assert shares[SERIAL] == "0.0%" != shares[OURS]
    assert first.found().draw()[0] is not None


def test_what_exits_gain_is_told_for_every_batch_over_the_same_policy_without(costs: Costs) -> None:
    plan = Plan((0.5,), (1e4,), 2, 100 * costs.whole.costs.remaining(0, 1))
    report = simulated(costs, Report(joint_sides.by_batch(), (SERIAL,), ()), plan)
    kinds, sizes = tuple(joint_sides.WITHOUT), joint_sides.BATCHES
    rows = joint.gain_rows(report, kinds, sizes)
    assert len(rows) == len(kinds) * len(sizes)
    assert {row["of batch 1"] for row in rows if row["largest batch"] == 1} == {"1.000 [1.000, 1.000]"}
    refilled = Report(joint_sides.refilling(costs.exits), (OURS,), ())
    every, seconds = list(refilled.sides), 400 * costs.whole.costs.remaining(0, 1)
    refilled.saturated = asyncio.run(Simulated(costs, refilled.sides).saturated(every, seconds, 2, Random(0), quiet))
    over = {name: np.mean(refilled.saturated[joint_sides.ALONE]) / np.mean(t) for name, t in refilled.saturated.items()}
    assert over[OURS] > 1.0
    assert over["all wait for the last"] <= 1.0


def measured(subject: Subject, report: Report, plan: Plan, cores: tuple[int, ...] = ()) -> None:
    part, setting = partial(report.measure, plan), Setting(paced=0.02)
    on_engines(subject, report.sides, part, setting, on_progress=quiet, cores=cores)


@pytest.mark.parametrize(("model", "other"), [("chain", "GraphB(0, 8)"), ("backwards", "continuous")])
def test_engines_of_all_sides_get_the_same_requests(models: Path, model: str, other: str) -> None:
    every = lazybatching.live_sides(recurrent=model == "backwards")
    report = Report(chosen(every, (other,), always=(SERIAL, "lazy+")), ("lazy+",), (lazybatching.TUNED,))
    measured(subject_of(models, model), report, Plan((0.5,), (50.0,), 1, 0.2))
    ((cell, sides),) = report.blocks.items()
    assert list(sides) == [SERIAL, other, "lazy+"]
    assert len({len(blocks[0].seconds) for blocks in sides.values()}) == 1
    assert all(np.isfinite(block.seconds).all() and block.fidelity == 1.0 for (block,) in sides.values())
    assert all(times[0] > 0 for times in report.saturated.values())
    assert {row["side"] for row in report.kind_rows()} == {"lazy+"}
    assert cell == Cell(0.5, 50.0)


def test_engines_with_several_workers_and_exits_are_held_against_the_base_model(built: Built) -> None:
    subject = Subject(built.directory.path.parents[1], "digits", {"image": built.unseen[:100].numpy()})
    every = joint_sides.contenders() | ebird.contenders(2)
    report = Report(chosen(every, ("GATI", "no wait, 2 x 1"), always=(SERIAL, OURS)), (OURS,), (Kind.WHOLE,))
    measured(subject, report, Plan((0.8,), (20.0,), 1, 0.4), (0, 1))
    (rows,) = map(report.rows, report.blocks)
    found = {row["side"]: row for row in rows}
    assert found[SERIAL]["fidelity"] == "1.0000"
    assert found[SERIAL]["left early"] == "0.0%" != found[OURS]["left early"]
    assert float(str(found[OURS]["fidelity"])) >= 0.8


def test_calls_are_due_from_when_they_were_planned() -> None:
    """Else a pause before the first, as of the collector, would make all of them late, and nobody would catch up."""
    sent = list[float]()

    async def call(at: float) -> None:
        sent.append(at)

    async def held() -> None:
        async with asyncio.timeout(5.0):
            await in_time([(at, partial(call, at)) for at in (7.0, 8.0)], time.monotonic() - 9.0)

    asyncio.run(held())
    assert sent == [7.0, 8.0]
