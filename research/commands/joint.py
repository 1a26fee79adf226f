"""`python -m research joint`: exits, batching and deadlines together, live or simulated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Annotated

import typer

from latebind.bench import subject as bench
from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Backend, Conditions, DataOption, Model, Page, Repository, Tuning
from latebind.cli.console import JsonFile, Rows, console, reporting
from latebind.cli.sources import load_rows
from latebind.domain.errors import ConfigError
from research.joint import batches, goodput, refill
from research.joint.bound import least_work
from research.joint.live import on_engines
from research.joint.plots import joint_figures
from research.joint.report import JointReport
from research.joint.sides import engines
from research.joint.simulated import Costs, Scaling, on_costs
from research.live.contest import Contest, Part
from research.live.sides import Side
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = "All sides get the same requests in the same rounds."


class What(StrEnum):
    """The parts of the benchmark."""

    GOODPUT = "goodput"
    BATCHES = "batches"
    REFILL = "refill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model in a folder, and the rows to send to it, which only live runs need."""

    repository: Repository
    model: Model
    data: Annotated[str | None, typer.Option(help="The rows to send: an .npz file or package.module:function.")] = None
    data_option: DataOption = None

    def load(self) -> bench.Subject:
        """Return the model with its rows. Raises `ConfigError`."""
        if self.data is None:
            raise ConfigError("there are no rows to send: give --data, or --simulated")
        return bench.Subject(self.repository, self.model, *load_rows(self.data, self.data_option))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The number and the length of the blocks of requests."""

    rounds: Annotated[
        int, typer.Option(help="How many blocks of requests each side gets at each load and deadline, in each fold.")
    ] = 6
    seconds: Annotated[float, typer.Option(help="How many seconds a block of requests lasts.")] = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The sides to compare, and the loads, deadlines and largest batches. By default, those of each part."""

    load: Annotated[
        list[float] | None,
        typer.Option(
            help="Offered load. For goodput, a multiple of the base model's highest throughput; for batches, of "
            "its throughput one request at a time. May be repeated. Default: 0.8, 1 and 1.2 for goodput, 0.7 "
            "for batches."
        ),
    ] = None
    deadline: Annotated[
        list[float] | None,
        typer.Option(
            help="The deadline, as a multiple of the time that the base model takes for one request alone; may be "
            "repeated. Default: 2, 3, 5 and 10."
        ),
    ] = None
    side: Annotated[
        list[str] | None,
        typer.Option(
            help="For goodput: compare only these, named as in the tables. For batches: 'late', 'compacted' or "
            "'GATI batched'. May be repeated. Default: all."
        ),
    ] = None
    batch: Annotated[
        list[int] | None,
        typer.Option(help="For batches: the size of the largest batch; may be repeated. Default: 1, 2, 4, 8 and 16."),
    ] = None

    def by_load(self, blocks: Blocks) -> goodput.Plan:
        """Return the plan for measurements by load and deadline."""
        loads, deadlines = tuple(self.load or goodput.LOADS), tuple(self.deadline or goodput.DEADLINES)
        return goodput.Plan(loads, deadlines, blocks.rounds, blocks.seconds, tuple(self.side or ()))

    def by_size(self, blocks: Blocks) -> batches.Plan:
        """Return the plan for measurements by the largest batch. Raises `ConfigError` for an unknown kind of side."""
        load = (self.load or [batches.LOAD])[0]
        return batches.Plan.of(tuple(self.side or ()), self.batch or batches.SIZES, load, blocks.rounds, blocks.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Whether to simulate, and with which costs."""

    simulated: Annotated[
        bool,
        typer.Option("--simulated", help="Simulate on a virtual clock, with the measured costs, instead of measuring."),
    ] = False
    scaling: Annotated[
        Scaling,
        typer.Option(
            help="For --simulated: how the time of a stage grows with its batch. own: as measured; npu: as ResNet "
            "on LazyBatching's accelerator; steep: 32 rows take 2.5 times as long as one, as where weights "
            "come from memory."
        ),
    ] = Scaling.OWN

    def costs(self, subject: Subject) -> Costs:
        """Return the costs of the model, as measured or scaled."""
        return Costs.read(subject.repository, subject.model, self.scaling if self.simulated else Scaling.OWN)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command. `hold` runs a part, on live engines or on simulated ones."""

    model: str
    costs: Costs
    sides: Sides
    blocks: Blocks
    seed: int
    hold: Callable[[Mapping[str, Side], Part, Progress], None]


def joint(
    subject: Subject,
    *,
    part: Annotated[
        What,
        typer.Option(
            help="What to measure. goodput: answers within the deadline, by load and deadline; batches: what exits "
            "gain, by the largest batch; refill: refilling a batch against compacting it, saturated, beside "
            "what the cost model expects."
        ),
    ] = What.GOODPUT,
    sides: Sides,
    tuning: Tuning,
    clock: Clock,
    blocks: Blocks,
    backend: Backend = None,
    conditions: Conditions,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare policies with and without exits on the same model, core, arrivals, deadlines and thresholds.

    Each side has an engine of its own; they take turns. The best baseline of each kind in a round is the one that was
    best in all other rounds. Every side refuses and drops requests that cannot be in time, because otherwise nothing is
    answered in time beyond capacity. All sides at all loads and deadlines take over an hour: choose among them with
    --side, --load and --deadline. --simulated takes a minute.

    GATI takes part as published, where the rows of a batch of up to 16 wait for the last one and no request is shed,
    and tuned, at its best batch of 2 or more, with or without shedding. Where 'GATI, unshed' takes part, its run shows
    which requests can leave early, and so what no policy could exceed, even one that knew all arrivals and exits in
    advance.

    Example: `python -m research joint models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5 --load 1 --deadline 3 --rounds 2`
    """
    with reporting():
        live = None if clock.simulated else subject.load()
        costs, setting = clock.costs(subject), conditions.setting(backend)

        def hold(sides: Mapping[str, Side], what: Part, tell: Progress) -> None:
            if live is None:
                on_costs(costs, sides, what, seed=setting.seed, progress=tell)
            else:
                on_engines(live, sides, what, setting=setting, folds=tuning.wanted(), progress=tell)

        asked = Asked(subject.model, costs, sides, blocks, setting.seed, hold)
        calibrated = f"{tuning.folds} folds at {tuning.fidelity:g}" if tuning.folds else "calibrated as it is"
        how = f"simulated, {clock.scaling}" if clock.simulated else calibrated
        often = f"{blocks.rounds} rounds of {blocks.seconds:g} s"
        console.print(f"{subject.model}: {how}; {often}, seed {setting.seed}")
        files = Files(
            page=page,
            title=f"Exits, batching and deadlines: {asked.model}",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: found[part].raw,
        )
        tell_parts([part], RUN, asked, files)


def _goodput(asked: Asked, tell: Progress) -> Told:
    if asked.costs.whole.spec.kinds:
        raise ConfigError(
            f"{asked.model} is a sequence model, without exits: take --part refill, or `python -m research live`"
        )
    plan = asked.sides.by_load(asked.blocks)
    report = JointReport(asked.model, asked.seed, plan.chosen())
    work = least_work(asked.costs.whole, asked.costs.exits)

    async def part(contest: Contest, random: Random, tell: Progress) -> None:
        await goodput.measure(report, contest, plan, random, tell, work)

    asked.hold(engines(report.contenders), part, tell)
    cells = {f"{cell.load:.0%}, due after {cell.deadline:g} x": report.rows(cell) for cell in report.blocks}
    kinds, fidelities = report.kind_rows(), report.fidelities()
    tables: dict[str, Rows] = {
        "the base model": report.capacity_rows(),
        **cells,
        "times the answers in time of the best of each kind, chosen by the other rounds": kinds,
        "fidelity of all answers": [dict(fidelities)] if fidelities else [],
    }
    raw = {"capacities": report.capacities, "cells": cells, "kinds": kinds, "fidelity": fidelities}
    return Told(tables, lambda: joint_figures(report), raw)


def _batches(asked: Asked, tell: Progress) -> Told:
    plan = asked.sides.by_size(asked.blocks)
    report = batches.BatchesReport(plan, asked.seed)

    async def part(contest: Contest, random: Random, tell: Progress) -> None:
        await batches.measure(report, contest, random, tell)

    asked.hold(batches.sides(plan.kinds, plan.sizes), part, tell)
    what = "over the same policy without exits, medians of rounds"
    rows = report.rows()
    return Told({f"at {plan.load:.0%} of what the base model does serially: {what}": rows}, raw=rows)


def _refill(asked: Asked, tell: Progress) -> Told:
    served = asked.costs.exits
    bound = refill.refill_bound(*refill.unrolled(served), served.spec.max_batch)
    report = refill.RefillReport(bound, asked.seed)

    async def part(contest: Contest, random: Random, tell: Progress) -> None:
        await refill.measure(report, contest, served, asked.blocks.rounds, asked.blocks.seconds, random, tell)

    asked.hold(refill.sides(served), part, tell)
    rows = report.rows()
    return Told({f"with always enough to do, batches of {served.spec.max_batch}": rows}, raw=rows)


RUN: ByPart[What, Asked] = {What.GOODPUT: _goodput, What.BATCHES: _batches, What.REFILL: _refill}
