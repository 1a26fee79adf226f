"""A large cluster for a day: one window of each hour is simulated, with all of its requests on all of its machines."""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latebind.bench.cluster.scenes import Shape, Traced, lasting, requests_at
from latebind.bench.parallel import Progress, in_parallel
from latebind.bench.tables import Rows
from latebind.planning.figures import Figures, figures_of
from latebind.planning.player import get_ready, play
from latebind.planning.ways import WAYS
from latebind.simulation.cluster.fleet import Fleet, MachineKind
from latebind.simulation.cluster.traffic import MINUTE
from latebind.simulation.traces import Service

HOUR = 60  # minutes
SHAPE = Shape(run=0.004, load=0.2, allowed=0.1)  # models on an accelerator: 2 GB a second are loaded
KIND = MachineKind("16 GB", memory=16 * 10**9)
TICKS = 4  # times that placement is asked while a window warms up


@dataclass(frozen=True, slots=True)
class Day:
    """So many machines and models, and `rate` requests a second on average over `hours` of a trace.

    Of each hour `window` seconds count, after as many in which memory fills, both at the rates of their minute.
    """

    services: tuple[Service, ...]
    machines: int = 1000
    models: int = 5000
    rate: float = 1e5
    hours: int = 24
    window: float = 10.0
    seed: int = 0

    def traced(self) -> Traced:
        """Return the traffic of the day: a trace that is shorter begins again."""
        return Traced(lasting(self.services, self.hours * HOUR), self.models, self.rate)


@dataclass(frozen=True, slots=True)
class Window:
    """One hour of a day."""

    day: Day
    hour: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of a window: requests played, figures of those that count, seconds and bytes that it took."""

    hour: int
    requests: int
    rate: float
    figures: Figures
    seconds: float
    peak: int


def play_day(day: Day, tell: Progress, processes: int = 0) -> list[Seen]:
    """Play a window of each hour."""
    get_ready(Fleet((KIND,), SHAPE.models(1, day.seed)), WAYS[0])
    windows = [Window(day, hour) for hour in range(day.hours)]
    return in_parallel(
        play_window, windows, name=lambda window: f"hour {window.hour}", progress=tell, processes=processes
    )


def play_window(window: Window) -> Seen:
    """Play the middle of an hour."""
    day = window.day
    rates = day.traced().rates(day.seed)[:, window.hour * HOUR + HOUR // 2]
    lasts = 2 * day.window
    requests = requests_at(
        rates[:, None] * lasts / MINUTE, np.random.default_rng([day.seed, window.hour]), minute=lasts
    )
    fleet = Fleet((KIND,) * day.machines, SHAPE.models(day.models, day.seed))
    began = time.perf_counter()
    played = play(fleet, requests, WAYS[0], day.window / TICKS, day.seed)
    seconds = time.perf_counter() - began
    found = figures_of(fleet, played, warm=day.window)
    return Seen(window.hour, len(requests), rates.sum() / MINUTE, found, seconds, peak_bytes())


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def day_rows(seen: Sequence[Seen]) -> Rows:
    """Return a row for each hour."""
    return [
        {
            "hour": one.hour,
            "requests/s": f"{one.rate:.0f}",
            "played": one.requests,
            "in time": f"{one.figures.in_time:.2%}",
            "p50 ms": one.figures.p50 * 1e3,
            "p99 ms": one.figures.p99 * 1e3,
            "busy": f"{one.figures.busy:.0%}",
            "loads/s": one.figures.loads,
            "seconds": one.seconds,
            "simulated/s": f"{one.requests / one.seconds:.0f}",
            "peak MiB": f"{one.peak / 2**20:.0f}",
        }
        for one in seen
    ]


def day_text(day: Day) -> list[str]:
    """Return a text of what is simulated."""
    whole, played = day.rate * day.hours * 3600, day.rate * day.hours * 2 * day.window
    return [
        f"{day.machines} machines of {KIND.name}, {day.models} models, {day.hours} hours at {day.rate:g} requests a "
        f"second on average: {whole:.3g} requests.",
        f"Sampled: of each hour {2 * day.window:g} s are played with every request, the last {day.window:g} s of them "
        f"count: {played:.3g} requests, one of {whole / played:.0f}; memory is empty as each begins.",
    ]


def took_text(day: Day, seen: Sequence[Seen], took: float) -> str:
    """Say what it took, and what the whole day would take."""
    requests, seconds = sum(one.requests for one in seen), sum(one.seconds for one in seen)
    whole = day.rate * day.hours * 3600 * seconds / requests / 3600
    peak = max(one.peak for one in seen) / 2**20
    return (
        f"{requests} requests in {took:.0f} s, {seconds:.0f} s of one core, {requests / seconds:.0f} a second and "
        f"core; at most {peak:.0f} MiB a process. Every request of the day: {whole:.1f} hours of one core."
    )
