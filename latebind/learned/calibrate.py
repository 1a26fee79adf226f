"""How lax the thresholds may be: the laxest of which held-out samples still show the promise. Numbers only.

Learn then Test (Angelopoulos et al. 2021, section 3.2, fixed sequence testing): candidates are tried from the strictest
to the laxest on samples that did not choose them, each by an exact test, until the first that fails. For the share
behind all answers, the chance that any accepted one is worse than the target is at most 1 - confidence.

For the next N answers, of which m may be wrong, the same holds, though nobody knows beforehand which candidates will
have bad luck with those. Say that at most k of n samples may be wrong. For each share p the first candidate worse than
p is fixed, so one that is worse is taken at most as often as k or fewer of n uniform numbers are below p. More than m
answers are wrong as often as the taken share is above the (m + 1)-th smallest of N other uniform numbers. With that for
p, the chance is that it is smaller than the (k + 1)-th smallest of n: just what the test of one candidate bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latebind.learned.compose import Costs, Floats, Seen, send
from latebind.learned.promise import Promise


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Thresholds and what held-out samples say of them.

    `fidelity` is the share of equal answers and `lower` its bound, both in the worst world; `seconds` the mean latency.
    """

    thresholds: Floats
    fidelity: float
    lower: float
    seconds: float


def calibrate(
    candidates: Sequence[Floats], worlds: Sequence[Seen], costs: Costs, *, promise: Promise
) -> Calibrated | None:
    """Return the fastest of the candidates that keep the promise in every world.

    `candidates` go from the strictest to the laxest and were chosen on other samples than `worlds`. None if not even
    the first passes.
    """
    accepted = []
    for thresholds in candidates:
        found = judge(thresholds, worlds, costs, promise=promise)
        if found.lower < promise.fidelity:
            break
        accepted.append(found)
    return min(accepted, key=lambda found: found.seconds, default=None)


def judge(thresholds: Floats, worlds: Sequence[Seen], costs: Costs, *, promise: Promise) -> Calibrated:
    """Return what these samples say of the thresholds; every world is to pass, so no correction for their number."""
    results = [send(thresholds, seen, costs) for seen in worlds]
    wrong = [(int(result.wrong.sum()), len(result.wrong)) for result in results]
    fidelity = min(1.0 - bad / n for bad, n in wrong)
    lower = min(promise.at_least(bad, n) for bad, n in wrong)
    seconds = float(np.concatenate([result.seconds for result in results]).mean())
    return Calibrated(thresholds, fidelity, lower, seconds)
