"""What held-out samples say of answers that nobody has seen: bounds that hold with confidence. Numbers only.

Two questions, two bounds. Which share of all answers there could be is wrong: Clopper and Pearson (1934). How many of
the next so many will be: they differ from that share by chance, as the samples did. Given how many of both are wrong,
which of them lie among the samples is a draw without replacement, so nothing needs to be known of the share (Thatcher
1964; the conditional approach of Krishnamoorthy and Peng 2011). With ever more answers the second becomes the first.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaln

MOST_ANSWERS = 10**8  # beyond, rounding would show; and no bound differs from the one on the share


def upper_bound(wrong: int, samples: int, confidence: float) -> float:
    """Return the one-sided Clopper-Pearson bound: with confidence, the unknown share is at most this."""
    if wrong >= samples:
        return 1.0
    return float(betaincinv(wrong + 1, samples - wrong, confidence))


def most_wrong(wrong: int, samples: int, answers: int, *, confidence: float) -> int:
    """Return how many of the next `answers` are wrong at most, with confidence.

    Samples and answers are to be exchangeable, such as independent draws of the same kind.
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
    """Return the least fidelity of the next `answers` with confidence; None: of all there could be."""
    if answers is None:
        return 1.0 - upper_bound(wrong, samples, confidence)
    # a division at the end: a fidelity written as 0.93 is then equal to 1860 of 2000
    return (answers - most_wrong(wrong, samples, answers, confidence=confidence)) / answers


def samples_needed(fidelity: float, *, confidence: float, answers: int | None) -> int:
    """Return how many samples without one wrong answer it takes to show `fidelity`; less can never show it."""
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
    """Return how likely at most `wrong` of `wrong + more` wrong ones lie among the samples, the others behind them."""
    both = wrong + more
    among = np.arange(max(0, both - answers), wrong + 1, dtype=np.float64)
    logs = _log_choose(samples, among) + _log_choose(answers, both - among) - _log_choose(samples + answers, both)
    return float(np.exp(logs).sum())


def _log_choose(every: float, some: NDArray[np.float64] | float) -> NDArray[np.float64]:
    found: NDArray[np.float64] = gammaln(every + 1) - gammaln(np.add(some, 1)) - gammaln(np.subtract(every, some) + 1)
    return found
