"""The homes of models as one ingress sees them, from the calls that come and the memory that replicas report."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.cluster.placement import ByImportance, Machines, Models

PERIOD = 5.0  # seconds between two placements

BUDGET, MODELS = "budget", "models"  # in the figures of a replica whose memory is limited
Figures = Mapping[str, Any]


class Homes:
    """The homes of models, by name. If no replica reports figures there are none: every replica has every model.

    `allowed` are the seconds that a call may take where it names no deadline, `workers` those of a replica.
    """

    def __init__(self, *, allowed: float, workers: int) -> None:
        self.of: Mapping[str, Sequence[str]] = {}
        self._allowed, self._workers = allowed, workers
        self._rule = ByImportance[str, str]()
        self._calls: Counter[str] = Counter()
        self._settled = float("-inf")

    def note(self, model: str) -> None:
        """Count a call for a model."""
        self._calls[model] += 1

    def settle(self, replicas: Iterable[tuple[str, Figures]], now: float) -> None:
        """Place models anew if it is time; `replicas` are their names and figures."""
        if now - self._settled < PERIOD:
            return
        seconds, self._settled = now - self._settled, now
        calls, self._calls = self._calls, Counter()
        limited = {name: figures for name, figures in replicas if BUDGET in figures}
        models = sorted({name for figures in limited.values() for name in figures[MODELS]})
        costs = _costs(models, limited.values())
        rates = np.array([calls[name] for name in models]) / seconds
        allowed = np.full(len(models), self._allowed)
        memory = np.array([figures[BUDGET] for figures in limited.values()], dtype=np.float64)
        work = np.tile(costs[2] / self._workers, (len(limited), 1))
        self.of = self._rule.place(
            Models(models, np.maximum(1.0, costs[0]), costs[1], allowed, rates),
            Machines(tuple(limited), memory, work),
            {model: _holders(model, limited) for model in models},
        )


def _costs(models: Sequence[str], told: Iterable[Figures]) -> NDArray[np.float64]:
    """Return bytes, seconds of a load, and seconds of an answer, `(3, models)`: the highest that replicas report."""
    found = np.zeros((3, len(models)))
    places = {name: place for place, name in enumerate(models)}
    for figures in told:
        for name, (_, *costs) in figures[MODELS].items():
            found[:, places[name]] = np.maximum(found[:, places[name]], costs)
    return found


def _holders(model: str, limited: Mapping[str, Figures]) -> list[str]:
    """Return the replicas that have a model, or a part of it, in memory."""
    return [name for name, figures in limited.items() if figures[MODELS].get(model, (0,))[0]]


def figures_of(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that a replica reports about its memory.

    They are its budget and, for each model, the bytes in memory, all of its bytes, the seconds of a load, and the
    seconds of a worker that one answer took.
    """
    memory = snapshot.get("memory")
    if memory is None:
        return {}
    models = {
        name: (about["resident_bytes"], about["bytes"], _mean(about["load_seconds"]), _work(snapshot["models"][name]))
        for name, about in memory["models"].items()
        if name in snapshot["models"]
    }
    return {BUDGET: memory["budget_bytes"], MODELS: models}


def _mean(told: Mapping[str, Any]) -> float:
    return float(told["sum"] / told["count"]) if told["count"] else 1.0


def _work(model: Mapping[str, Any]) -> float:
    answered = model["requests"]["answered"]
    return float(sum(model["run_seconds"].values()) / answered) if answered else 0.01
