"""When requests are to be sent: at Poisson times of one rate, or of a rate that goes up and down as a trace does."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from random import Random

from latebind.simulation.traces import Service


def poisson(rate: float, random: Random) -> Iterator[float]:
    """Yield times in seconds, `rate` a second, without end."""
    time = 0.0
    while True:
        time += random.expovariate(rate)
        yield time


def traced(services: Sequence[Service], rate: float, minute: float, random: Random) -> Iterator[float]:
    """Yield times, `rate` a second on average, that are as uneven as the calls of all services minute by minute.

    Each minute of the trace lasts `minute` seconds; behind the last one comes the first.
    """
    counts = [sum(service.counts[place] for service in services) for place in range(len(services[0].counts))]
    mean = sum(counts) / len(counts)
    for number, count in enumerate(cycle(counts)):
        here = poisson(rate * count / mean, random) if count else iter(())
        for time in here:
            if time >= minute:
                break
            yield number * minute + time
