"""The homes of models as one ingress sees them, from the calls that come and the memory that replicas report."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from latebind.cluster.placement import ModelDemand, Place, place

PERIOD = 5.0  # seconds between two placements
MEMORY = 0.5  # the weight of the previous rate in the new one

BUDGET, MODELS = "budget", "models"  # in the figures of a replica whose memory is limited
NOTHING = ModelDemand(0, 0.0, 0.0, 0.0)
Figures = Mapping[str, Any]


class Homes:
    """The homes of models, by name. If no replica reports figures there are none: every replica has every model."""

    def __init__(self) -> None:
        self.of: Mapping[str, Sequence[str]] = {}
        self._calls: Counter[str] = Counter()
        self._rates: dict[str, float] = {}
        self._settled = float("-inf")

    def note(self, model: str) -> None:
        """Count a call for a model."""
        self._calls[model] += 1

    def settle(self, replicas: Iterable[tuple[str, Figures]], now: float) -> None:
        """Place models anew if it is time; `replicas` are their names and figures."""
        if now - self._settled < PERIOD:
            return
        seconds, self._settled = now - self._settled, now
        limited = [(name, figures) for name, figures in replicas if BUDGET in figures]
        self._take_rates(seconds)
        places = [_place(name, figures) for name, figures in limited]
        self.of = place(self._wanted([figures for _, figures in limited]), places)

    def _take_rates(self, seconds: float) -> None:
        calls, self._calls = self._calls, Counter()
        names = {*calls, *self._rates}
        self._rates = {
            name: MEMORY * self._rates.get(name, 0.0) + (1 - MEMORY) * calls[name] / seconds for name in names
        }

    def _wanted(self, told: Sequence[Figures]) -> dict[str, ModelDemand]:
        """Return the models that replicas report, each with the highest costs reported."""
        found: dict[str, ModelDemand] = {}
        for figures in told:
            for name, (_, size, penalty, work) in figures[MODELS].items():
                seen = found.get(name, NOTHING)
                costs = max(penalty, seen.penalty), max(work, seen.work)
                found[name] = ModelDemand(size, *costs, self._rates.get(name, 0.0))
        return found


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


def _place(name: str, figures: Figures) -> Place:
    resident = frozenset(model for model, (there, *_) in figures[MODELS].items() if there)
    return Place(name, figures[BUDGET], resident)


def _mean(told: Mapping[str, Any]) -> float:
    return float(told["sum"] / told["count"]) if told["count"] else 1.0


def _work(model: Mapping[str, Any]) -> float:
    answered = model["requests"]["answered"]
    return float(sum(model["run_seconds"].values()) / answered) if answered else 0.01
