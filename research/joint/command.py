"""`python -m research joint`: exits, batches and deadlines together."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Annotated

import numpy as np
from typer import Option

from latebind.bench.rounds import Progress
from latebind.bench.statistics import median_interval
from latebind.cli.bench.options import Subject, Tuning
from latebind.cli.console import reporting
from latebind.domain.errors import ConfigError
from research.contest import Contest, Report, Turns
from research.evaluation import Conditions, Found, Output, evaluate
from research.joint import sides
from research.joint.sides import BASELINES, OURS, Kind
from research.sides import SERIAL, Figures, chosen

LOADS, DEADLINES = (0.8, 1.0, 1.2), (2.0, 3.0, 5.0, 10.0)
LOAD, UNHURRIED = 0.7, 1e4  # of the serial capacity: who forms larger batches has more to spare; nobody is late


def joint(
    subject: Subject,
    *,
    batch: Annotated[list[int] | None, Option(help="For batches: the size of the largest; may be repeated.")] = None,
    turns: Turns,
    tuning: Tuning,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare policies with and without exits on the same model, core, arrivals, deadlines and thresholds.

    Parts: goodput (answers within the deadline, by load and deadline; without --part only this), batches (what exits
    gain, by the largest batch; sides are 'late', 'compacted', 'GATI batched'), refill (refilling a batch against
    compacting it, saturated). For goodput a load is a multiple of the base model's
    highest throughput, for batches of its throughput one at a time.

    Each side has an engine of its own; they take turns. Every side refuses and drops requests that cannot be in time,
    because otherwise nothing is answered in time beyond capacity. All sides at all loads and deadlines take over an
    hour: choose among them with --side, --load and --deadline. --simulated takes a minute.

    GATI takes part as published, where the rows of a batch of up to 16 wait for the last one and no request is shed,
    and tuned, at its best batch of 2 or more, with or without shedding.

    Example: `python -m research joint models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5 --load 1 --deadline 3 --rounds 2`
    """
    with reporting():
        served, seed, wanted = turns.costs(subject).exits, conditions.seed, tuple(turns.side or ())

        def goodput(on_progress: Progress) -> Found:
            if served.spec.kinds:
                raise ConfigError(f"{subject.model} is a sequence model, without exits: take --part refill")
            some = chosen(sides.contenders(), wanted, always=(SERIAL, OURS))
            plan, report = turns.plan(LOADS, DEADLINES, Kind.WHOLE), Report(some, (OURS,), BASELINES, seed)
            turns.hold(subject, some, partial(report.measure, plan), conditions, on_progress, tuning=tuning)
            return report.found()

        def batches(on_progress: Progress) -> Found:
            kinds, sizes = tuple(chosen(sides.WITHOUT, wanted)), tuple(batch or sides.BATCHES)
            some = sides.by_batch(kinds, sizes)
            plan, report = turns.plan((LOAD,), (UNHURRIED,)), Report(some, (SERIAL,), (), seed)
            turns.hold(subject, some, partial(report.measure, plan), conditions, on_progress, tuning=tuning)
            title = f"exits over the same policy without, at {plan.loads[0]:.0%} of the serial capacity; medians"
            return Found({title: gain_rows(report, kinds, sizes)})

        def refill(on_progress: Progress) -> Found:
            some = sides.refilling(served)
            report = Report(some, ("late",), (), seed)

            async def part(contest: Contest, random: Random, on_progress: Progress) -> None:
                found = await contest.saturated(list(some), turns.seconds, turns.rounds, random, on_progress)
                for name, times in found.items():
                    report.saturated.setdefault(name, []).extend(times)
                report.alone.append(contest.alone)

            turns.hold(subject, some, part, conditions, on_progress, tuning=tuning)
            return Found({f"batches of {served.spec.max_batch}": report.saturated_rows(sides.ALONE)})

        parts = {"goodput": goodput, "batches": batches, "refill": refill}
        evaluate(parts if output.part else {"goodput": goodput}, output)


def gain_rows(report: Report, kinds: Sequence[str], sizes: Sequence[int]) -> list[dict[str, object]]:
    """Return by size and kind of exits how many times less a request takes with them, and how many more end.

    How that changes with the size is taken by rounds, as the median: a pause of the machine spoils only one of them.
    """
    (cell,) = report.blocks
    means = {name: report.means(cell, name) for name in report.sides}
    times = {name: np.array(some) for name, some in report.saturated.items()}

    def gains(figures: dict[str, Figures], kind: str, size: int) -> Figures:
        return np.divide(figures[sides.named(sides.WITHOUT[kind], size)], figures[sides.named(kind, size)])

    def told(figures: Figures) -> str:
        return str(median_interval(figures.tolist(), seed=report.seed))

    return [
        {
            "exits": kind,
            "largest batch": size,
            "with ms": f"{np.median(means[sides.named(kind, size)]) * 1e3:.2f}",
            "times less": told(gains(means, kind, size)),
            f"of batch {sizes[0]}": told(gains(means, kind, size) / gains(means, kind, sizes[0])),
            "times more, saturated": told(gains(times, kind, size)),
            f"of batch {sizes[0]}, saturated": told(gains(times, kind, size) / gains(times, kind, sizes[0])),
        }
        for kind in kinds
        for size in sizes
    ]
