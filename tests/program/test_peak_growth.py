"""What work takes at most is measured while it runs, whatever it gives back before its end."""

from multiprocessing import get_context

import numpy as np

from latebind.program.pieces import mmap_large_blocks, peak_growth

MB = 1 << 20


def test_the_most_that_work_takes_is_told_though_it_is_given_back() -> None:
    size, grown = peak_growth(lambda: np.ones(40 * MB, np.uint8).nbytes)
    assert size == 40 * MB
    assert 38 * MB <= grown < 50 * MB
    assert peak_growth(lambda: 0)[1] < 5 * MB


def growths() -> list[int]:
    """Return what some work takes at most, three times, in bytes."""
    mmap_large_blocks()
    between = list[bytearray]()

    def work() -> None:
        small = []
        for _ in range(20):
            small.append(np.ones(MB, np.uint8))
            between.append(bytearray(5_000))
        small.clear()
        large = [np.ones(2 * MB, np.uint8) for _ in range(10)]
        assert len(large) == 10

    return [peak_growth(work)[1] for _ in range(3)]


def test_what_work_takes_at_most_does_not_hang_on_what_the_heap_keeps() -> None:
    """In the heap, blocks of 2 MB do not fit where blocks of 1 MB lay: what was freed would count beside them.

    In a process of its own, as an engine is: what other tests have left behind is not looked at.
    """
    with get_context("spawn").Pool(1) as process:
        grown = process.apply(growths)
    assert min(grown) >= 18 * MB
    assert max(grown) < 25 * MB
