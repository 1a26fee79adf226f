"""Retraining heads: what it gains when classes are not even, and when it refuses."""

import numpy as np
import pytest
import torch

from latebind.adaptation.retrain import (
    HAS_A_SAY,
    Prior,
    by_class,
    material,
    retrain,
    rows_like,
)
from latebind.adaptation.traffic import Recent, Sample, Window
from latebind.learned.compose import Costs, Seen
from latebind.learned.head import Head, HeadFunction
from latebind.learned.networks import Selector
from latebind.learned.promise import Promise
from latebind.learned.stored import Rows

CLASSES, WIDTH = 5, 8
COSTS = Costs((0.0, 1.0), (0.1,))
PROMISE = Promise(0.95, 0.95)


def rows(count: int, shares: list[float], seed: int) -> Rows:
    """Features that tell the class, but not always: neighbors overlap."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=generator)
    places = torch.nn.functional.one_hot(classes, WIDTH).float()
    features = 2.2 * places + torch.randn(count, WIDTH, generator=generator)
    return Rows({"a": features.bfloat16()}, 8.0 * torch.nn.functional.one_hot(classes, CLASSES).bfloat16(), classes)


def even(count: int = 1_500, seed: int = 0) -> Rows:
    return rows(count, [1.0] * CLASSES, seed)


def built_head() -> Head:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = torch.nn.Linear(WIDTH, CLASSES)
        layer.weight.data = 2.2 * torch.eye(CLASSES, WIDTH)
        layer.bias.data.zero_()
        return Head.of(layer, Selector(CLASSES))


def window_of(found: Rows, *, weight: float = 1.0) -> Recent:
    window = Window(10_000, 1e9)
    for place in range(len(found.classes)):
        features, answers = {"a": found.features["a"][place]}, found.answers[place]
        window.add(Sample(float(place), features, answers, int(found.classes[place]), torch.zeros(2), weight))
    recent = window.recent()
    assert recent is not None
    return recent


def test_where_one_class_dominates_far_more_leave_early() -> None:
    heads = {"a": built_head()}
    plain = retrain(heads, material(even(), None), dict.fromkeys(range(CLASSES), 0.2), COSTS, promise=PROMISE, seed=1)
    mix = {0: 0.8, 1: 0.1, 2: 0.1}
    skewed = retrain(heads, material(even(), None), mix, COSTS, promise=PROMISE, seed=1)
    assert plain is not None
    assert skewed is not None
    assert skewed[1].lower >= 0.95
    assert skewed[1].seconds[0] < 0.7 * min(plain[1].seconds)
    assert skewed[1].wrong[3] > skewed[1].wrong[0]  # what does not come is not cared for


def test_with_their_prior_heads_are_shifted_and_learn_nothing() -> None:
    head, kept, mix = built_head(), even(6_000), {0: 0.9, 1: 0.05, 2: 0.05}
    prior = Prior.of({"a": head}, kept)
    made = retrain({"a": head}, material(kept, None), mix, COSTS, promise=PROMISE, seed=1, prior=prior)
    taught = retrain({"a": head}, material(kept, None), mix, COSTS, promise=PROMISE, seed=1)
    assert made is not None
    assert taught is not None
    np.testing.assert_array_equal(made[0]["a"].answer_bias, prior.shifted({"a": head}, mix)["a"].answer_bias)
    np.testing.assert_array_equal(made[0]["a"].answer_weight, head.answer_weight)
    assert (taught[0]["a"].answer_weight != head.answer_weight).any()


def test_a_lesson_keeps_to_lookups_within_the_tail() -> None:
    mix = dict.fromkeys(range(CLASSES), 0.2)
    for tail, expected in ((1.0, False), (2.0, True)):
        promise = Promise(0.95, 0.95, tail=tail)
        made = retrain({"a": built_head()}, material(even(), None), mix, COSTS, promise=promise, seed=1)
        assert (made is not None) is expected


LEVELS = (0.99, 0.95, 0.9, 0.85)


def test_a_version_has_thresholds_for_each_level_that_hold_on_new_rows() -> None:
    mix = {0: 0.6, 1: 0.2, 2: 0.2}
    made = retrain({"a": built_head()}, material(even(3_000), None), mix, COSTS, promise=PROMISE, seed=1, levels=LEVELS)
    assert made is not None
    heads, version = made
    each = {level.fidelity: level for level in version.levels}
    assert list(each) == sorted(each, reverse=True)
    assert {0.95, 0.9, 0.85} <= set(each) <= set(LEVELS)
    assert each[0.95].thresholds == version.thresholds
    fresh = rows(4_000, [0.6, 0.2, 0.2, 0.0, 0.0], seed=9)
    said, scores = HeadFunction(heads["a"])(fresh.features["a"].float().numpy())
    shares = []
    for fidelity, level in each.items():
        leave = scores >= level.thresholds["a"]
        assert level.lower >= fidelity
        assert 1.0 - (leave & (said.argmax(axis=1) != fresh.classes.numpy())).mean() >= fidelity
        assert len(level.wrong) == CLASSES
        shares.append(leave.mean())
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_levels_hold_together_so_each_shows_more_than_one_alone_would() -> None:
    mix = {0: 0.6, 1: 0.2, 2: 0.2}
    promise = Promise(0.95, 0.95, lasting=0.99)
    given = material(even(3_000), None)
    alone, among = (
        retrain({"a": built_head()}, given, mix, COSTS, promise=promise, seed=1, levels=levels)
        for levels in ((), LEVELS)
    )
    assert alone is not None
    assert among is not None
    assert alone[1].levels == ()
    assert among[1].thresholds["a"] >= alone[1].thresholds["a"]
    wrong = round((1.0 - among[1].fidelity) * among[1].rows)
    each = Promise(0.95, 1.0 - 0.05 / 4, lasting=1.0 - 0.01 / 4)
    assert promise.of_each(4).lasting == pytest.approx(each.lasting)
    assert among[1].lower == pytest.approx(each.lower_bound(wrong, among[1].rows))


def test_no_level_is_shown_by_too_few_rows_and_the_others_are() -> None:
    made = retrain(
        {"a": built_head()},
        material(even(400), None),
        {0: 0.6, 1: 0.4},
        COSTS,
        promise=Promise(0.85, 0.9),
        seed=1,
        levels=(0.999, 0.85),
    )
    assert made is not None
    assert [level.fidelity for level in made[1].levels] == [0.85]


def test_the_target_holds_on_new_rows_of_the_same_mix() -> None:
    mix = {0: 0.6, 1: 0.2, 2: 0.2}
    made = retrain({"a": built_head()}, material(even(3_000), None), mix, COSTS, promise=PROMISE, seed=1)
    assert made is not None
    fresh = rows(4_000, [0.6, 0.2, 0.2, 0.0, 0.0], seed=9)
    said, scores = HeadFunction(made[0]["a"])(fresh.features["a"].float().numpy())
    wrong = (scores >= made[1].thresholds["a"]) & (said.argmax(axis=1) != fresh.classes.numpy())
    assert 1.0 - wrong.mean() >= 0.95


def test_the_window_teaches_what_build_has_not_seen() -> None:
    """In the traffic, features of two classes have changed places."""
    traffic = rows(2_000, [0.5, 0.5, 0.0, 0.0, 0.0], seed=3)
    swapped = Rows({"a": traffic.features["a"][:, [1, 0, *range(2, WIDTH)]]}, traffic.answers, traffic.classes)
    mix = {0: 0.5, 1: 0.5}
    given = material(even(), None, window_of(swapped), window_of(swapped), trusted=False)
    made = retrain({"a": built_head()}, given, mix, COSTS, promise=PROMISE, seed=1)
    assert made is not None
    said, _ = HeadFunction(made[0]["a"])(swapped.features["a"].float().numpy())
    assert (said.argmax(axis=1) == swapped.classes.numpy()).mean() > 0.8


def test_rows_show_or_teach_as_they_were_drawn() -> None:
    taught, shown = window_of(even(300, seed=3)), window_of(even(400, seed=4))
    given = material(even(200), None, taught, shown)
    assert len(given.learn.classes) == 100 + 300
    assert len(given.show.classes) == 100 + 400
    assert torch.equal(given.show.features["a"][0], shown.rows.features["a"][-1])  # the newest first
    learned = {tuple(row) for row in given.learn.features["a"].tolist()}
    assert not learned & {tuple(row) for row in given.show.features["a"].tolist()}


@pytest.mark.parametrize("mix", [{0: 0.9, 4: 0.1}, {0: 1.0}])
def test_too_few_rows_show_nothing(mix: dict[int, float]) -> None:
    assert retrain({"a": built_head()}, material(even(60), None), mix, COSTS, promise=PROMISE, seed=1) is None


def test_rows_missing_of_a_rare_class_count_as_wrong() -> None:
    classes = torch.tensor([0] * 96 + [1])
    seen = Seen(np.zeros((1, 97)), np.ones((1, 97), dtype=np.bool_))
    shown = rows_like(seen, {0: 0.96, 1: 0.04}, classes)
    assert shown.right.shape == (1, 100)
    assert int((~shown.right).sum()) == 3
    assert np.isinf(shown.scores[~shown.right]).all()  # whatever the threshold, they leave, wrongly


def test_of_many_classes_as_many_rows_are_shown_as_nearly_all_have() -> None:
    """As 150 intents come in 2,000 requests, and 3,000 texts were kept."""
    generator = torch.Generator().manual_seed(0)
    kept = torch.randint(150, (3_000,), generator=generator)
    came = torch.bincount(torch.randint(150, (2_000,), generator=generator)) / 2_000
    mix = {answer: share for answer, share in enumerate(came.tolist()) if share}
    shown = rows_like(Seen(np.zeros((1, 3_000)), np.ones((1, 3_000), dtype=np.bool_)), mix, kept)
    assert (~shown.right[0]).mean() < 0.005, "rows that are missing count as wrong"
    assert shown.right.shape[1] > 800


def test_of_classes_that_come_now_only_rows_of_now_tell_what_a_version_does() -> None:
    """Class 0 came now, always right; before it was always wrong. Class 1 came before only, half of it wrong."""
    classes = torch.tensor([0] * 40 + [0] * 40 + [1] * 40)
    right = np.array([[True] * 40 + [False] * 40 + [True, False] * 20])
    seen = Seen(np.ones((1, 120)), right)
    now, before = (by_class(np.array([0.0]), seen, classes, COSTS, count=3, current=current)[0] for current in (40, 0))
    assert now[0] < 0.03
    assert before[0] == pytest.approx(0.5, abs=0.01)
    assert now[1] == before[1] == pytest.approx(0.5, abs=0.02)
    assert now[2] == before[2] == 0.5  # never seen


def shuffled(found: Rows) -> Rows:
    """Features that say nothing of the answers."""
    order = torch.randperm(len(found.classes), generator=torch.Generator().manual_seed(0))
    return Rows({"a": found.features["a"][order]}, found.answers, found.classes)


def test_few_samples_of_now_can_speak_against_a_version() -> None:
    mix = dict.fromkeys(range(CLASSES), 0.2)
    given = material(even(), even(seed=5))
    agreed = retrain({"a": built_head()}, given, mix, COSTS, promise=PROMISE, seed=1)
    against = material(even(), even(seed=5), None, window_of(shuffled(even(200, seed=4))))
    assert agreed is not None
    assert 60 <= against.current < 800
    assert retrain({"a": built_head()}, against, mix, COSTS, promise=PROMISE, seed=1) is None


def test_rows_in_doubt_show_nothing_until_enough_rows_of_now_agree() -> None:
    heads, mix, window = {"a": built_head()}, dict.fromkeys(range(CLASSES), 0.2), window_of(even(700, 3))
    shown = []
    for current, doubt in ((HAS_A_SAY - 1, True), (HAS_A_SAY, True), (HAS_A_SAY - 1, False)):
        given = material(even(), None, None, window, trusted=False, since=700 - current, doubt=doubt)
        made = retrain(heads, given, mix, COSTS, promise=Promise(0.95, 0.99), seed=1)
        shown.append(made is not None)
    assert shown == [False, True, True]
