"""`python -m research joint`."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Annotated

from typer import Option

from latebind.bench import subject as bench
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.bench.subject import answerable
from latebind.cli.bench.options import Tuning
from latebind.cli.console import reporting
from latebind.domain.errors import ConfigError
from research.evaluation import (
    Conditions,
    Floats,
    Found,
    Load,
    Output,
    Rounds,
    Seconds,
    SideName,
    Subject,
    evaluate,
)
from research.joint import batches, goodput, refill
from research.joint.bound import least_work
from research.joint.simulated import Costs, Scaling, on_costs
from research.live import Contest, Measure, session
from research.sides import Side

KNOWN = 2_000  # rows, at most, that are asked for: the right answers come first, one after another


def joint(
    subject: Subject,
    *,
    load: Load = None,
    deadline: Annotated[Floats, Option(help="Times what the base model takes for one; may be repeated.")] = None,
    side: SideName = None,
    batch: Annotated[list[int] | None, Option(help="For batches: the size of the largest; may be repeated.")] = None,
    simulated: Annotated[bool, Option("--simulated", help="Simulate on a virtual clock, with measured costs.")] = False,
    scaling: Annotated[Scaling, Option(help="For --simulated: how a stage's time grows with its batch.")] = Scaling.OWN,
    rounds: Rounds = 6,
    seconds: Seconds = 1.5,
    tuning: Tuning,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare policies with and without exits on the same model, core, arrivals, deadlines and thresholds.

    Parts: goodput (answers within the deadline, by load and deadline; without --part only this), batches (what exits
    gain, by the largest batch; sides are 'late', 'compacted', 'GATI batched'), refill (refilling a batch against
    compacting it, saturated, beside what the cost model expects). For goodput a load is a multiple of the base model's
    highest throughput, for batches of its throughput one at a time.

    Each side has an engine of its own; they take turns. The best baseline of each kind in a round is the one that was
    best in all other rounds. Every side refuses and drops requests that cannot be in time, because otherwise nothing is
    answered in time beyond capacity. All sides at all loads and deadlines take over an hour: choose among them with
    --side, --load and --deadline. --simulated takes a minute; its scalings are own (as measured), npu (as ResNet on
    LazyBatching's accelerator) and steep (32 rows take 2.5 times as long as one, as where weights come from memory).

    GATI takes part as published, where the rows of a batch of up to 16 wait for the last one and no request is shed,
    and tuned, at its best batch of 2 or more, with or without shedding. Where 'GATI, unshed' takes part, its run shows
    which requests can leave early, and so what no policy could exceed, even one that knew all arrivals and exits.

    Example: `python -m research joint models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5 --load 1 --deadline 3 --rounds 2`
    """
    with reporting():
        rows = None if simulated else subject.load()
        setting = conditions.setting()
        costs = Costs.read(subject.repository, subject.model, scaling if simulated else Scaling.OWN)

        def hold(sides: Mapping[str, Side], measure: Measure, tell: Progress) -> None:
            """Run a part on simulated sides, or on live engines, once in each fold."""
            if rows is None:
                return on_costs(costs, sides, measure, seed=setting.seed, progress=tell)
            for number, here in enumerate(answerable(rows, tuning.wanted(), setting, tell)):
                with pinned(setting.frontend_cores):
                    asyncio.run(on_engines(here, sides, measure, setting, Random(setting.seed + number), tell))
            return None

        def by_load(tell: Progress) -> Found:
            if costs.whole.spec.kinds:
                raise ConfigError(f"{subject.model} is a sequence model, without exits: take --part refill")
            loads, deadlines = tuple(load or goodput.LOADS), tuple(deadline or goodput.DEADLINES)
            plan = goodput.Plan(loads, deadlines, rounds, seconds, tuple(side or ()))
            report = goodput.JointReport(setting.seed, plan.chosen())
            work = least_work(costs.whole, costs.exits)

            async def measure(contest: Contest, random: Random, tell: Progress) -> None:
                await goodput.measure(report, contest, plan, random, tell, work)

            hold(report.contenders, measure, tell)
            return report.found()

        def by_size(tell: Progress) -> Found:
            sizes, at = batch or batches.SIZES, (load or [batches.LOAD])[0]
            plan = batches.Plan.of(tuple(side or ()), sizes, at, rounds, seconds)
            report = batches.BatchesReport(plan, setting.seed)

            async def measure(contest: Contest, random: Random, tell: Progress) -> None:
                await batches.measure(report, contest, random, tell)

            hold(batches.sides(plan.kinds, plan.sizes), measure, tell)
            what = "over the same policy without exits, medians of rounds"
            return Found({f"at {at:.0%} of what the base model does serially: {what}": report.rows()})

        def refilled(tell: Progress) -> Found:
            served = costs.exits
            bound = refill.refill_bound(*refill.unrolled(served), served.spec.max_batch)
            report = refill.RefillReport(bound, setting.seed)

            async def measure(contest: Contest, random: Random, tell: Progress) -> None:
                await refill.measure(report, contest, served, rounds, seconds, random, tell)

            hold(refill.sides(served), measure, tell)
            return Found({f"with always enough to do, batches of {served.spec.max_batch}": report.rows()})

        parts = {"goodput": by_load, "batches": by_size, "refill": refilled}
        evaluate(parts if output.part else {"goodput": by_load}, output)


async def on_engines(
    here: bench.Subject,
    sides: Mapping[str, Side],
    measure: Measure,
    setting: bench.Setting,
    random: Random,
    tell: Progress,
) -> None:
    """Run a part on live engines: one for each side, on the same core, asked in turn for the same rows."""
    tell(f"starting {len(sides)} engines", 0.0)
    async with session(here.path, sides, here.rows(0, KNOWN), setting, known=KNOWN) as contest:
        await measure(contest, random, tell)
