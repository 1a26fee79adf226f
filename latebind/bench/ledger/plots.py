"""What the ledger says, as plots over time."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from latebind.bench.ledger.books import End
from latebind.bench.ledger.play import Played


def figures(played: Played) -> Sequence[go.Figure]:
    """Draw how requests ended second by second, their latencies, and the memory of the server."""
    return [_ends(played), _latencies(played), *([_memory(played)] if played.memory else [])]


def _ends(played: Played) -> go.Figure:
    figure = go.Figure()
    ledger = played.ledger
    for name, times in (("right and in time", ledger.good), *((str(end), ledger.times[end]) for end in End)):
        counts = np.bincount(_seconds(times.due, played)) if len(times.due) else np.array([])
        figure.add_scatter(x=np.arange(len(counts)), y=counts, name=name, mode="lines")
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(title="requests a second, by when they were to be sent")
    return _titled(figure, "How requests ended")


def _latencies(played: Played) -> go.Figure:
    figure = go.Figure()
    for end in (End.ANSWERED, End.REFUSED, End.EXPIRED):
        seconds = np.sort(played.ledger.times[end].seconds)
        if len(seconds):
            places = np.unique(np.linspace(0, len(seconds) - 1, 2000).astype(int))
            figure.add_scatter(x=seconds[places] * 1e3, y=(places + 1) / len(seconds), name=str(end), mode="lines")
    figure.update_xaxes(title="ms since they were to be sent", type="log")
    figure.update_yaxes(title="share of them", range=[0, 1.01], tickformat=".0%")
    return _titled(figure, "How long it took")


def _memory(played: Played) -> go.Figure:
    times, sizes = zip(*played.memory, strict=True)
    figure = go.Figure()
    figure.add_scatter(x=times, y=np.array(sizes) / 1e6, name="all processes", mode="lines")
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(title="MB", rangemode="tozero")
    return _titled(figure, "Memory of the server")


def _seconds(due: ArrayLike, played: Played) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.maximum(0, np.asarray(due) - played.began).astype(np.int64)


def _titled(figure: go.Figure, title: str) -> go.Figure:
    return figure.update_layout(title=title, template="plotly_white", height=420)
