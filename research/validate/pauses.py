"""Measures how much of a core other processes take: a thread only reads the clock, and notes the gaps."""

import time
from dataclasses import dataclass

from latebind.bench.server import pinned

NOTICED = 100e-6  # seconds between two looks past which the thread was not running
SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Pauses:
    """The share of the time that a core was away, and the longest time for which it was, in seconds."""

    core: int
    share: float
    longest: float


def pauses(core: int, seconds: float = SECONDS) -> Pauses:
    """Keep a core busy by reading the clock, and return the pauses."""
    away, longest = 0.0, 0.0
    with pinned((core,)):
        begun = last = time.perf_counter()
        while last < begun + seconds:
            now = time.perf_counter()
            if now - last > NOTICED:
                away, longest = away + now - last, max(longest, now - last)
            last = now
    return Pauses(core, away / (last - begun), longest)
