"""What work takes at most is measured while it runs, whatever it gives back before its end."""

import numpy as np

from latebind.program.pieces import peak_growth

MB = 1 << 20


def test_the_most_that_work_takes_is_told_though_it_is_given_back() -> None:
    size, grown = peak_growth(lambda: np.ones(40 * MB, np.uint8).nbytes)
    assert size == 40 * MB
    assert 38 * MB <= grown < 50 * MB
    assert peak_growth(lambda: 0)[1] < 5 * MB
