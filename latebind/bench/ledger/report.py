"""Tables of the ledger."""

import numpy as np

from latebind.bench.ledger.books import Fault
from latebind.bench.ledger.play import Played, growth
from latebind.cli.console import Row, Rows

MB = 1e6


def fault_rows(played: Played) -> Rows:
    """Return how often each thing was that must never be."""
    faults = played.ledger.faults
    return [{"requests": played.ledger.asked_count, **{str(fault): faults[fault] for fault in Fault}}]


def end_rows(played: Played) -> Rows:
    """Return how requests ended, and how long after they were to be sent."""
    rows: Rows = []
    for name, times in (*played.ledger.times.items(), ("right and in time", played.ledger.good)):
        if len(times.seconds):
            p50, p99 = np.percentile(times.seconds, [50, 99]) * 1e3
            rows.append(
                {
                    "end": str(name),
                    "requests": len(times.seconds),
                    "share": f"{len(times.seconds) / played.ledger.asked_count:.1%}",
                    "a second": round(len(times.seconds) / played.seconds, 1),
                    "p50 ms": round(float(p50), 2),
                    "p99 ms": round(float(p99), 2),
                }
            )
    return rows


def client_rows(played: Played) -> Rows:
    """Return by how much the client was late, which counts in all latencies, and what the server took in memory."""
    sizes = [size for _, size in played.memory]
    late = float(np.percentile(played.late, 99)) if played.late else 0.0
    row: Row = {"sent late by, p99 ms": round(late * 1e3, 2)}
    if sizes:
        row |= {
            "memory MB at first": round(sizes[0] / MB, 1),
            "at last": round(sizes[-1] / MB, 1),
            "at most": round(max(sizes) / MB, 1),
            "grown by": round(growth(played.memory) / MB, 1),
        }
    return [row]


def tables(played: Played) -> dict[str, Rows]:
    """Return all tables of what was played, by title."""
    return {
        "how requests ended": end_rows(played),
        "what must never be": fault_rows(played),
        "client and server": client_rows(played),
        "what was done to the server": [
            {"fault": str(one.fault), "at request": one.request, "what": one.what} for one in played.injected
        ],
    }
