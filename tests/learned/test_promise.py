"""Bounds from held-out samples: exact beside counting, and kept by next answers as often as they say."""

from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom

from latebind.domain.errors import ConfigError
from latebind.learned.promise import Fidelity, Promise, bounded, fidelity_bound, most_wrong, samples_needed, upper_bound


def missed(samples: int, answers: int, *, target: float, asked: int | None) -> float:
    """Return how often next answers miss the target behind a threshold as lax as samples let it be.

    With a threshold that falls until one wrong sample more would be too much, the share of wrong answers is that place
    in the order of so many uniform numbers; the answers then are throws of that coin.
    """
    shown = [fidelity_bound(k, samples, confidence=0.95, answers=asked) >= target for k in range(samples // 4)]
    most = int(np.flatnonzero(shown)[-1])
    shares = beta.ppf((np.arange(4_000) + 0.5) / 4_000, most + 1, samples - most)
    return float(binom.sf(round(answers * (1 - target)), answers, shares).mean())


def test_the_bound_on_the_share_is_clopper_and_pearsons() -> None:
    assert upper_bound(0, 100, 0.95) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert upper_bound(3, 100, 0.95) == pytest.approx(0.0757, abs=1e-4)
    assert upper_bound(7, 7, 0.95) == 1.0


def test_a_share_that_is_told_has_bounds_on_both_sides() -> None:
    assert bounded(()) == (None, 0.0, 1.0)
    share, lower, upper = bounded([True] * 10)
    assert (share, upper) == (1.0, 1.0)
    assert lower == pytest.approx(0.025 ** (1 / 10))
    share, lower, upper = bounded([True, False] * 50)
    assert share == 0.5
    assert lower == pytest.approx(0.3983, abs=1e-4)
    assert upper == pytest.approx(0.6017, abs=1e-4)


@pytest.mark.parametrize(("samples", "answers"), [(1, 1), (7, 3), (9, 20), (30, 12)])
def test_the_bound_on_next_answers_is_what_counting_all_draws_gives(samples: int, answers: int) -> None:
    for wrong in range(samples + 1):
        likely = []
        for more in range(answers + 1):
            both = wrong + more
            draws = sum(comb(both, k) * comb(samples + answers - both, samples - k) for k in range(wrong + 1))
            if Fraction(draws, comb(samples + answers, samples)) > Fraction(5, 100):
                likely.append(more)
        assert most_wrong(wrong, samples, answers, confidence=0.95) == max(likely)


@pytest.mark.parametrize(("samples", "answers"), [(600, 2_000), (1_250, 500)])
@pytest.mark.parametrize("target", [0.9, 0.97])
def test_next_answers_miss_the_target_in_one_of_twenty(samples: int, answers: int, target: float) -> None:
    assert 0.03 < missed(samples, answers, target=target, asked=answers) <= 0.05


@pytest.mark.parametrize("answers", [None, 33, 2_000])
def test_the_samples_needed_are_enough_and_one_less_is_not(answers: int | None) -> None:
    for fidelity in (0.9, 0.97, 0.99):
        n = samples_needed(fidelity, confidence=0.95, answers=answers)
        assert fidelity_bound(0, n, confidence=0.95, answers=answers) >= fidelity
        assert fidelity_bound(0, n - 1, confidence=0.95, answers=answers) < fidelity


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"fidelity": 0.0}, "fidelity"),
        ({"fidelity": 1.01}, "fidelity"),
        ({"fidelity": float("nan")}, "fidelity"),
        ({"answers": 0}, "answers"),
        ({"answers": 10**9}, "answers"),
        ({"tail": 0.9}, r"0\.9 times.*give 1 or more"),
    ],
)
def test_a_promise_without_sense_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Promise(**given)


@pytest.mark.parametrize(
    ("text", "found"),
    [("0.97", Fidelity(0.97)), (0.9, Fidelity(0.9)), ("1", Fidelity(1.0)), ("cosine:0.99@0.97", Fidelity(0.97, 0.99))],
)
def test_a_fidelity_is_a_share_of_answers_or_of_vectors_within_a_cosine(text: str | float, found: Fidelity) -> None:
    assert Fidelity.read(text) == found
    assert Fidelity.read(str(found)) == found


@pytest.mark.parametrize("text", ["", "much", "cosine:0.99", "cosine:0.99@", "0.99@0.97", "dot:0.9@0.9", "top3@0.97"])
def test_what_is_no_fidelity_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match=r"such as 0\.97, or of vectors within a cosine, such as cosine:0\.99@0\.97"):
        Fidelity.read(text)


@pytest.mark.parametrize("text", ["nan", "0", "1.01", "cosine:0.99@1.5", "cosine:0.99@nan"])
def test_shares_are_above_0_and_at_most_1(text: str) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        Fidelity.read(text)


@pytest.mark.parametrize("cosine", ["1", "0", "-0.5", "nan"])
def test_cosines_are_between_0_and_1(cosine: str) -> None:
    with pytest.raises(ConfigError, match="give one between 0 and 1"):
        Fidelity.read(f"cosine:{cosine}@0.97")
