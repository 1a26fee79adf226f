"""What live runs of queries come to, as rows of tables. Differences are paired row by row."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from latebind.bench.queries.live.asked import Call
from latebind.bench.queries.live.overhead import BY_CLIENTS, QUERY, Overhead, step_name
from latebind.bench.queries.live.replanning import BLOCK, Found
from latebind.bench.queries.live.sides import STATIC
from latebind.bench.statistics import Interval, mean_interval, ratio_of_means

Rows = list[dict[str, object]]
Figures = NDArray[np.float64]


def model_rows(found: Found) -> Rows:
    """Return what each model takes by itself, and what the way there and back adds."""
    rows = [{"model": name, "median ms in the engine": _ms(seconds)} for name, seconds in found.timed.models.items()]
    return [*rows, {"model": "(the query, beyond its models)", "median ms in the engine": _ms(found.timed.beyond)}]


def side_rows(sides: Mapping[str, Sequence[Call]], deadline: float, seed: int) -> Rows:
    """Return accuracy, latency and violations of each side at one deadline, beside those of `static`."""
    return [
        {
            "side": name,
            "accuracy": f"{_right(calls).mean():.4f}",
            "points more than static": _points(_right(calls) - _right(sides[STATIC]), seed),
            "mean ms": _ms(_seconds(calls).mean()),
            "ms more than static": _more(_seconds(calls) - _seconds(sides[STATIC]), seed),
            "times as fast": str(ratio_of_means(_seconds(sides[STATIC]), _seconds(calls), block=BLOCK, seed=seed)),
            "p99": _ms(np.percentile(_seconds(calls), 99)),
            "late": f"{(_seconds(calls) > deadline).mean():.1%}",
            "right in time": f"{(_right(calls) * (_seconds(calls) <= deadline)).mean():.4f}",
        }
        for name, calls in sides.items()
    ]


def chosen_rows(found: Found) -> Rows:
    """Return which models answered each step, and how often one left before its last stage."""
    return [
        {
            "deadline ms": _ms(deadline),
            "side": name,
            **{step: _shares(calls, step) for step in _steps(found)},
            "left early": _early(calls),
        }
        for deadline, sides in found.calls.items()
        for name, calls in sides.items()
    ]


def latency_rows(found: Overhead, seed: int) -> Rows:
    """Return mean latencies of the query and of its models one after another, and the difference."""
    rows: Rows = []
    for where, query, models in (
        ("at the client", _seconds(found.query), _sums(found, inside=False)),
        ("in the engine", np.array([call.inside for call in found.query]), _sums(found, inside=True)),
    ):
        rows.append(
            {
                "seconds": where,
                "query, mean ms": _ms(query.mean()),
                "its models, added, mean ms": _ms(models.mean()),
                "ms more": _more(query - models, seed),
                "times": str(ratio_of_means(query, models, block=BLOCK, seed=seed)),
                "median ms more": _ms(np.median(query) - np.median(models)),
            }
        )
    return rows


def throughput_rows(found: Overhead, seed: int) -> Rows:
    """Return answers a second, and what the query carries of each of the others."""
    through = {name: np.array(rates) for name, rates in found.through.items()}
    steps = [through[step_name(number)] for number in range(len(found.through) - 2)]
    together: Figures = 1.0 / np.sum([1.0 / rates for rates in steps], axis=0)
    through["one after another, as steps alone say"] = together
    return [
        {
            "asked for": name,
            "answers a second": round(float(rates.mean()), 1),
            "the query carries of that": str(ratio_of_means(through[QUERY], rates, block=1, seed=seed)),
        }
        for name, rates in sorted(through.items(), key=lambda one: (one[0] != QUERY, one[0] != BY_CLIENTS))
    ]


def _steps(found: Found) -> list[str]:
    """Return the names of all steps that ran, in the order in which they first did."""
    every = (
        step.step for sides in found.calls.values() for calls in sides.values() for call in calls for step in call.steps
    )
    return list(dict.fromkeys(every))


def _shares(calls: Sequence[Call], name: str) -> dict[str, float]:
    """Return the models of a step by the share of its runs that each answered."""
    models = Counter(step.model for call in calls for step in call.steps if step.step == name)
    return {model: count / models.total() for model, count in sorted(models.items())}


def _early(calls: Sequence[Call]) -> dict[str, float]:
    """Return, by step, the share of its runs that left before the last stage, where there were any."""
    runs = Counter(step.step for call in calls for step in call.steps)
    left = Counter(step.step for call in calls for step, early in zip(call.steps, call.early, strict=True) if early)
    return {step: count / runs[step] for step, count in left.items()}


def _sums(found: Overhead, *, inside: bool) -> Figures:
    return np.array([sum(call.inside if inside else call.seconds for call in calls) for calls in found.models])


def _right(calls: Sequence[Call]) -> Figures:
    return np.array([call.right for call in calls], np.float64)


def _seconds(calls: Sequence[Call]) -> Figures:
    return np.array([call.seconds for call in calls])


def _points(values: Figures, seed: int) -> str:
    return _written(mean_interval(100.0 * values, block=BLOCK, seed=seed), 2)


def _more(values: Figures, seed: int) -> str:
    return _written(mean_interval(1e3 * values, block=BLOCK, seed=seed), 3)


def _written(interval: Interval, digits: int) -> str:
    return f"{interval.value:+.{digits}f} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"


def _ms(seconds: float) -> float:
    return round(float(seconds) * 1e3, 3)
