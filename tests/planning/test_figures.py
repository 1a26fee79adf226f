"""What a run's figures say: who counts, who is in time, what is told of those that were answered."""

from math import isnan

import numpy as np
import pytest

from latebind.domain.actions import Outcome
from latebind.domain.config import ServedModel
from latebind.domain.costs import EMPTY_STAGE, ModelCosts
from latebind.domain.model import ModelSpec
from latebind.planning.figures import figures_of
from latebind.simulation.cluster.fleet import ClusterModel, Fleet, MachineKind, Played, Requests

QUICK, SLOW = (
    ClusterModel(ServedModel(ModelSpec(name, "1", (), (), 1, 1), ModelCosts((EMPTY_STAGE,))), allowed)
    for name, allowed in (("quick", 1.0), ("slow", 10.0))
)
FLEET = Fleet((MachineKind("some", 1),) * 2, (QUICK, SLOW))


def played(times: list[float], models: list[int], took: list[float], outcome: list[Outcome], weight: float) -> Played:
    n = len(times)
    requests = Requests(np.array(times), np.array(models, np.int32), np.zeros(n, np.int16), weight)
    ended = np.array(times) + np.array(took)
    machine, marks = np.zeros(n, np.int32), np.zeros(1)
    return Played(
        requests, ended, np.array(outcome, np.int8), machine, marks, np.ones(1, np.int32), 20, 2.0, np.array([4.0, 6.0])
    )


def test_an_answer_is_in_time_by_what_its_own_model_is_allowed() -> None:
    run = played([0.0, 0.0, 1.0, 10.0], [0, 1, 1, 0], [2.0, 2.0, 11.0, 0.5], [Outcome.ANSWERED] * 4, 1.0)
    found = figures_of(FLEET, run)
    assert (found.requests, found.in_time, found.answered) == (4, 0.5, 1.0)
    assert found.goodput == pytest.approx(2 / 10)
    assert (found.p50, found.p99) == (2.0, 11.0)


def test_who_is_refused_is_not_in_time_and_has_no_latency() -> None:
    run = played([0.0, 10.0], [1, 1], [0.0, 3.0], [Outcome.REFUSED_LATE, Outcome.ANSWERED], 1.0)
    found = figures_of(FLEET, run)
    assert (found.in_time, found.answered, found.mean) == (0.5, 0.5, 3.0)


def test_requests_of_the_warm_up_do_not_count() -> None:
    run = played([0.0, 4.0, 10.0], [0, 0, 0], [9.0, 0.5, 0.5], [Outcome.ANSWERED] * 3, 1.0)
    found = figures_of(FLEET, run, warm=4.0)
    assert (found.requests, found.in_time) == (2, 1.0)
    assert found.goodput == pytest.approx(2 / 6)


def test_a_request_counts_for_as_many_as_it_stands_for() -> None:
    run = played([0.0, 10.0], [0, 0], [0.5, 0.5], [Outcome.ANSWERED] * 2, 100.0)
    assert figures_of(FLEET, run).goodput == pytest.approx(20.0)


def test_machines_are_busy_by_their_share_of_the_whole_run() -> None:
    run = played([0.0, 19.0], [1, 1], [1.0, 1.0], [Outcome.ANSWERED] * 2, 1.0)
    found = figures_of(FLEET, run)
    assert found.busy == pytest.approx(10 / (20 * 2))
    assert found.loads == pytest.approx(1.0)


def test_where_nobody_is_answered_there_are_no_latencies() -> None:
    found = figures_of(FLEET, played([1.0], [0], [0.0], [Outcome.REFUSED_FULL], 1.0))
    assert isnan(found.p99)
    assert found.in_time == 0.0
