"""Requests for models made from invocation counts by the minute (mCache, section 6.1), and synthetic counts.

The counts are those of the Azure Functions trace (Shahrad et al., ATC 2020), or drawn at random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.population import read_invocations

HOUR = 60  # minutes
HTTP, TIMER = "http", "timer"
HALVES = 2
POPULAR = 0.9  # services above this quantile of popularity are left out
REQUESTS = 2389  # of an hour

# Of rates a minute: mean and deviation of their logarithms, fitted to 139 HTTP functions of the trace in four hours of
# its first day, of which one in six was never called.
RATE = (-2.3, 2.17)
IDLE = 1 / 6
SERVICES = 139
MOST = 30.0  # invocations a minute; more popular services are left out in any case


@dataclass(frozen=True, slots=True)
class Service:
    """How many times a function was invoked in each minute, and by which kind of trigger."""

    counts: tuple[int, ...]
    trigger: str = HTTP


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `model` that arrives at `time` (seconds)."""

    time: float
    model: str


class Pairing(StrEnum):
    """How services get their models (section 6.1, step 2).

    Quantile gives models that take long to load to popular services, quantile-r to those that are not.
    """

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    QUANTILE = "quantile"
    QUANTILE_R = "quantile-r"


def services_of(file: Path | None, count: int = SERVICES) -> tuple[Service, ...]:
    """Return the functions of a trace that HTTP or a timer calls, or so many that are drawn like them.

    Raises `ConfigError` where the file is no trace, or has none.
    """
    if file is None:
        return tuple(drawn(Random(0), services=count))
    found = read_invocations(file, (HTTP, TIMER))  # nothing else is asked for, and a whole day is long
    both = zip(found.counts.tolist(), found.triggers, strict=True)
    return tuple(Service(tuple(row), trigger) for row, trigger in both)


def halves(services: Sequence[Service], triggers: Sequence[str] = (HTTP,)) -> list[tuple[Service, ...]]:
    """Return eligible services with the minutes of each half of a trace.

    Raises `ConfigError` where it is shorter than two hours, or nobody is asked for.
    """
    minutes = len(services[0].counts) // HALVES
    if minutes < HOUR:
        raise ConfigError(f"the trace has {HALVES * minutes} minutes: give one of two hours at least, an hour a half")
    found = [tuple(eligible(services, range(half * minutes, (half + 1) * minutes), triggers)) for half in range(HALVES)]
    if not all(any(any(service.counts) for service in some) for some in found):
        raise ConfigError(f"nothing in the trace is triggered by {' or '.join(triggers)}: give another one")
    return found


def eligible(services: Sequence[Service], minutes: range, triggers: Sequence[str] = (HTTP,)) -> list[Service]:
    """Return services with such a trigger, their counts in these minutes, without those of the highest popularity."""
    some = [
        Service(tuple([service.counts[minute] for minute in minutes]), service.trigger)
        for service in services
        if service.trigger in triggers
    ]
    popularity = sorted(sum(service.counts) for service in some)
    most = popularity[int(POPULAR * (len(some) - 1))] if some else 0
    return [service for service in some if sum(service.counts) <= most]


def hour_of(services: Sequence[Service], random: Random, requests: int = REQUESTS) -> list[Service]:
    """Return services of one hour that are invoked `requests` times together, if the trace has as many.

    Where one hour has less, the next one is laid over it as other services, as long as there is a whole one that was
    not taken. The first begins at any minute; behind the last minute comes the first.
    """
    minutes = len(services[0].counts)
    start = random.randrange(minutes)
    found: list[Service] = []
    for hour in range(max(1, minutes // HOUR)):
        at = [(start + HOUR * hour + minute) % minutes for minute in range(HOUR)]
        some = [Service(tuple([service.counts[minute] for minute in at]), service.trigger) for service in services]
        found += [service for service in some if any(service.counts)]
        if sum(sum(service.counts) for service in found) >= requests:
            break
    return found


def paired(services: Sequence[Service], models: Sequence[str], pairing: Pairing, random: Random) -> list[str]:
    """Return a model for each service; `models` come in the order of decreasing loading time."""
    if pairing is Pairing.RANDOM:
        return [random.choice(models) for _ in services]
    if pairing is Pairing.ROUND_ROBIN:
        places = random.sample(range(len(services)), len(services))  # their order in the trace means nothing
        return [models[place % len(models)] for place in places]
    order = models[::-1] if pairing is Pairing.QUANTILE else models
    found = [""] * len(services)
    by_popularity = sorted(range(len(services)), key=lambda service: sum(services[service].counts))
    for rank, service in enumerate(by_popularity):
        found[service] = order[rank * len(models) // len(services)]
    return found


def invocations(
    services: Sequence[Service], models: Sequence[str], random: Random, requests: int = REQUESTS
) -> list[Request]:
    """Return requests in the order of time, each at any instant of its minute; of more than `requests` so many stay."""
    every = [
        Request(60.0 * (minute + random.random()), model)
        for service, model in zip(services, models, strict=True)
        for minute, count in enumerate(service.counts)
        for _ in range(count)
    ]
    if len(every) > requests:
        every = random.sample(every, requests)
    return sorted(every, key=lambda request: request.time)


def drawn(random: Random, *, services: int = SERVICES, minutes: int = 4 * HOUR) -> list[Service]:
    """Return services whose rates have the long tail of the trace (figure 1), each constant: Poisson by the minute."""
    found = []
    for _ in range(services):
        rate = 0.0 if random.random() < IDLE else min(MOST, random.lognormvariate(*RATE))
        counts, time = [0] * minutes, random.expovariate(rate) if rate else minutes
        while time < minutes:
            counts[int(time)] += 1
            time += random.expovariate(rate)
        found.append(Service(tuple(counts)))
    return found
