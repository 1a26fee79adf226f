"""Servers in turn, of which those that poll are stopped while others have theirs; all take turns in every round."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

import numpy as np

from latebind.bench.client import past
from latebind.bench.ledger.questions import Protocol
from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from research.peers.clients import PATIENCE, Loaded, check, load, play
from research.peers.servers import Served, restless, turn_of
from research.peers.sides import LATEBIND, TRITON, Network, Side
from research.sides import Figures

CLIENTS = 16  # of the closed loop that tells what can be answered
WARM_UP = 1.0  # seconds

Cell = tuple[Protocol, int, str]  # clients and side
Runs = Mapping[Cell, Sequence[Loaded]]  # a round after the other
ByLoad = Mapping[float, Mapping[str, Sequence[Figures]]]  # seconds of requests by load and side, for each round


@dataclass(frozen=True, slots=True)
class Running:
    """The servers of a comparison by name, and those of them that poll."""

    servers: Mapping[str, Served]
    polling: Sequence[Served]

    @contextmanager
    def turn(self, name: str) -> Iterator[Served]:
        """Let one have the machine."""
        with turn_of(self.servers[name], self.polling):
            yield self.servers[name]


@contextmanager
def started(sides: Mapping[str, Side]) -> Iterator[Running]:
    """Start all servers, which end with the block."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(side.start()) for name, side in sides.items()}
        yield Running(servers, restless(servers.values()))


def identity(
    sides: Mapping[str, Side],
    network: Network,
    cells: Sequence[Cell],
    *,
    rounds: int,
    seconds: float,
    seed: int,
    on_progress: Progress,
) -> Runs:
    """Load each side in each cell. Raises `ConfigError` where a server cannot be started or answers wrong."""
    on_progress("starting", 0.0)
    found: dict[Cell, list[Loaded]] = {cell: [] for cell in cells}
    calls = {cell: sides[cell[2]].call(network, cell[0]) for cell in cells}
    with started(sides) as here:
        for cell, call in calls.items():
            with here.turn(cell[2]) as served:
                check(served, call, network.right, who=cell[2])
                load(served, call, clients=cell[1], seconds=WARM_UP)
        for number in range(rounds):
            mixed = Random(seed + number).sample(list(cells), len(cells))
            for at, cell in enumerate(sorted(mixed, key=lambda cell: cell[:2])):
                on_progress(f"{cell[2]}, {cell[0]}, {cell[1]} clients", (number + at / len(cells)) / rounds)
                with here.turn(cell[2]) as served:
                    found[cell].append(load(served, calls[cell], clients=cell[1], seconds=seconds))
    return found


def identity_rows(runs: Runs, seed: int) -> Rows:
    """Return medians of the rounds for each protocol, number of clients and side; ratios are paired by round."""
    rows: Rows = []
    for (protocol, clients, side), here in runs.items():
        base = runs.get((protocol, clients, TRITON), ())
        figures = {name: np.array([getattr(one, name) for one in here]) for name in ("rate", "p50", "p99", "cpu")}
        row: Row = {"protocol": str(protocol), "clients": clients, "side": side}
        row["per s"] = round(float(np.median(figures["rate"])))
        over = ratio_of_means(figures["rate"], [one.rate for one in base], seed=seed) if base else ""
        row[f"over {TRITON}"] = "" if side == TRITON else str(over)
        row |= {f"{name} ms": round(float(np.median(figures[name])) * 1e3, 3) for name in ("p50", "p99")}
        row["CPU us a request"] = round(float(np.median(figures["cpu"])) * 1e6, 1)
        rows.append(row | {"failed": sum(one.failed for one in here)})
    return rows


def goodput(
    sides: Mapping[str, Side],
    network: Network,
    loads: Sequence[float],
    deadline: float,
    *,
    rounds: int,
    seconds: float,
    seed: int,
    on_progress: Progress,
) -> tuple[dict[str, float], ByLoad]:
    """Return what each side answers a second in a closed loop, and what came of requests at each load.

    A load of 1 is the most that any side answers so. Raises `ConfigError` if a server answers wrongly.
    """
    on_progress("starting", 0.0)
    capacity: dict[str, float] = {}
    found: dict[float, dict[str, list[Figures]]] = {share: {name: [] for name in sides} for share in loads}
    calls, slow = (
        {name: side.call(network, side.protocols[-1], timeout) for name, side in sides.items()}
        for timeout in (deadline, PATIENCE)
    )
    with started(sides) as here:
        for name, call in slow.items():
            on_progress(f"capacity of {name}", 0.0)
            with here.turn(name) as served:
                check(served, call, network.right, who=name)
                load(served, call, clients=CLIENTS, seconds=2 * WARM_UP)
                capacity[name] = load(served, call, clients=CLIENTS, seconds=4 * WARM_UP).rate
        for number in range(rounds):
            for place, share in enumerate(loads):
                random = Random(seed * 1000 + number * 10 + place)
                times = past(seconds, share * max(capacity.values()), random)
                for name in random.sample(list(sides), len(sides)):
                    on_progress(f"{name} at {share:.0%}", (number + place / len(loads)) / rounds)
                    with here.turn(name) as served:
                        found[share][name].append(asyncio.run(play(served, calls[name], times)))
    return capacity, found


def goodput_rows(found: ByLoad, deadline: float, seed: int) -> Rows:
    """Return what was answered in time at each load; ours is compared with the best of the others, round by round."""
    rows: Rows = []
    for share, by_side in found.items():
        counts = {side: np.array([(one <= deadline).sum() for one in some]) for side, some in by_side.items()}
        others = {side: some for side, some in counts.items() if side != LATEBIND and some.any()}
        best = max(others, key=lambda side: int(others[side].sum()), default="")
        for side, some in by_side.items():
            seconds = np.concatenate(some)
            answered = seconds[np.isfinite(seconds)]
            row: Row = {"load": f"{share:.0%}", "side": side, "requests": len(seconds)}
            row["in time"] = f"{counts[side].sum() / len(seconds):.3f}"
            ours = side == LATEBIND and best
            over = f"{ratio_of_means(counts[side], others[best], seed=seed)} ({best})" if ours else ""
            row["over the best other"] = over
            for percent in (50, 99):
                row[f"p{percent} ms"] = round(float(np.percentile(answered, percent)) * 1e3, 1) if len(answered) else ""
            rows.append(row | {"without an answer": f"{1 - len(answered) / len(seconds):.1%}"})
    return rows
