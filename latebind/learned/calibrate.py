"""How lax the thresholds may be: a bound on unseen disagreement that holds with confidence. Numbers only.

Learn then Test (Angelopoulos et al. 2021, section 3.2, fixed sequence testing): candidates are tried from the strictest
to the laxest on samples that did not choose them, each by an exact binomial test, until the first that fails. The
chance that any accepted one is worse than the target is at most 1 - confidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from latebind.learned.compose import Costs, Floats, Seen, send


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Thresholds and what held-out samples say of them.

    `fidelity` is the share of equal answers and `lower` its bound, both in the worst world; `seconds` the mean latency.
    """

    thresholds: Floats
    fidelity: float
    lower: float
    seconds: float


def upper_bound(wrong: int, samples: int, confidence: float) -> float:
    """Return the one-sided Clopper-Pearson bound (1934): with confidence, the unknown share is at most this."""
    if wrong >= samples:
        return 1.0
    return float(betaincinv(wrong + 1, samples - wrong, confidence))


def samples_needed(fidelity: float, confidence: float) -> int:
    """Return how many samples without one wrong answer it takes to show `fidelity`; less can never show it."""
    if fidelity >= 1.0:
        raise ValueError("no number of samples shows a fidelity of 1")
    return int(np.ceil(np.log(1.0 - confidence) / np.log(fidelity)))


def calibrate(
    candidates: Sequence[Floats], worlds: Sequence[Seen], costs: Costs, *, fidelity: float, confidence: float
) -> Calibrated | None:
    """Return the fastest of the candidates whose fidelity is at least `fidelity` with confidence in every world.

    `candidates` go from the strictest to the laxest and were chosen on other samples than `worlds`. None if not even
    the first passes.
    """
    accepted = []
    for thresholds in candidates:
        found = judge(thresholds, worlds, costs, confidence=confidence)
        if found.lower < fidelity:
            break
        accepted.append(found)
    return min(accepted, key=lambda found: found.seconds, default=None)


def judge(thresholds: Floats, worlds: Sequence[Seen], costs: Costs, *, confidence: float) -> Calibrated:
    """Return what these samples say of the thresholds; every world is to pass, so no correction for their number."""
    results = [send(thresholds, seen, costs) for seen in worlds]
    wrong = [(int(result.wrong.sum()), len(result.wrong)) for result in results]
    fidelity = min(1.0 - bad / n for bad, n in wrong)
    lower = min(1.0 - upper_bound(bad, n, confidence) for bad, n in wrong)
    seconds = float(np.concatenate([result.seconds for result in results]).mean())
    return Calibrated(thresholds, fidelity, lower, seconds)
