"""Sends requests at Poisson times to every server with the same client: the share answered within the deadline.

All servers run from the beginning to the end, except that those that poll are stopped while others have their turn.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random

import aiohttp
import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import past
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from research.peers import resnet
from research.peers.clients import Call, check, load
from research.peers.servers import Served, restless, turn_of
from research.peers.sides import LATEBIND, Place
from research.requests import in_time

CLIENTS = 16  # of the closed loop that tells what can be answered
WARM_UP = 2.0  # seconds
PATIENCE = 10.0  # seconds: who was not answered by then is not waited for
DRAIN = 0.5  # seconds between two runs


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Loads are shares of the capacity, which is the most that any side answers in a closed loop."""

    loads: tuple[float, ...] = (0.5, 0.8, 1.0, 1.4)
    deadline: float = 0.1
    rounds: int = 3
    seconds: float = 8.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """One side in one round at one load: `seconds` from when each request was to be sent, inf without an answer."""

    side: str
    load: float
    round: int
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a backend: answers a second in a closed loop by side, and every run."""

    backend: str
    capacity: Mapping[str, float]
    played: Sequence[Played]


def run(place: Place, backend: str, wanted: Sequence[str], plan: Plan, tell: Progress) -> Found:
    """Serve the network on every side and play all loads. Raises `ConfigError` if a server answers wrongly."""
    tell("building", 0.0)
    place.folder.mkdir(parents=True, exist_ok=True)
    network = resnet.make(place.folder, backend, plan.seed)
    sides = {name: side for name, side in resnet.sides(network).items() if not wanted or name in wanted}
    with ExitStack() as stack:
        tell("starting", 0.0)
        servers = {name: stack.enter_context(side.start(place)) for name, side in sides.items()}
        calls = {name: resnet.call(network, side, plan.deadline) for name, side in sides.items()}
        slow = {name: resnet.call(network, side, PATIENCE) for name, side in sides.items()}
        polling, capacity = restless(servers.values()), {}
        for name, served in servers.items():
            tell(f"capacity of {name}", 0.0)
            with turn_of(served, polling):
                check(served, slow[name], network.right, who=name, exact=False)
                load(served, slow[name], clients=CLIENTS, seconds=WARM_UP)
                capacity[name] = load(served, slow[name], clients=CLIENTS, seconds=2 * WARM_UP).rate
        return Found(backend, capacity, _rounds(servers, polling, calls, max(capacity.values()), plan, tell))


def _rounds(
    servers: Mapping[str, Served],
    polling: Sequence[Served],
    calls: Mapping[str, Call],
    capacity: float,
    plan: Plan,
    tell: Progress,
) -> list[Played]:
    found: list[Played] = []
    total = plan.rounds * len(plan.loads) * len(servers)
    for number in in_rounds(plan.rounds):
        for place, share in enumerate(plan.loads):
            random = Random(plan.seed * 1000 + number * 10 + place)
            times = past(plan.seconds, share * capacity, random)
            for name in random.sample(list(servers), len(servers)):
                tell(f"{name} at {share:.0%}", len(found) / total)
                with turn_of(servers[name], polling):
                    found.append(Played(name, share, number, asyncio.run(play(servers[name], calls[name], times))))
    return found


async def play(served: Served, call: Call, times: Sequence[float]) -> NDArray[np.float64]:
    """Send a call at these times whatever becomes of it; return the seconds to each answer."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(served.url, connector=connector, timeout=timeout) as session:
        begun = time.perf_counter()
        seconds = await in_time([(at, partial(_ask, session, call, begun + at)) for at in times])
        await asyncio.sleep(DRAIN)
    return np.array(seconds)


async def _ask(session: aiohttp.ClientSession, call: Call, due: float) -> float:
    try:
        async with session.post(call.path, data=call.data, headers=call.headers) as reply:
            await reply.read()
            return time.perf_counter() - due if reply.status == 200 else np.inf
    except (TimeoutError, aiohttp.ClientError):
        return np.inf


def goodput_rows(found: Found, deadline: float, seed: int) -> Rows:
    """Return what was answered in time at each load; ours is compared with the best of the others, round by round."""
    rows: Rows = []
    for share in dict.fromkeys(one.load for one in found.played):
        here = [one for one in found.played if one.load == share]
        in_time = {side: _in_time(here, side, deadline) for side in dict.fromkeys(one.side for one in here)}
        others = {side: counts for side, counts in in_time.items() if side != LATEBIND}
        best = max(others, key=lambda side: float(others[side].sum()), default="")
        good = bool(best) and others[best].any()
        for side, counts in in_time.items():
            seconds = np.concatenate([one.seconds for one in here if one.side == side])
            answered = seconds[np.isfinite(seconds)]
            ratio = ratio_of_means(counts, others[best], seed=seed) if side == LATEBIND and good else None
            rows.append(
                {
                    "load": f"{share:.0%}",
                    "side": side,
                    "requests": len(seconds),
                    "in time": f"{counts.sum() / len(seconds):.3f}",
                    "over the best other": f"{ratio} ({best})" if ratio else "",
                    "p50 ms": _percentile(answered, 50),
                    "p99 ms": _percentile(answered, 99),
                    "without an answer": f"{1 - len(answered) / len(seconds):.1%}",
                }
            )
    return rows


def capacity_rows(found: Found) -> Rows:
    """Return what each side answers in a closed loop."""
    return [{"side": side, "answers a second": round(rate, 1)} for side, rate in found.capacity.items()]


def _in_time(played: Sequence[Played], side: str, deadline: float) -> NDArray[np.float64]:
    """Return how many were answered in time in each round."""
    ordered = sorted((one for one in played if one.side == side), key=lambda one: one.round)
    return np.array([float((one.seconds <= deadline).sum()) for one in ordered])


def _percentile(seconds: NDArray[np.float64], percent: float) -> float:
    return round(float(np.percentile(seconds, percent)) * 1e3, 1) if len(seconds) else float("nan")
