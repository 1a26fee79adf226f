"""Arrival times of requests: Poisson at one rate or at a rising rate, or with the unevenness of a trace."""

from collections.abc import Iterator, Sequence
from itertools import cycle, takewhile
from random import Random

from latebind.simulation.traces import Service

LOWEST, HIGHEST = 0.7, 1.3  # times a load: the rates between which calibrations rise


def poisson(rate: float, random: Random) -> Iterator[float]:
    """Yield arrival times in seconds, `rate` a second on average, without end."""
    time = 0.0
    while True:
        time += random.expovariate(rate)
        yield time


def past(seconds: float, rate: float, random: Random) -> list[float]:
    """Return Poisson times up to and including the first one after `seconds`."""
    found, times = [0.0], poisson(rate, random)
    while found[-1] < seconds:
        found.append(next(times))
    return found[1:]


def during(seconds: float, rate: float, random: Random) -> list[float]:
    """Return Poisson times within `seconds`, the first at 0."""
    return [0.0, *takewhile(lambda at: at < seconds, poisson(rate, random))]


def rising(seconds: float, rate: float, random: Random) -> list[float]:
    """Return arrival times of a calibration, whose rate rises from `LOWEST` to `HIGHEST` times `rate`."""
    low, high = LOWEST * rate, HIGHEST * rate
    first, *others = during(seconds, high, random)
    return [first, *(at for at in others if random.random() * high < low + (high - low) * at / seconds)]


def traced(services: Sequence[Service], rate: float, minute: float, random: Random) -> Iterator[float]:
    """Yield arrival times, `rate` a second on average, that vary from minute to minute as the calls of all services do.

    Each minute of the trace lasts `minute` seconds; after the last one the trace starts again.
    """
    counts = [sum(service.counts[place] for service in services) for place in range(len(services[0].counts))]
    mean = sum(counts) / len(counts)
    for number, count in enumerate(cycle(counts)):
        here = poisson(rate * count / mean, random) if count else iter(())
        for time in here:
            if time >= minute:
                break
            yield number * minute + time
