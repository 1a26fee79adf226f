"""Confidence bounds on future wrong answers, from the wrong answers among held-out samples. Numbers only.

There are two bounds, for two questions:
1. Which share of all answers that there could be is wrong? Clopper and Pearson (1934).
2. How many of the next N answers will be wrong? Their share differs from the true one by chance, as the samples' does.
   Given how many of samples and answers together are wrong, which of them are samples is a draw without replacement,
   so the true share need not be known (Thatcher 1964; the conditional approach of Krishnamoorthy and Peng 2011).

As N grows, the second bound approaches the first.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaln

MOST_ANSWERS = 10**8  # beyond this, rounding errors would show, and the bound no longer differs from the first


def upper_bound(wrong: int, samples: int, confidence: float) -> float:
    """Return the one-sided Clopper-Pearson upper bound on the unknown share of wrong answers."""
    if wrong >= samples:
        return 1.0
    return float(betaincinv(wrong + 1, samples - wrong, confidence))


@lru_cache(maxsize=4096)  # a lesson asks for some hundred thresholds how many may be wrong, most of them alike
def most_wrong(wrong: int, samples: int, answers: int, *, confidence: float) -> int:
    """Return the upper bound on how many of the next `answers` are wrong.

    Samples and answers must be exchangeable, such as independent draws from one distribution.
    """
    least, most = 0, answers
    while least < most:
        middle = (least + most + 1) // 2
        if _chance(wrong, samples, middle, answers) > 1.0 - confidence:
            least = middle
        else:
            most = middle - 1
    return least


def fidelity_bound(wrong: int, samples: int, *, confidence: float, answers: int | None) -> float:
    """Return the lower bound on the fidelity of the next `answers`, or, with None, of all that there could be."""
    if answers is None:
        return 1.0 - upper_bound(wrong, samples, confidence)
    # divided last, so that a target of 0.93 equals 1860 of 2000 exactly
    return (answers - most_wrong(wrong, samples, answers, confidence=confidence)) / answers


def samples_needed(fidelity: float, *, confidence: float, answers: int | None) -> int:
    """Return how many samples, none of them wrong, it takes to show `fidelity`; fewer can never show it.

    Raises `ValueError` for a fidelity of 1.
    """
    if fidelity >= 1.0:
        raise ValueError("no number of samples shows a fidelity of 1")
    if answers is None:
        return int(np.ceil(np.log(1.0 - confidence) / np.log(fidelity)))
    few, enough = 0, 1
    while fidelity_bound(0, enough, confidence=confidence, answers=answers) < fidelity:
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        if fidelity_bound(0, middle, confidence=confidence, answers=answers) < fidelity:
            few = middle
        else:
            enough = middle
    return enough


def _chance(wrong: int, samples: int, more: int, answers: int) -> float:
    """Return the probability that at most `wrong` of all `wrong + more` wrong ones are samples, the others answers."""
    both = wrong + more
    among = np.arange(max(0, both - answers), wrong + 1, dtype=np.float64)
    logs = _log_choose(samples, among) + _log_choose(answers, both - among) - _log_choose(samples + answers, both)
    return float(np.exp(logs).sum())


def _log_choose(n: float, k: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return the logarithm of n over k."""
    found: NDArray[np.float64] = gammaln(n + 1) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1)
    return found
