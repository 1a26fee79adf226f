"""Garbage collection of a serving process: few objects, rarely."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG, MIDDLE, OLD = 20_000, 20, 50  # objects, then times: gc.set_threshold


@contextmanager
def importing() -> Iterator[None]:
    """Turn collections off within: what is imported stays, and they would take a tenth of the time of the imports."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settle() -> None:
    """Exclude existing objects, which stay, from all collections, and collect more rarely from now on.

    Objects made by requests are freed with their last reference; only cycles wait for the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
