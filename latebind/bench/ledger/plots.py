"""Plots of the ledger over time."""

import numpy as np

from latebind.bench.ledger.books import End, Times
from latebind.bench.ledger.play import Played
from latebind.bench.report import SHARES, Plot, lines

POINTS = 2000  # of a distribution


def figures(played: Played) -> list[Plot]:
    """Draw how requests ended second by second, their latencies, and the memory of the server."""
    return [_ends(played), _latencies(played), *([_memory(played)] if played.memory else [])]


def _ends(played: Played) -> Plot:
    def a_second(times: Times) -> tuple[list[int], list[int]]:
        seconds = np.maximum(0, np.asarray(times.due) - played.began).astype(np.int64)
        counts = np.bincount(seconds).tolist() if len(seconds) else []
        return list(range(len(counts))), counts

    ledger = played.ledger
    curves = {"right and in time": a_second(ledger.good), **{str(end): a_second(ledger.times[end]) for end in End}}
    y = "requests a second, by when they were to be sent"
    return lines("How requests ended", curves, x="seconds", y=y, mode="lines")


def _latencies(played: Played) -> Plot:
    curves = {}
    for end in (End.ANSWERED, End.REFUSED, End.EXPIRED):
        seconds = np.sort(played.ledger.times[end].seconds)
        if len(seconds):
            places = np.unique(np.linspace(0, len(seconds) - 1, POINTS).astype(int))
            curves[str(end)] = (seconds[places] * 1e3, (places + 1) / len(seconds))
    x = {"title": "ms since they were to be sent", "type": "log"}
    return lines("How long it took", curves, x=x, y={"title": "share of them", **SHARES}, mode="lines")


def _memory(played: Played) -> Plot:
    times, sizes = zip(*played.memory, strict=True)
    curves = {"all processes": (times, np.array(sizes) / 1e6)}
    y = {"title": "MB", "rangemode": "tozero"}
    return lines("Memory of the server", curves, x="seconds", y=y, mode="lines")
