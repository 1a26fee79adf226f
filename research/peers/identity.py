"""Measures requests a second for a model that returns its input: what the servers themselves cost.

All servers run from the beginning to the end, except that those that poll are stopped while others have their turn.
One is loaded at a time, and all take turns in every round.
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import psutil
from numpy.typing import NDArray

from latebind.bench.client import Array
from latebind.bench.ledger.questions import Protocol
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from research.peers.clients import Call, Loaded, check, load, written
from research.peers.servers import Served, restless, turn_of
from research.peers.sides import IDENTITY, TRITON, WIDTH, Place, Side

WARM_UP = 1.0  # seconds of each cell that do not count


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: so many rounds of so many seconds for every protocol and number of clients."""

    protocols: tuple[Protocol, ...] = tuple(Protocol)
    clients: tuple[int, ...] = (1, 16)
    rounds: int = 5
    seconds: float = 2.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What one side did in one round; `others` is how many cores went to neither server nor client."""

    side: str
    protocol: Protocol
    clients: int
    round: int
    loaded: Loaded
    others: float


def run(place: Place, sides: Mapping[str, Side], plan: Plan, tell: Progress) -> list[Run]:
    """Return every run. Raises `ConfigError` where a server cannot be started or answers wrong."""
    rows = np.random.default_rng(plan.seed).standard_normal((1, WIDTH)).astype(np.float32)
    with ExitStack() as stack:
        tell("starting", 0.0)
        servers = {name: stack.enter_context(side.start(place)) for name, side in sides.items()}
        polling = restless(servers.values())
        cells = [(name, protocol, clients) for protocol, clients, name in _cells(sides, plan)]
        for name, protocol, clients in cells:
            call = _call(sides[name], protocol, rows)
            with turn_of(servers[name], polling):
                check(servers[name], call, rows, who=name)
                load(servers[name], call, clients=clients, seconds=WARM_UP)
        return _rounds(servers, polling, sides, cells, rows, plan, tell)


def _cells(sides: Mapping[str, Side], plan: Plan) -> list[tuple[Protocol, int, str]]:
    return [
        (protocol, clients, name)
        for protocol in plan.protocols
        for clients in plan.clients
        for name, side in sides.items()
        if protocol in side.protocols
    ]


def _rounds(
    servers: Mapping[str, Served],
    polling: Sequence[Served],
    sides: Mapping[str, Side],
    cells: Sequence[tuple[str, Protocol, int]],
    rows: Array,
    plan: Plan,
    tell: Progress,
) -> list[Run]:
    """Take turns: in a round the sides follow each other, in another order each time, cell by cell."""
    found: list[Run] = []
    for number in in_rounds(plan.rounds):
        mixed = Random(plan.seed + number).sample(list(cells), len(cells))
        for name, protocol, clients in sorted(mixed, key=lambda cell: (cell[1], cell[2])):
            tell(f"{name}, {protocol}, {clients} clients", len(found) / (plan.rounds * len(cells)))
            call = _call(sides[name], protocol, rows)
            with turn_of(servers[name], polling):
                loaded, others = _watched(servers[name], call, clients, plan.seconds)
            found.append(Run(name, protocol, clients, number, loaded, others))
    return found


def _call(side: Side, protocol: Protocol, rows: Array) -> Call:
    call = written(protocol, IDENTITY, rows)
    return replace(call, path=call.path + side.binary_path) if protocol is Protocol.BINARY else call


def _watched(served: Served, call: Call, clients: int, seconds: float) -> tuple[Loaded, float]:
    """Return the outcome of a load, and how many cores other processes used meanwhile."""
    busy, client = _busy(), _client_cpu()
    loaded = load(served, call, clients=clients, seconds=seconds)
    ours = _client_cpu() - client + loaded.cpu * loaded.rate * seconds
    return loaded, max(0.0, (_busy() - busy - ours) / seconds)


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _client_cpu() -> float:
    """Return the CPU time of this process and of the clients that it has run."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def identity_rows(runs: Sequence[Run], seed: int) -> Rows:
    """Return medians of the rounds for each protocol, number of clients and side; ratios are paired by round."""
    cells = dict.fromkeys((run.protocol, run.clients, run.side) for run in runs)
    rows: Rows = []
    for protocol, clients, side in cells:
        here = [run for run in runs if (run.protocol, run.clients, run.side) == (protocol, clients, side)]
        base = [run for run in runs if (run.protocol, run.clients, run.side) == (protocol, clients, TRITON)]
        rows.append(
            {
                "protocol": str(protocol),
                "clients": clients,
                "side": side,
                "per s": round(_median(here, _rate)),
                f"over {TRITON}": _ratio(here, base, _rate, seed),
                "p50 ms": round(_median(here, lambda one: one.p50) * 1e3, 3),
                "p99 ms": round(_median(here, lambda one: one.p99) * 1e3, 3),
                f"p99 over {TRITON}": _ratio(here, base, lambda one: one.p99, seed),
                "CPU us a request": round(_median(here, lambda one: one.cpu) * 1e6, 1),
                "failed": sum(run.loaded.failed for run in here),
                "others' cores": round(float(np.mean([run.others for run in here])), 2),
            }
        )
    return rows


def _rate(loaded: Loaded) -> float:
    return loaded.rate


def _figures(runs: Sequence[Run], figure: Callable[[Loaded], float]) -> NDArray[np.float64]:
    return np.array([figure(run.loaded) for run in sorted(runs, key=lambda run: run.round)])


def _median(runs: Sequence[Run], figure: Callable[[Loaded], float]) -> float:
    return float(np.median(_figures(runs, figure)))


def _ratio(here: Sequence[Run], base: Sequence[Run], figure: Callable[[Loaded], float], seed: int) -> str:
    """Return the ratio, with its interval; nothing where there is no base."""
    if not base or here[0].side == base[0].side:
        return ""
    return str(ratio_of_means(_figures(here, figure), _figures(base, figure), seed=seed))
