"""Calibration: the bound holds on unseen samples, and nothing is accepted that the samples cannot show."""

import numpy as np
import pytest

from latebind.learned.calibrate import calibrate, judge, samples_needed, upper_bound
from latebind.learned.compose import Composer, Costs, Seen, path, send

COSTS = Costs((1.0, 1.0, 1.0), (0.05, 0.05))


def world(rng: np.random.Generator, samples: int, *, noise: float = 0.6) -> Seen:
    hardness = rng.random(samples)
    right = rng.random((2, samples)) > hardness**2 * np.array([[1.0], [0.6]])
    scores = 1.0 - hardness + rng.normal(0.0, noise, (2, samples)) * 0.3
    return Seen(scores, right)


def test_the_bound_is_clopper_and_pearsons() -> None:
    assert upper_bound(0, 100, 0.95) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert upper_bound(3, 100, 0.95) == pytest.approx(0.0757, abs=1e-4)
    assert upper_bound(7, 7, 0.95) == 1.0


def test_the_samples_needed_are_enough_and_one_less_is_not() -> None:
    for fidelity in (0.9, 0.97, 0.99):
        n = samples_needed(fidelity, 0.95)
        assert 1 - upper_bound(0, n, 0.95) >= fidelity
        assert 1 - upper_bound(0, n - 1, 0.95) < fidelity


def test_fidelity_on_unseen_samples_keeps_its_promise_over_repeated_splits() -> None:
    rng = np.random.default_rng(0)
    unseen = world(rng, 40_000)
    broken, accepted = 0, 0
    for _ in range(60):
        candidates = path(Composer(world(rng, 300), COSTS), fidelity=0.9, steps=24)
        found = calibrate(candidates, [world(rng, 700)], COSTS, fidelity=0.9, confidence=0.9)
        if found is not None:
            accepted += 1
            broken += 1.0 - send(found.thresholds, unseen, COSTS).wrong.mean() < 0.9
    assert accepted >= 50
    assert broken <= 12  # at most a tenth of 60 is promised; 12 or more is a chance of 1 in 50 at that rate


def test_accepted_thresholds_never_exceed_the_allowed_disagreement() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        verify = world(rng, 500)
        candidates = path(Composer(world(rng, 300), COSTS), fidelity=0.92, steps=24)
        found = calibrate(candidates, [verify], COSTS, fidelity=0.92, confidence=0.95)
        if found is not None:
            wrong = int(send(found.thresholds, verify, COSTS).wrong.sum())
            assert upper_bound(wrong, 500, 0.95) <= 0.08
            assert found.fidelity == pytest.approx(1 - wrong / 500)
            assert found.lower >= 0.92


def test_every_world_must_pass_by_itself() -> None:
    rng = np.random.default_rng(1)
    candidates = path(Composer(world(rng, 300), COSTS), fidelity=0.9)
    easy, hard = world(rng, 600, noise=0.1), world(rng, 600, noise=2.0)
    both = calibrate(candidates, [easy, hard], COSTS, fidelity=0.9, confidence=0.9)
    alone = calibrate(candidates, [easy], COSTS, fidelity=0.9, confidence=0.9)
    assert both is not None
    assert alone is not None
    assert both.seconds >= alone.seconds
    assert judge(both.thresholds, [hard], COSTS, confidence=0.9).lower >= 0.9


def test_the_first_candidate_that_fails_ends_the_trial() -> None:
    seen = Seen(np.array([np.linspace(1, 0, 100)] * 2), np.array([[i % 2 == 0 for i in range(100)]] * 2))
    lax, strict = np.array([0.0, np.inf]), np.array([np.inf, np.inf])
    assert calibrate([lax, strict], [seen], COSTS, fidelity=0.9, confidence=0.9) is None
    found = calibrate([strict, lax], [seen], COSTS, fidelity=0.9, confidence=0.9)
    assert found is not None
    assert np.isinf(found.thresholds).all()


def test_too_few_samples_show_nothing() -> None:
    few = world(np.random.default_rng(0), 20)
    assert calibrate([np.array([np.inf, np.inf])], [few], COSTS, fidelity=0.97, confidence=0.95) is None
