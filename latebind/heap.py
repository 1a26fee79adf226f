"""Garbage collection of a serving process: few objects, rarely."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG, MIDDLE, OLD = 20_000, 20, 50  # objects, then times: gc.set_threshold


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing within: what is imported stays, and looking through it each time takes a tenth as long."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settle() -> None:
    """Leave what is there out of all collections, for it stays, and collect more rarely from now on.

    What requests make is gone with its last reference; only cycles wait for the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
