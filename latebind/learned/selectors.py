"""Drops selectors that let no more requests leave than the predictor's own odds, on rows that chose nothing yet.

GATI (appendix A.2.1) finds selectors better than a threshold on softmax, whose fidelity is hard to control. Here
calibration controls fidelity either way. What counts is the hit rate, and the microseconds that a selector takes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from latebind.learned.activations import Observed
from latebind.learned.composition import hits_alone
from latebind.learned.head import Head, HeadFunction

Rows = NDArray[np.int64]


def without_idle_selectors(heads: Sequence[Head], seen: Observed, rows: Rows, *, fidelity: float) -> list[Head]:
    """Return the heads, without their selector where at least as many of `rows` hit at `fidelity` without it."""
    found = []
    for place, head in enumerate(heads):
        if head.sure:
            found.append(head)
            continue
        plain, right = head.without_selector(), seen.seen.right[place, rows]
        _, odds = HeadFunction(plain)(seen.features[place].numpy()[rows])
        with_it = hits_alone(seen.seen.scores[place, rows], right, 1.0 - fidelity)[0]
        without = hits_alone(odds.astype(np.float64), right, 1.0 - fidelity)[0]
        found.append(plain if without >= with_it else head)
    return found
