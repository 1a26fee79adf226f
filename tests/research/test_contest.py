"""The comparison by hand: what thresholds promise, what figures count and what pieces cost. No model is run."""

from time import sleep

import numpy as np
import pytest
import torch
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.compose import Composition, Costs, Floats, Seen, send
from latebind.learned.head import Head, Selector
from latebind.learned.ilp import Variant, relaxed
from latebind.learned.lookup import LookupFunction
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples
from research.gati.baselines import RANGE_ROWS, Clusters, Kept, contender, figures, set_aside
from research.gati.networks import RULES, Rules, proposals
from research.gati.routes import (
    Answers,
    Contender,
    Exit,
    Outcome,
    Plan,
    Route,
    Rows,
    Scored,
    Stage,
    Standings,
    promised,
    standings,
    unselected,
)

PROMISE = Promise(0.9, 0.9)
PLAN = Plan(PROMISE, folds=2)
THIRDS = tuple(np.arange(600)[start::3] for start in range(3))


def looked(activation: Tensor) -> Scored:
    return activation.numpy(), np.full(len(activation), 0.7, np.float32)


def same(activation: Tensor) -> tuple[Tensor]:
    return (activation,)


def slow(activation: Tensor) -> tuple[Tensor]:
    sleep(0.01)
    return (activation,)


def outcome(name: str, seconds: list[float], classes: list[int]) -> Outcome:
    return Outcome(name, 8, np.array(seconds), np.array(classes), ("end",) * len(classes))


def test_gains_are_of_the_base_model_over_the_method_and_answers_are_counted_row_by_row() -> None:
    base, other = outcome("base", [4.0] * 4, [0, 1, 2, 2]), outcome("other", [1.0, 2.0, 2.0, 3.0], [0, 1, 2, 0])
    never = outcome("never", [4.0] * 4, [9] * 4)
    found = Standings((base, other, never), np.array([0, 1, 1, 0]), seed=0)
    assert found.gain(other).value == 2.0
    assert [found.fidelity(one) for one in found.outcomes] == [1.0, 0.75, 0.0]
    assert [found.accuracy(one) for one in found.outcomes] == [0.5, 0.75, 0.0]
    assert [found.rows()[1][name] for name in ("p50 ms", "p99 ms")] == pytest.approx([2_000.0, 2_970.0])


def test_a_method_is_as_large_as_in_the_fold_in_which_it_uses_most() -> None:
    route = Route((Stage(same), Exit("exit", looked, bytes=100), Stage(same)))
    thresholds = iter([np.array([0.5]), np.array([np.inf])])
    rows = Samples((torch.eye(4).repeat(25, 1),))
    ways = [Contender("method", route, 8, lambda choose, show: next(thresholds))]
    (found,) = standings(ways, rows, PLAN, tell=lambda text, share: None).outcomes
    assert found.bytes == 108
    assert found.left.count("exit") == 50


def half_wrong(rows: Rows, *, lookups: int = 1) -> Seen:
    """Lookups that are right, however sure they are, but for `rows`, where they never are."""
    scores = np.random.default_rng(0).random((lookups, 600))
    right = np.ones(scores.shape, np.bool_)
    right[:, rows] = False
    return Seen(scores, right)


def test_a_promise_is_shown_on_other_rows_than_thresholds_were_chosen_on() -> None:
    choose, show, other = THIRDS
    found = promised(half_wrong(show), Costs((0.0, 1.0), (0.1,)), PROMISE)
    assert np.isinf(found(choose, show)).all()
    assert np.isfinite(found(choose, other)).all()


def test_an_exit_is_right_where_it_says_what_the_base_model_says_whatever_the_end_says() -> None:
    seen = Answers(np.ones((1, 3)), np.array([[0, 1, 2]]), np.array([0, 1, 1])).against(np.array([0, 2, 2]))
    assert seen.right.tolist() == [[True, False, True]]
    assert seen.end is not None
    assert seen.end.tolist() == [True, False, False]


def test_a_method_promises_the_base_models_answers_not_its_own() -> None:
    route = Route((Stage(same), Exit("exit", looked), Stage(slow)))
    rows, says = Samples((torch.eye(3).repeat(200, 1),)), np.arange(600) % 3
    alike, other = (contender("method", route, 8, rows, answers, PROMISE) for answers in (says, (says + 1) % 3))
    assert np.isinf(other.thresholds(*THIRDS[:2])).all()
    assert np.isfinite(alike.thresholds(*THIRDS[:2])).all()


def test_without_its_selector_a_lookup_answers_as_its_last_layer() -> None:
    layer, rows = torch.nn.Linear(4, 3), torch.randn(5, 4)
    torch.nn.init.uniform_(layer.bias, 1.0, 5.0)
    answers, scores = unselected(LookupFunction(same, Head.of(layer, Selector(3))))(rows)
    with torch.no_grad():
        assert answers == pytest.approx(layer(rows).numpy(), abs=1e-5)
        assert scores == pytest.approx(layer(rows).softmax(dim=1).amax(dim=1).logit().numpy(), abs=1e-4)


def test_few_rows_are_not_parted_for_ranges() -> None:
    with pytest.raises(ConfigError, match=f"give {2 * RANGE_ROWS} or more"):
        set_aside(Samples((torch.zeros(2 * RANGE_ROWS - 1, 1),)), 0)


# Caches that compare --------------------------------------------------------------------------------------------------


def test_a_cluster_answers_with_the_shares_of_its_rows_and_is_surer_near_its_centre() -> None:
    rows = torch.cat([torch.zeros(40, 2), torch.full((40, 2), 100.0)])
    classes = torch.cat([torch.tensor([0, 0, 0, 1] * 10), torch.full((40,), 2)])
    answers, scores = Clusters(Kept(rows, classes, 3), 2, seed=0)(
        torch.tensor([[0.0, 0.0], [10.0, 0.0], [100.0, 100.0]])
    )
    assert answers == pytest.approx(np.array([[0.75, 0.25, 0.0], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0]]))
    assert 0.75 < scores[1] < scores[0] < 0.7511 < scores[2]


def test_a_cache_is_told_with_its_own_figures_whether_its_time_is_worth_it_or_not() -> None:
    said = Answers(np.ones((1, 400)), (np.arange(400)[None] % 40 == 0).astype(np.int64), np.zeros(400, np.int64))
    rows = Samples((torch.zeros(400, 1),), torch.from_numpy(said.classes[0]))
    found = figures(Exit("cache", looked, bytes=5), said, Costs((1.0, 2.0), (7.0,)), rows, PLAN)
    assert (found["cache"], found["lookup ms"], found["MB"]) == ("cache", 7000.0, 5e-6)
    assert [found[name] for name in ("alone equal", "hit rate", "fidelity", "accuracy")] == [0.975, 1.0, 0.975, 1.0]


# Rules ----------------------------------------------------------------------------------------------------------------


def composition(*, memory: int = 100) -> Composition:
    """Three boundaries: lookups cost more and know more the later they stand."""
    costs = Costs((0.1, 1.0, 1.0, 1.0), (0.05, 0.2, 0.9))
    variants = [Variant(stage, "plain", 0.0, 1.0, took, 10) for stage, took in enumerate(costs.lookups)]
    return Composition(tuple(variants), costs, costs.segments, Promise(0.9, 0.9, cache_bytes=memory))


def mostly_right(seed: int = 0) -> Seen:
    random = np.random.default_rng(seed)
    scores = random.random((3, 600))
    return Seen(scores, random.random((3, 600)) < np.minimum(1.0, scores + np.array([[0.5], [0.7], [0.9]])))


def used(thresholds: Floats) -> set[int]:
    return set(np.flatnonzero(np.isfinite(thresholds)).tolist())


def test_what_rules_propose_for_one_fold_is_not_used_in_the_next() -> None:
    seen, (one, show, other) = mostly_right(), THIRDS
    for name in RULES:
        rules, fresh = (Rules(composition(), seen) for _ in range(2))
        before = rules.rule(name)(one, show)
        after = rules.rule(name)(other, show)
        assert after.tolist() == fresh.rule(name)(other, show).tolist() != before.tolist()


def test_each_rule_uses_what_comes_of_its_own_proposal() -> None:
    seen, (choose, show, _), given = mostly_right(), THIRDS, composition()
    rules = Rules(given, seen)
    for name, proposed in proposals(given, seen.take(choose)).items():
        held = given.only(proposed, seen.take(choose), [seen.take(show)])
        assert held is not None
        assert rules.rule(name)(choose, show).tolist() == held.thresholds.tolist()
    assert used(rules.among((1,))(choose, show)) == {1}


def test_alpha_weighs_hit_rates_against_gains() -> None:
    seen, (choose, show, _) = mostly_right(), THIRDS
    given = composition(memory=10)  # room for one
    problem, rules = given.problem(seen.take(choose)), Rules(given, seen)
    chosen = {alpha: {variant.stage for variant in relaxed(problem, alpha)} for alpha in (0.0, 1.0)}
    assert chosen[0.0] != chosen[1.0]
    assert [used(rules.alpha(alpha)(choose, show)) for alpha in chosen] == list(chosen.values())


def test_rules_and_search_keep_the_promise_on_other_rows() -> None:
    choose, show, other = THIRDS
    seen = half_wrong(show, lookups=3)
    rules = Rules(composition(), seen)
    ways = (rules.search(), rules.among((0, 1)), rules.rule(RULES[0]))
    for thresholds in ways:
        assert send(thresholds(choose, show), seen.take(show), composition().costs).wrong.mean() <= 0.1
    for thresholds in (Rules(composition(), seen).search(), Rules(composition(), seen).among((0, 1))):
        assert (send(thresholds(choose, other), seen.take(other), composition().costs).left_at < 3).mean() > 0.9
