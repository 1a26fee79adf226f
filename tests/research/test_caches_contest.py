"""Routes with exits, thresholds by folds, and methods that run against each other."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.compose import Costs, Seen
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples
from research.gati.routes import (
    END,
    Contender,
    Exit,
    Outcome,
    Plan,
    Route,
    Scored,
    Stage,
    Standings,
    answers_of,
    confidence,
    promised,
    standings,
)


def silent(_text: str, _share: float) -> None:
    """Progress nobody."""


def plus(number: float) -> Stage:
    return Stage(lambda x: (x + number,))


def sure(scores: Sequence[float]) -> Exit:
    """Answers the class that the activation names, with the same score for each row of a batch."""

    def look(activation: Tensor) -> Scored:
        return activation.numpy(), np.full(len(activation), scores[0], np.float32)

    return Exit("sure", look)


def test_a_route_without_its_exit_is_the_last_network_alone() -> None:
    first, last = plus(1.0), Stage(lambda x: (x * 2,), again=True)
    route = Route((first, sure([1.0]), plus(5.0), last, plus(0.0)))
    assert route.with_thresholds(np.array([np.inf])).pieces == (last, route.pieces[-1])
    kept = route.with_thresholds(np.array([0.5]))
    assert [type(piece) for piece in kept.pieces] == [Stage, Exit, Stage, Stage]  # nobody looks at the plus(5.0)


def test_a_row_leaves_where_the_score_is_high_enough() -> None:
    route = Route((plus(0.0), sure([0.7]), Stage(lambda x: (x.flip(1),))))
    row = torch.tensor([[0.0, 3.0, 1.0]])
    assert route.with_thresholds(np.array([0.7]))(row) == (1, "sure")
    assert route.with_thresholds(np.array([0.8]))(row) == (1, END)
    assert route.with_thresholds(np.array([0.8]))(torch.tensor([[5.0, 0.0, 1.0]])) == (2, END)


def test_confidence_is_the_highest_share_of_the_softmax() -> None:
    answers = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    assert confidence(answers.numpy()) == pytest.approx(answers.softmax(dim=1).amax(dim=1).numpy())


def test_each_row_is_measured_once_and_by_thresholds_that_have_not_seen_it() -> None:
    parts = Plan(Promise(0.9, 0.9), folds=3, seed=5).parts(200)
    assert sorted(np.concatenate([measured for _, _, measured in parts]).tolist()) == list(range(200))
    for choose, show, measured in parts:
        assert sorted(np.concatenate([choose, show, measured]).tolist()) == list(range(200))


@pytest.mark.parametrize(("folds", "rows", "words"), [(1, 100, "2 or more"), (2, 30, "give more samples")])
def test_a_plan_that_can_show_nothing_is_refused(folds: int, rows: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan(Promise(0.97, 0.95), folds).parts(rows)


def test_the_promise_counts_an_end_that_is_not_the_base_model() -> None:
    random = np.random.default_rng(0)
    scores, rows = random.random((1, 2_000)), np.arange(2_000)
    costs = Costs((0.0, 1.0), (0.1,))
    right = scores > random.random((1, 2_000))
    often = Seen(scores, right, random.random(2_000) < 0.98)
    seldom = Seen(scores, right, random.random(2_000) < 0.5)
    promise = Promise(0.95)
    exact, nearly, hardly = (
        promised(seen, costs, promise)(rows[:600], rows[600:])[0] for seen in (Seen(scores, right), often, seldom)
    )
    assert exact < nearly < 1.0
    assert np.isinf(hardly)


def test_methods_on_the_same_route_run_once_and_the_base_model_is_the_measure() -> None:
    calls = 0

    def count(x: Tensor) -> tuple[Tensor]:
        nonlocal calls
        calls += 1
        return (x,)

    route = Route((Stage(count),))
    rows = Samples((torch.eye(4).repeat(25, 1),), torch.zeros(100, dtype=torch.int64))
    ways = [Contender(name, route, 8, lambda choose, show: np.empty(0)) for name in ("base", "same")]
    found = standings(ways, rows, Plan(Promise(0.9, 0.9), folds=2), tell=silent)
    assert calls == 100 + 2 * 10  # warming up for each of two folds
    assert [found.fidelity(one) for one in found.outcomes] == [1.0, 1.0]
    assert [found.accuracy(one) for one in found.outcomes] == [0.25, 0.25]
    assert found.gain(found.outcomes[1]).value == 1.0


def test_a_method_that_takes_twice_as_long_does_not_beat_and_one_that_takes_half_does() -> None:
    seconds, classes = np.random.default_rng(0).gamma(4, 1e-3, 200), np.zeros(200, np.int64)
    ran = [
        Outcome(name, 8, times * seconds, classes, (END,) * 200)
        for name, times in (("base", 4.0), ("own", 1.0), ("slow", 2.0), ("quick", 0.5))
    ]
    found = Standings(tuple(ran), None, seed=0)
    ratios = [found.against_own(one) for one in found.outcomes]
    assert [(ratio.value, ratio.low, ratio.high) for ratio in ratios] == [
        pytest.approx((times, times, times)) for times in (4.0, 1.0, 2.0, 0.5)
    ]


def test_answers_of_a_route_are_those_of_its_exits_and_its_end() -> None:
    rows = Samples((torch.eye(3).repeat(10, 1),))
    last = Stage(lambda x: (x.roll(1, 1),))
    found = answers_of(Route((plus(0.0), sure([0.3]), Stage(lambda x: (-x,)), sure([0.6]), plus(0.0), last)), rows)
    assert found.classes.tolist() == [[0, 1, 2] * 10, [1, 0, 0] * 10]
    assert found.ends.tolist() == [0, 0, 1] * 10
    assert found.scores == pytest.approx(np.array([[0.3] * 30, [0.6] * 30]))
