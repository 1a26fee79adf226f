"""`python -m research residency`: mCache's evaluation, beside bounds and models that come and go piece by piece."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Page, Trace
from latebind.cli.console import JsonFile, Rows, console, reporting
from latebind.domain.errors import ConfigError
from latebind.simulation.traces import REQUESTS, Pairing
from research.mcache import parts, plots, report
from research.mcache.azure import services_of
from research.mcache.crowd import CLIENTS, PATIENCE, SERVERS, crowd
from research.mcache.decision import decision_table
from research.mcache.models import BANDWIDTH, EVEN, FIXED, UNEVEN, Family, Storage
from research.mcache.paper import EXECUTION
from research.mcache.sides import Policy, policy
from research.policies import EVICTION
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = "Requests one after another; intervals are paired with LRU in the very same hours."


class Part(StrEnum):
    """The parts of the evaluation."""

    MODELS = "models"
    TABLE = "table"
    CDF = "cdf"
    ABLATION = "ablation"
    KNOWN = "known"
    MEMORY = "memory"
    MANY = "many"
    BOUNDS = "bounds"
    DECISION = "decision"
    CROWD = "crowd"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The requests, the models, the memory, and the number of seeds."""

    trace: Trace = None
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", help=f"A policy beside LRU: {', '.join(EVICTION)}; may be repeated. Default: all."),
    ] = None
    pairing: Annotated[
        list[Pairing] | None,
        typer.Option(help="How models are assigned to the services of the trace; may be repeated. Default: all ways."),
    ] = None
    memory: Annotated[
        list[float] | None,
        typer.Option(
            help="The memory, in percent of what all models take; may be repeated. Default: what the paper takes "
            "in each part."
        ),
    ] = None
    family: Annotated[
        Family,
        typer.Option(
            help="Which seven models. a: those that are served most; b: none takes more than a fifth of all memory."
        ),
    ] = Family.A
    uneven: Annotated[
        bool,
        typer.Option(
            "--uneven", help="Make the loads of each model take 0.5 to 3 times as long as its bytes alone would."
        ),
    ] = False
    bandwidth: Annotated[float, typer.Option(help="Megabytes that are loaded in a second.")] = BANDWIDTH / 1e6
    execution: Annotated[float, typer.Option(help="Seconds that a request takes beside the loading of its model.")] = (
        EXECUTION
    )
    clients: Annotated[int, typer.Option(min=1, help="For --part crowd: how many clients there are.")] = CLIENTS
    requests: Annotated[
        int, typer.Option(min=1, help="How many requests an hour has, where the trace has as many.")
    ] = REQUESTS
    seeds: Annotated[
        int, typer.Option(min=1, help="How many hours are played on each half of the trace, with seeds from 0 on.")
    ] = 10
    processes: Annotated[
        int, typer.Option(help="How many hours are played at the same time. Default: one for each core.")
    ] = 0

    def plan(self) -> parts.Plan:
        """Return the plan of the simulation."""
        factors = UNEVEN if self.uneven else EVEN
        return parts.Plan(
            services_of(self.trace),
            self.seeds,
            tuple(self.pairing or Pairing),
            self.shares(),
            self.family,
            Storage(bandwidth=self.bandwidth * 1e6, factors=factors, execution=self.execution),
            self.requests,
            self.processes,
        )

    def shares(self) -> tuple[float, ...]:
        """Return the shares of memory in ascending order. Raises `ConfigError`."""
        for percent in self.memory or ():
            if not 0 < percent <= 100:
                raise ConfigError(
                    f"--memory {percent:g} is no share of the memory: give more than 0 percent, at most 100"
                )
        return tuple(sorted(percent / 100 for percent in self.memory or ()))

    def sides(self) -> tuple[Policy, ...]:
        """Return the sides to compare, without LRU. Raises `ConfigError`."""
        unknown = [name for name in self.policies or () if name not in EVICTION]
        if unknown:
            raise ConfigError(f"there is no policy {unknown[0]!r}: take some of {', '.join(EVICTION)}")
        return tuple([policy(name) for name in self.policies or EVICTION])

    def __str__(self) -> str:
        uneven = ", uneven" if self.uneven else ""
        return (
            f"{self.seeds} seeds on each half of {self.trace or 'a trace that is drawn'}, family {self.family}, "
            f"loads take {FIXED:g} s and {self.bandwidth:g} MB/s{uneven}, runs {self.execution:g} s"
        )


def residency(
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to play. models: the models that are loaded, and table 2; table: table 3, figures 6, 7, 9, "
            "10; cdf: figure 8; ablation: late without one of its techniques at a time; known: with requests "
            "that wait; memory: how much memory is saved at equal loading time; many: a model for each "
            "service; bounds: the least loading that is possible, and late told all rates; decision: the time "
            "of one decision with 10,000 models; crowd: clients that each wait for their answer, in real "
            "time; open: requests as they come, in real time. May be repeated. Default: all."
        ),
    ] = None,
    played: Played,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Play mCache's evaluation: seven models in less memory than they take, requests after an Azure trace.

    Requests are played one after another, and each loads what is missing before the next one begins. That is the
    paper's latency, which leaves queueing out. Stages that load while the stages before them run cost no waiting. The
    seed draws which service gets which model, the instants and the hour, on both halves of the trace. Intervals are of
    95 %, paired with LRU in the very same hours. `iam-oracle` and `belady` are told the future and `late-oracle` is
    told all rates; the other policies learn from past requests.

    A load takes 0.15 s plus its bytes divided by the bandwidth; with that, LRU loads for as long as in table 3, within
    a sixth. A request takes 0.26 s beside loading. Without --trace, counts are drawn with rates as in the trace: the
    policies rank the same, and their gain over LRU is within a few points.

    Example: `python -m research residency --part table --pairing random --policy iam --policy late --seeds 3`
    """
    with reporting():
        asked = Asked(played.plan(), played.sides(), played.clients)
        console.print(str(played))
        files = Files(
            page=page,
            title="Models in less memory than they take",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: {one: told.tables for one, told in found.items()},
        )
        tell_parts(part or Part, RUN, asked, files)


@dataclass(frozen=True, slots=True)
class Asked:
    """The simulations to run, and the sides to compare."""

    plan: parts.Plan
    sides: tuple[Policy, ...]
    clients: int = CLIENTS


def _models(asked: Asked, tell: Progress) -> Told:
    plan = asked.plan
    return Told(
        {
            f"family {plan.family}": report.model_rows(plan.family, plan.storage),
            "table 2, and what its models would load in here": report.penalty_rows(plan.storage),
        }
    )


def _table(asked: Asked, tell: Progress) -> Told:
    found, execution = parts.table(asked.plan, asked.sides, tell), asked.plan.execution

    tables = _by_workload("one request after another (table 3, figures 6, 7, 9)", asked.plan, found)
    throughput = report.throughput_rows(found, execution)
    if throughput:
        tables["throughput over that of LFU, random (figure 10)"] = throughput
    return Told(
        tables,
        lambda: [
            *plots.latency_figures(found, execution),
            *(plots.hit_figure(found, workload) for workload in asked.plan.pairings),
        ],
    )


def _cdf(asked: Asked, tell: Progress) -> Told:
    found = parts.distribution(asked.plan, tell)

    return Told(
        {"how long requests load (figure 8)": report.distribution_rows(found)},
        lambda: plots.distribution_figures(found),
    )


def _ablation(asked: Asked, tell: Progress) -> Told:
    found = parts.ablation(asked.plan, tell)
    return Told(_by_workload("late without one thing at a time", asked.plan, found))


def _known(asked: Asked, tell: Progress) -> Told:
    found = parts.known(asked.plan, tell)
    return Told(_by_workload("requests that wait and are known", asked.plan, found))


def _memory(asked: Asked, tell: Progress) -> Told:
    found = parts.memory(asked.plan, tell)

    rows = report.saved_rows(found, asked.plan.shares or parts.TABLE_3)
    return Told(
        {"memory to load for no longer than LRU": rows}, lambda: plots.latency_figures(found, asked.plan.execution)
    )


def _many(asked: Asked, tell: Progress) -> Told:
    found = parts.many(asked.plan, asked.sides, tell)
    return Told(_by_workload("a model for each service", asked.plan, found))


def _bounds(asked: Asked, tell: Progress) -> Told:
    found = parts.bounds(asked.plan, tell)
    return Told({"mean loading time in s beside the least possible": report.bound_rows(found)})


def _decision(asked: Asked, tell: Progress) -> Told:
    decisions = decision_table([side.config.policy for side in asked.sides])
    return Told({"one decision, in microseconds": report.decision_rows(decisions)})


def _crowd(asked: Asked, tell: Progress) -> Told:
    shares = asked.plan.shares or parts.TABLE_3
    found = crowd(asked.plan, SERVERS, shares, tell, clients=asked.clients)
    return Told(
        {f"{asked.clients} clients, each waits for its answer; the bound is {PATIENCE:g} s": report.crowd_rows(found)}
    )


def _open(asked: Asked, tell: Progress) -> Told:
    found = crowd(asked.plan, SERVERS, asked.plan.shares or parts.TABLE_3, tell, clients=0)
    return Told({f"requests when they come; the bound is {PATIENCE:g} s": report.crowd_rows(found)})


def _by_workload(title: str, plan: parts.Plan, found: parts.Found) -> dict[str, Rows]:
    workloads = dict.fromkeys(case.workload for case in found)
    return {f"{workload}: {title}": report.table_rows(found, workload, plan.execution) for workload in workloads}


RUN: ByPart[Part, Asked] = {
    Part.MODELS: _models,
    Part.TABLE: _table,
    Part.CDF: _cdf,
    Part.ABLATION: _ablation,
    Part.KNOWN: _known,
    Part.MEMORY: _memory,
    Part.MANY: _many,
    Part.BOUNDS: _bounds,
    Part.DECISION: _decision,
    Part.CROWD: _crowd,
    Part.OPEN: _open,
}
