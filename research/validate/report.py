"""Tables of simulated beside live: means and percentiles, and their ratios round by round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

import numpy as np

from latebind.bench.statistics import Interval, median_interval
from latebind.cli.console import Row, Rows
from research.live import Seconds
from research.validate.logged import NOTHING, Counts

MEAN, TAIL = 0.1, 0.2  # so far may the simulated mean and 99th percentile be from the live ones

Figure = Callable[[Seconds], float]
FIGURES: dict[str, Figure] = {
    "mean": lambda seconds: float(seconds.mean()),
    "p50": lambda seconds: float(np.percentile(seconds, 50)),
    "p99": lambda seconds: float(np.percentile(seconds, 99)),
}
WITHIN = {"mean": MEAN, "p99": TAIL}


@dataclass(frozen=True, slots=True)
class Round:
    """The same requests live and in several simulated runs: seconds of each, inf where it was not answered."""

    live: Seconds
    simulated: Sequence[Seconds]

    def ratio(self, figure: Figure) -> float:
        """Return a figure simulated (the median of all runs) over the same live, of who was answered; inf if nobody."""
        runs = [figure(run) for run in map(answered, self.simulated) if len(run)]
        live = answered(self.live)
        return median(runs) / figure(live) if runs and len(live) else inf


@dataclass(frozen=True, slots=True)
class Load:
    """One model under one policy: rounds, and what the engine did in all of them, live and on average simulated."""

    model: str
    policy: str
    rounds: Sequence[Round]
    did: Counts = NOTHING
    would: Counts = NOTHING

    @property
    def live(self) -> Seconds:
        """Seconds of all requests that were answered live."""
        return answered(np.concatenate([one.live for one in self.rounds]))

    @property
    def simulated(self) -> Seconds:
        """Seconds of all that were answered, in all simulated runs."""
        return answered(np.concatenate([run for one in self.rounds for run in one.simulated]))

    def ratio(self, name: str, seed: int) -> Interval:
        """Return the median over rounds of a figure simulated over the same live; where nobody is answered, inf."""
        ratios = [ratio for one in self.rounds if isfinite(ratio := one.ratio(FIGURES[name]))]
        return median_interval(ratios, seed=seed) if ratios else Interval(inf, inf, inf)

    def lost(self) -> tuple[float, float]:
        """Return the shares of requests that were refused or dropped, live and simulated."""
        live = np.concatenate([one.live for one in self.rounds])
        runs = np.concatenate([run for one in self.rounds for run in one.simulated])
        return float(np.isinf(live).mean()), float(np.isinf(runs).mean())


def answered(seconds: Seconds) -> Seconds:
    """Return the seconds of those that have an answer."""
    found: Seconds = seconds[np.isfinite(seconds)]
    return found


def within(load: Load, seed: int) -> bool:
    """Tell whether mean and 99th percentile are as near as they are to be."""
    return all(abs(load.ratio(name, seed).value - 1.0) <= most for name, most in WITHIN.items())


def rows(loads: Sequence[Load], seed: int) -> Rows:
    """Return a row for each load; milliseconds live / simulated of all rounds together, then ratios round by round."""
    return [_row(load, seed) for load in loads]


def _row(load: Load, seed: int) -> Row:
    live, simulated = load.live, load.simulated
    lost = load.lost()
    found: dict[str, object] = {
        "model": load.model,
        "policy": load.policy,
        "requests": sum(len(one.live) for one in load.rounds),
        "not answered": f"{lost[0]:.1%} / {lost[1]:.1%}",
    }
    both = load.did, load.would
    found["launches x rows"] = " / ".join(f"{one.launches:.0f} x {one.rows_each:.2f}" for one in both)
    if any(one.loads for one in both):
        found["loads"] = " / ".join(f"{one.loads:.0f}" for one in both)
    for name, figure in FIGURES.items():
        found[f"{name} ms"] = " / ".join(f"{figure(one) * 1e3:.2f}" if len(one) else "-" for one in (live, simulated))
    for name in FIGURES:
        found[f"{name}, times"] = str(load.ratio(name, seed))
    return found | {f"within {MEAN:.0%}, {TAIL:.0%}": "yes" if within(load, seed) else "no"}
