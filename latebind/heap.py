"""Garbage collection of a serving process: few objects, rarely."""

import gc

YOUNG, MIDDLE, OLD = 20_000, 20, 50  # objects, then times: gc.set_threshold


def settle() -> None:
    """Leave what is there out of all collections, for it stays, and collect more rarely from now on.

    What requests make is gone with its last reference; only cycles wait for the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
