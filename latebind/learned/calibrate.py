"""Calibration: finds the fastest thresholds for which held-out samples show the promised fidelity. Numbers only.

Learn then Test (Angelopoulos et al. 2021, section 3.2, fixed sequence testing): candidates are tested from the
strictest to the laxest on samples that did not choose them, each by an exact test, until the first one fails. If the
promise is about the share of wrong answers among all that there could be, the chance that any accepted candidate is
worse than the target is at most 1 - confidence.

The same bound holds for the next N answers, of which at most m may be wrong, although it is not known beforehand which
candidates will be unlucky in those N. Suppose a candidate passes if at most k of n samples are wrong. For each share p,
the first candidate worse than p is fixed. So a candidate worse than p is accepted at most as often as k or fewer of n
uniform numbers are below p. More than m of the N answers are wrong as often as the accepted candidate's share is above
the (m + 1)-th smallest of N other uniform numbers. Put that number for p: the chance is then that it is smaller than
the (k + 1)-th smallest of n, which is what the test of a single candidate bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latebind.learned.compose import Costs, Floats, Seen, send
from latebind.learned.promise import Promise


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Thresholds and what held-out samples show about them.

    `fidelity` is the share of answers equal to the base model's and `lower` its lower bound, both in the worst world.
    `seconds` is the mean latency.
    """

    thresholds: Floats
    fidelity: float
    lower: float
    seconds: float


def calibrate(
    candidates: Sequence[Floats], worlds: Sequence[Seen], costs: Costs, *, promise: Promise
) -> Calibrated | None:
    """Return the fastest of the candidates that keep the promise in every world; None if not even the first does.

    `candidates` are ordered from the strictest to the laxest and were chosen on other samples than `worlds`.
    """
    accepted = []
    for thresholds in candidates:
        found = evaluate(thresholds, worlds, costs, promise=promise)
        if found.lower < promise.fidelity:
            break
        accepted.append(found)
    return min(accepted, key=lambda found: found.seconds, default=None)


def evaluate(thresholds: Floats, worlds: Sequence[Seen], costs: Costs, *, promise: Promise) -> Calibrated:
    """Return what these samples show about the thresholds.

    The bound is the least over all worlds. As every world has to pass, it needs no correction for their number.
    """
    results = [send(thresholds, seen, costs) for seen in worlds]
    wrong = [(int(result.wrong.sum()), len(result.wrong)) for result in results]
    fidelity = min(1.0 - bad / n for bad, n in wrong)
    lower = min(promise.lower_bound(bad, n) for bad, n in wrong)
    seconds = float(np.concatenate([result.seconds for result in results]).mean())
    return Calibrated(thresholds, fidelity, lower, seconds)
