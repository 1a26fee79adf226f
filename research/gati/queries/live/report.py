"""Tables of live runs of queries. Differences are paired row by row."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.cli.console import Row, Rows
from research.gati.queries.live.asked import Call
from research.gati.queries.live.overhead import BY_CLIENTS, QUERY, Overhead, step_name
from research.gati.queries.live.replanning import BLOCK, Found
from research.gati.queries.live.sides import STATIC

Figures = NDArray[np.float64]
MOST = "its steps alone, added: the most that these workers could carry"
SLOWER = "the slower step alone"
HELD = 0.95  # of the steps, which a query is to carry


def model_rows(found: Found) -> Rows:
    """Return the latency of each model alone, and what the way to the engine and back adds."""
    rows = [{"model": name, "median ms in the engine": _ms(seconds)} for name, seconds in found.timed.models.items()]
    more = {
        "(the query, beyond its models)": found.timed.beyond,
        "(saved by learned caches, on average)": found.timed.saved,
        "(deadline up to which a plan seldom reaches the best)": found.timed.reached,
    }
    return [*rows, *({"model": what, "median ms in the engine": _ms(seconds)} for what, seconds in more.items())]


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
    """Return what the query carries, and its ratio to its steps: on one worker, and on a worker for each step.

    Workers that run all steps carry no more than 1 / (1/a + 1/b), where a and b a second are what they carry of each
    step alone. The query on a worker for each step is also held against the slower step on one worker, and on as many.
    """
    one, each, shares = _arrays(found.one.through), _arrays(found.each.through), found.shares
    slower = min(map(step_name, range(len(shares))), key=lambda name: float(one[name].mean()))
    own = len(shares)
    return [
        _carried_row(QUERY, 1, one[QUERY], one[QUERY], seed),
        _carried_row(BY_CLIENTS, 1, one[QUERY], one[BY_CLIENTS], seed),
        _carried_row(MOST, 1, one[QUERY], 1.0 / _of_steps(_seconds_each(one), shares), seed),
        _carried_row(QUERY, own, each[QUERY], each[QUERY], seed),
        _carried_row(SLOWER, 1, each[QUERY], one[slower], seed),
        _carried_row(SLOWER, own, each[QUERY], each[slower], seed),
        _carried_row(MOST, own, each[QUERY], 1.0 / _of_steps(_seconds_each(each), shares), seed),
    ]


def cpu_rows(found: Overhead) -> Rows:
    """Return the CPU time of an answer, of the engine and of door and clients: other load changes it less than rates.

    The least of the rounds is closest to what an answer takes.
    """
    rows: Rows = []
    for workers, carried in ((1, found.one), (len(found.shares), found.each)):
        names = [QUERY, *map(step_name, range(len(found.shares)))]
        rows += [
            {
                "asked for": name,
                "workers": workers,
                "engine, ms": _ms(min(carried.cpu[name])),
                "door and clients, ms": _ms(min(carried.outside[name])),
            }
            for name in names
        ]
    return rows


def length_rows(found: Overhead, seed: int) -> Rows:
    """Return what a query takes beyond its steps, and how long these have to be for it to carry 0.95 of them.

    On one worker that is what all steps take together. With a core for each step it is what each takes, if all take
    the same: whoever has n cores for n steps, and for door and clients too, has 1 / n of what is beyond on each.
    """
    one, each, steps = _arrays(found.one.through), _arrays(found.each.through), len(found.shares)
    taken, cpu = _of_steps(_seconds_each(one), found.shares), _arrays(found.one.cpu)
    return [
        _length_row("one worker, by the clock: all steps together", taken, 1.0 / one[QUERY] - taken, seed),
        _length_row(
            "one worker, by CPU time: all steps together",
            _of_steps(cpu, found.shares),
            cpu[QUERY] - _of_steps(cpu, found.shares),
            seed,
        ),
        _length_row(
            "a core for each step: each of them, if they are alike",
            taken / steps,
            1.0 / each[QUERY] - taken / steps,
            seed,
        ),
    ]


def _length_row(what: str, taken: Figures, beyond: Figures, seed: int) -> Row:
    found = mean_interval(1e3 * beyond, seed=seed)
    enough = [max(0.0, HELD / (1.0 - HELD) * one) for one in (found.value, found.low, found.high)]
    return {
        "what": what,
        "they take, ms": _ms(taken.mean()),
        "beyond, ms": str(found),
        f"{HELD} from, ms": f"{enough[0]:.1f} [{enough[1]:.1f}, {enough[2]:.1f}]",
    }


def _carried_row(what: str, workers: int, query: Figures, rates: Figures, seed: int) -> Row:
    return {
        "asked for": what,
        "workers": workers,
        "answers a second": round(float(rates.mean()), 1),
        "the query has of it": "" if what == QUERY else str(ratio_of_means(query, rates, seed=seed)),
    }


def _of_steps(seconds: Mapping[str, Figures], shares: Sequence[float]) -> Figures:
    """Return what the steps of a query take together, of which each counts by how many rows run it."""
    total: Figures = np.sum([share * seconds[step_name(number)] for number, share in enumerate(shares)], axis=0)
    return total


def _seconds_each(through: Mapping[str, Figures]) -> dict[str, Figures]:
    return {name: 1.0 / rates for name, rates in through.items()}


def _arrays(figures: Mapping[str, Sequence[float]]) -> dict[str, Figures]:
    return {name: np.array(values) for name, values in figures.items()}


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
    return mean_interval(100.0 * values, block=BLOCK, seed=seed).written("+.2f")


def _more(values: Figures, seed: int) -> str:
    return mean_interval(1e3 * values, block=BLOCK, seed=seed).written("+.3f")


def _ms(seconds: float | np.floating[Any]) -> float:
    return round(float(seconds) * 1e3, 3)
