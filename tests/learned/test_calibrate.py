"""Calibration: the bound holds on unseen samples, and nothing is accepted that the samples cannot show."""

import numpy as np
import pytest

from latebind.learned.compose import Composer, Costs, Floats, Seen, calibrate, evaluate, send, threshold_path
from latebind.learned.promise import Promise, fidelity_bound

COSTS = Costs((1.0, 1.0, 1.0), (0.05, 0.05))
NEXT = 600  # answers, and samples


def world(rng: np.random.Generator, samples: int, *, noise: float = 0.6) -> Seen:
    hardness = rng.random(samples)
    right = rng.random((2, samples)) > hardness**2 * np.array([[1.0], [0.6]])
    scores = 1.0 - hardness + rng.normal(0.0, noise, (2, samples)) * 0.3
    return Seen(scores, right)


def test_fidelity_on_unseen_samples_keeps_its_promise_over_repeated_splits() -> None:
    rng = np.random.default_rng(0)
    unseen = world(rng, 40_000)
    broken, accepted = 0, 0
    for _ in range(60):
        candidates = threshold_path(Composer(world(rng, 300), COSTS), fidelity=0.9, steps=24)
        found = calibrate(candidates, [world(rng, 700)], COSTS, promise=Promise(0.9, 0.9, answers=None))
        if found is not None:
            accepted += 1
            broken += 1.0 - send(found.thresholds, unseen, COSTS).wrong.mean() < 0.9
    assert accepted >= 50
    assert broken <= 12  # at most a tenth of 60 is promised; 12 or more is a chance of 1 in 50 at that rate


def test_accepted_thresholds_never_exceed_the_allowed_disagreement() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        verify = world(rng, 500)
        candidates = threshold_path(Composer(world(rng, 300), COSTS), fidelity=0.92, steps=24)
        found = calibrate(candidates, [verify], COSTS, promise=Promise(0.92, 0.95, answers=None))
        if found is not None:
            wrong = int(send(found.thresholds, verify, COSTS).wrong.sum())
            assert fidelity_bound(wrong, 500, confidence=0.95, answers=None) >= 0.92
            assert found.fidelity == pytest.approx(1 - wrong / 500)
            assert found.lower >= 0.92


def test_every_world_must_pass_by_itself() -> None:
    rng = np.random.default_rng(1)
    candidates = threshold_path(Composer(world(rng, 300), COSTS), fidelity=0.9)
    easy, hard = world(rng, 600, noise=0.1), world(rng, 600, noise=2.0)
    both = calibrate(candidates, [easy, hard], COSTS, promise=Promise(0.9, 0.9, answers=None))
    alone = calibrate(candidates, [easy], COSTS, promise=Promise(0.9, 0.9, answers=None))
    assert both is not None
    assert alone is not None
    assert both.seconds >= alone.seconds
    assert evaluate(both.thresholds, [hard], COSTS, promise=Promise(0.9, 0.9, answers=None)).lower >= 0.9


def test_the_first_candidate_that_fails_ends_the_trial() -> None:
    seen = Seen(np.array([np.linspace(1, 0, 100)] * 2), np.array([[i % 2 == 0 for i in range(100)]] * 2))
    lax, strict = np.array([0.0, np.inf]), np.array([np.inf, np.inf])
    assert calibrate([lax, strict], [seen], COSTS, promise=Promise(0.9, 0.9, answers=None)) is None
    found = calibrate([strict, lax], [seen], COSTS, promise=Promise(0.9, 0.9, answers=None))
    assert found is not None
    assert np.isinf(found.thresholds).all()


def test_too_few_samples_show_nothing() -> None:
    few = world(np.random.default_rng(0), 20)
    assert calibrate([np.array([np.inf, np.inf])], [few], COSTS, promise=Promise(0.97, 0.95, answers=None)) is None


def test_the_next_answers_keep_the_promise_and_not_the_one_about_all() -> None:
    candidates = [np.array([np.inf, level]) for level in np.linspace(0.45, 0.2, 40)]
    broken = dict.fromkeys((NEXT, None), 0)
    for seed in range(250):
        rng = np.random.default_rng(seed)
        verify, to_come = world(rng, NEXT), world(rng, NEXT)
        for answers in broken:
            found = calibrate(candidates, [verify], COSTS, promise=Promise(0.9, 0.95, answers=answers))
            assert found is not None
            broken[answers] += int(send(found.thresholds, to_come, COSTS).wrong.sum()) > NEXT // 10
    assert broken[NEXT] <= 12 < broken[None]  # of 250


def test_the_candidate_that_is_taken_keeps_the_promise_where_each_has_luck_of_its_own() -> None:
    """Nothing is nested here: which samples are wrong is drawn anew for each candidate."""
    rng, trials = np.random.default_rng(0), 20_000
    shares = np.sort(np.concatenate([np.linspace(0.05, 0.1, 12), np.linspace(0.1, 0.13, 12)]))
    promise = Promise(0.9, 0.95, answers=NEXT)
    most = max(wrong for wrong in range(NEXT // 5) if promise.lower_bound(wrong, NEXT) >= 0.9)
    wrong = rng.binomial(NEXT, shares, (trials, len(shares)))
    failed = np.concatenate([wrong > most, np.ones((trials, 1), dtype=np.bool_)], axis=1).argmax(axis=1)
    taken = shares[np.maximum(failed - 1, 0)]
    missed = (failed > 0) & (rng.binomial(NEXT, taken) > round(0.1 * NEXT))
    assert missed.mean() <= 0.05


def test_a_promise_that_is_to_last_is_shown_for_all_answers_too() -> None:
    rows = Seen(np.array([np.linspace(1, 0, 1_000)] * 2), np.array([[i % 50 != 0 for i in range(1_000)]] * 2))
    thresholds: Floats = np.array([0.0, np.inf])

    def lower(promise: Promise) -> float:
        return evaluate(thresholds, [rows], COSTS, promise=promise).lower

    soon, lasting = Promise(0.9, 0.95), Promise(0.9, 0.95, lasting=0.99)
    assert lower(lasting) == fidelity_bound(20, 1_000, confidence=0.99, answers=None) < lower(soon)
    assert lower(Promise(0.9, 0.95, answers=20, lasting=0.99)) == lower(Promise(0.9, 0.95, answers=20)) < lower(soon)
    assert lower(Promise(0.9, 0.95, answers=None, lasting=0.99)) == lower(lasting)
