"""`python -m research joint`: exits, batches and deadlines together."""

from collections.abc import Sequence
from functools import partial
from math import ceil, floor
from random import Random
from typing import Annotated

import numpy as np
from typer import Option

from latebind.batching.costs import shares_alive
from latebind.bench.rounds import Progress
from latebind.bench.statistics import median_interval
from latebind.cli.bench.options import Tuning
from latebind.cli.console import reporting
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve
from latebind.domain.errors import ConfigError
from latebind.domain.model import StageKind
from research.contest import Contest, Report, Turns
from research.evaluation import Conditions, Found, Output, Subject, evaluate
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
    compacting it, saturated, beside what the cost model expects). For goodput a load is a multiple of the base model's
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

        def goodput(tell: Progress) -> Found:
            if served.spec.kinds:
                raise ConfigError(f"{subject.model} is a sequence model, without exits: take --part refill")
            some = chosen(sides.contenders(), wanted, always=(SERIAL, OURS))
            plan, report = turns.plan(LOADS, DEADLINES, Kind.WHOLE), Report(some, (OURS,), BASELINES, seed)
            turns.hold(subject, some, partial(report.measure, plan), conditions, tell, tuning=tuning)
            return report.found()

        def batches(tell: Progress) -> Found:
            kinds, sizes = tuple(chosen(sides.WITHOUT, wanted)), tuple(batch or sides.BATCHES)
            some = sides.by_batch(kinds, sizes)
            plan, report = turns.plan((LOAD,), (UNHURRIED,)), Report(some, (SERIAL,), (), seed)
            turns.hold(subject, some, partial(report.measure, plan), conditions, tell, tuning=tuning)
            title = f"exits over the same policy without, at {plan.loads[0]:.0%} of the serial capacity; medians"
            return Found({title: gain_rows(report, kinds, sizes)})

        def refill(tell: Progress) -> Found:
            some = sides.refilling(served)
            report, bound = Report(some, ("late",), (), seed), refill_bound(*unrolled(served), served.spec.max_batch)

            async def part(contest: Contest, random: Random, tell: Progress) -> None:
                found = await contest.saturated(list(some), turns.seconds, turns.rounds, random, tell)
                for name, times in found.items():
                    report.saturated.setdefault(name, []).extend(times)
                report.alone.append(contest.alone)

            turns.hold(subject, some, part, conditions, tell, tuning=tuning)
            title = f"batches of {served.spec.max_batch}; the cost model allows {bound:.3f} times compaction alone"
            return Found({title: report.saturated_rows(sides.ALONE)})

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


def refill_bound(curves: Sequence[Curve], shares: Sequence[float], batch: int) -> float:
    """Return how many times more requests are answered at most if batches of B stay full at every stage.

    Compaction runs a batch to its end, while it shrinks; refilling gives the places of requests that have left to
    others. That is the sum over stages s of c_s(B S_s), over that of S_s c_s(B), S_s being the share of requests that
    run stage s: 1 where costs are proportional to the batch, 1 over the mean share where they do not depend on it. No
    stage can do with less than full batches; what newcomers take to catch up comes on top.
    """

    def at(curve: Curve, rows: float) -> float:
        low, high = floor(rows), ceil(rows)
        below = curve.at(low) if low else 0.0
        return below if low == high else below + (rows - low) * (curve.at(high) - below)

    compacted = sum(at(curve, batch * share) for curve, share in zip(curves, shares, strict=True))
    return compacted / sum(share * curve.at(batch) for curve, share in zip(curves, shares, strict=True))


def unrolled(served: ServedModel) -> tuple[list[Curve], list[float]]:
    """Return the cost of each stage, of a decoder of each of its steps, and the share of requests that run it.

    Those before the last run with all who have not left at a learned cache; a decoder's step with all whose answer is
    as long. Where lookups are waited for, they are part of their stage; inputs are taken to be as long as answers are.
    """
    spec, costs = served.spec, served.costs
    curves: list[Curve] = []
    shares = shares_alive(spec, costs)
    for stage, curve in enumerate(costs.stages):
        if spec.kind(stage) is StageKind.DECODER:
            lengths = np.array(costs.output_steps)
            steps = range(int(lengths.max()))
            return curves + [curve for _ in steps], shares[:stage] + [float((lengths > step).mean()) for step in steps]
        inputs = round(float(np.mean(costs.output_steps))) if stage in costs.slopes else 1
        known = [curve, *(some[stage] for some in (costs.lookups, costs.slopes) if stage in some)]
        batches = tuple(sorted({batch for one in known for batch in one.batches}))
        curves.append(Curve(batches, tuple(costs.step(stage, batch, inputs) for batch in batches)))
    return curves, shares[:-1]
