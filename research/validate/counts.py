"""Counts of what an engine did, which tell simulated from live at any pace of the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from latebind.domain.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Counts:
    """So many `launches` of stages, with `rows` in all of them together, and `loads` of models or pieces."""

    launches: float = 0.0
    rows: float = 0.0
    loads: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.launches + other.launches, self.rows + other.rows, self.loads + other.loads)

    @property
    def rows_each(self) -> float:
        """Rows of a launch, 0 where there were none."""
        return self.rows / self.launches if self.launches else 0.0


NOTHING = Counts()


def counted(metrics: Metrics) -> Counts:
    """Return what a simulated engine did."""
    found = metrics.snapshot()
    models = found["models"].values()
    memory = found.get("memory", {"models": {}})["models"].values()
    return Counts(
        sum([model["stage_runs"] for model in models]),
        sum([model["row_stages"] for model in models]),
        sum([model["loads"] for model in memory]),
    )


def summed(every: Sequence[Counts]) -> Counts:
    """Return all together."""
    return sum(every, start=NOTHING)


def average(every: Sequence[Counts]) -> Counts:
    """Return the mean of several runs."""
    whole, runs = summed(every), len(every)
    return Counts(whole.launches / runs, whole.rows / runs, whole.loads / runs)
