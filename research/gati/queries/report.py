"""Tables of simulated queries: accuracy and latency against the paper's baselines, and which models answered."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.cli.console import Row, Rows
from latebind.domain.query import NOT_RUN
from research.gati.queries.decision import Decision
from research.gati.queries.parts import Found, FoundLoaded
from research.gati.queries.sides import EVERY, OWN, PAPERS, Side, baseline, caches_only, replanned
from research.gati.queries.simulated import Figures, Result
from research.gati.queries.traffic import STEPS, TABLE_5

BLOCK = 100  # requests that are resampled together: they are independent
POINT, TIMES = 1.0, 1.26  # what the paper reports at once, of accuracy and of latency


def side_rows(found: Found, figure: Callable[[Result], str]) -> Rows:
    """Return one figure of every side at every deadline."""
    rows: Rows = []
    for side in next(iter(found.values())):
        row: Row = {"planner": side.label}
        rows.append(row | {f"{deadline * 1e3:g}": figure(sides[side]) for deadline, sides in found.items()})
    return rows


def accuracy(result: Result) -> str:
    """Write the share of requests that are right in time."""
    return f"{100 * result.right().mean():.2f}"


def accuracy_at_any_time(result: Result) -> str:
    """Write the share of requests that are right, late or not."""
    return f"{100 * result.right(in_time=False).mean():.2f}"


def latency(result: Result) -> str:
    """Write the mean latency in milliseconds."""
    return f"{1e3 * result.seconds.mean():.1f}"


def lateness(result: Result) -> str:
    """Write the share of requests that end late."""
    return f"{result.late.mean():.1%}"


def benefit_rows(found: Found, wrong: float = 0.0) -> Rows:
    """Return what replanning with learned caches gains each planner over its own baseline (figure 11)."""
    rows: Rows = []
    for deadline, sides in found.items():
        row: Row = {"deadline ms": f"{deadline * 1e3:g}"}
        rows.append(row | {name: compared(sides[replanned(name)], sides[baseline(name)], wrong) for name in EVERY})
    return rows


def part_rows(found: Found) -> Rows:
    """Return what caches alone gain over the baseline, and what replanning changes then."""
    rows: Rows = []
    for deadline, sides in found.items():
        row: Row = {"deadline ms": f"{deadline * 1e3:g}"}
        for name in EVERY:
            base, cached, ours = (sides[make(name)] for make in (baseline, caches_only, replanned))
            row[f"{name}: caches"] = _short(cached, base)
            row[f"{name}: replanning"] = _short(ours, cached)
        rows.append(row)
    return rows


def own_rows(found: Found) -> Rows:
    """Return what the own planner gains over each baseline, and where accuracy and latency gain enough at once."""
    rows: Rows = []
    for deadline, sides in found.items():
        for side in _own(sides):
            row: Row = {"deadline ms": f"{deadline * 1e3:g}", "planner": side.label}
            row |= {f"against {name}": compared(sides[side], sides[baseline(name)]) for name in EVERY}
            met = [name for name in EVERY if at_once(sides[side], sides[baseline(name)])]
            rows.append(row | {f"{POINT:g} point and {TIMES:g} times": ", ".join(met)})
    return rows


def better_rows(found: Found) -> Rows:
    """Return what the own planner gains over the better of equal and proportional split, all replanned."""
    rows: Rows = [{"deadline ms": f"{deadline * 1e3:g}"} for deadline in found]
    mean: Row = {"deadline ms": "mean of the sweep"}
    for side in _own(next(iter(found.values()))):
        gains = [_over_better(sides, side) for sides in found.values()]
        for row, values in zip(rows, gains, strict=True):
            row[side.label] = _points(values)
        mean[side.label] = _points(np.mean(gains, axis=0))
    return [*rows, mean]


def promise_rows(found: Found) -> Rows:
    """Return the worst and the best of the sweep for everybody who replans, against each baseline."""
    rows: Rows = []
    for side in (side for side in next(iter(found.values())) if side.caches and side.planner.replan):
        for other in EVERY:
            pairs = [(sides[side], sides[baseline(other)]) for sides in found.values()]
            gains = [100 * (ours.right() - theirs.right()).mean() for ours, theirs in pairs]
            late = [100 * (ours.late.mean() - theirs.late.mean()) for ours, theirs in pairs]
            quicker = [theirs.seconds.mean() / ours.seconds.mean() for ours, theirs in pairs]
            rows.append(
                {
                    "planner": side.label,
                    "against baseline": other,
                    "least gain, points": f"{min(gains):+.2f}",
                    "most": f"{max(gains):+.2f}",
                    "more are late, at most": f"{max(late):+.2f}",
                    "quicker": f"{min(quicker):.2f} to {max(quicker):.2f} times",
                    "both at once": ", ".join(_meeting(found, pairs)) or "nowhere",
                }
            )
    return rows


def model_rows(found: Found) -> Rows:
    """Return which models answered each step (figure 12), as shares of the requests that ran it."""
    rows: Rows = []
    for deadline, sides in found.items():
        for side in (make(name) for name in EVERY for make in (baseline, replanned)):
            row: Row = {"deadline ms": f"{deadline * 1e3:g}", "planner": side.label}
            rows.append(row | {name: models(sides[side], step) for step, name in enumerate(STEPS)})
    return rows


def loaded_rows(found: FoundLoaded) -> Rows:
    """Return how everybody does under load; who was shed is not right, and has no latency."""
    rows: Rows = []
    for (load, deadline), sides in found.items():
        for side, result in sides.items():
            row: Row = {"load": f"{load:g}", "deadline ms": f"{deadline * 1e3:g}", "planner": side.label}
            row["right in time %"] = f"{100 * result.right.mean():.2f}"
            row["mean ms"] = f"{1e3 * np.nanmean(result.seconds):.1f}"
            row["shed or late"] = f"{result.missed:.1%}"
            for name in PAPERS:
                theirs = sides[baseline(name)]
                times = np.nanmean(theirs.seconds) / np.nanmean(result.seconds)
                row[f"against {name}, baseline"] = f"{_points(result.right - theirs.right)}, {times:.2f}x"
            rows.append(row)
    return rows


def decision_rows(decisions: Sequence[Decision]) -> Rows:
    """Return the time that a pick takes."""
    return [
        {
            "planner": one.planner,
            "gate, us": f"{1e6 * one.gate:.0f}",
            "behind it, us": f"{1e6 * one.behind:.0f}",
            "gate, waits changed, us": f"{1e6 * one.renewed:.0f}",
        }
        for one in decisions
    ]


def models(result: Result, step: int) -> Mapping[str, float]:
    """Return the share of each model among those that ran a step."""
    ran = result.picks[:, step][result.picks[:, step] != NOT_RUN]
    shares = {timed.name: float((ran == option).mean()) for option, timed in enumerate(TABLE_5[step])}
    return {name: share for name, share in shares.items() if share}


def compared(ours: Result, theirs: Result, wrong: float = 0.0) -> str:
    """Write points of accuracy gained, and how many times quicker it is on average; with intervals."""
    times = ratio_of_means(theirs.seconds, ours.seconds, block=BLOCK)
    right = ours.right(wrong=wrong) - theirs.right(wrong=wrong)
    return f"{_points(right)}, {times.written('.2f', 'x')}"


def at_once(ours: Result, theirs: Result) -> bool:
    """Return whether accuracy is higher by a point and latency lower by 1.26 times, as the paper has it."""
    return gain(ours, theirs) >= POINT and theirs.seconds.mean() >= TIMES * ours.seconds.mean()


def gain(ours: Result, theirs: Result) -> float:
    """Return by how many points more requests are right in time."""
    return 100 * float((ours.right() - theirs.right()).mean())


def _short(ours: Result, theirs: Result) -> str:
    return f"{gain(ours, theirs):+.2f}, {theirs.seconds.mean() / ours.seconds.mean():.2f}x"


def _meeting(found: Found, pairs: Sequence[tuple[Result, Result]]) -> list[str]:
    return [f"{deadline * 1e3:g}" for deadline, pair in zip(found, pairs, strict=True) if at_once(*pair)]


def _own(sides: Iterable[Side]) -> list[Side]:
    """Return the own planner where it replans, with each price."""
    return [side for side in sides if side.planner.name == OWN and side.caches and side.planner.replan]


def _over_better(sides: Mapping[Side, Result], own: Side) -> Figures:
    theirs = [sides[replanned(name)].right() for name in PAPERS]
    return sides[own].right() - max(theirs, key=lambda right: float(right.mean()))


def _points(values: Figures) -> str:
    """Write a mean of differences in points, with its interval."""
    return mean_interval(values, block=BLOCK).scaled(100).written("+.2f")
