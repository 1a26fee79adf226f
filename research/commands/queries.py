"""`python -m research queries`: GATI's evaluation of replanning, simulated, beside a planner of our own."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

import typer

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Page, Processes, Seed
from latebind.cli.console import JsonFile, Rows, console, reporting
from latebind.domain.errors import ConfigError
from research.gati.queries import parts, plots, report
from research.gati.queries.decision import decision
from research.gati.queries.sides import EVERY
from research.gati.queries.traffic import Traffic
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = (
    "The traffic application of GATI, one request after another; baselines have no learned caches and do not replan."
)


class Part(StrEnum):
    """The parts of the evaluation."""

    GAINS = "gains"
    TIGHT = "tight"
    MODELS = "models"
    WRONG = "wrong"
    LOADED = "loaded"
    DECISION = "decision"


PRICES = (0.0, 1.0)  # accuracy alone, and a point of it for 10 ms
LOADS = (0.3, 0.6, 0.9)
WRONG = (0.003, 0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The deadlines, learned caches, number of requests and loads to simulate."""

    step_ms: Annotated[float, typer.Option(help="The step between two deadlines, which go from 60 to 200 ms.")] = 20.0
    deadline_ms: Annotated[
        list[float] | None, typer.Option(help="A deadline to take instead of those; may be repeated.")
    ] = None
    requests: Annotated[
        int, typer.Option(help="How many requests each planner gets at each deadline, the same for all.")
    ] = 20_000
    price: Annotated[
        list[float] | None,
        typer.Option(
            help="Also run the planner `expected` with this price of a second, as a share of accuracy; may be "
            "repeated. Default: 0 and 1."
        ),
    ] = None
    gain: Annotated[
        float,
        typer.Option(
            help="How many times faster learned caches make the gate on average. Default: as the paper reports."
        ),
    ] = 0.0
    places: Annotated[int, typer.Option(help="How many learned caches the gate has.")] = 8
    wrong: Annotated[
        list[float] | None, typer.Option(help="The share of early exits that are wrong; may be repeated.")
    ] = None
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="Offered load; 1 is what 4 workers sustain with the baseline that splits the deadline equally. "
            "May be repeated."
        ),
    ] = None
    loaded_requests: Annotated[int, typer.Option(help="How many requests each planner gets at each load.")] = 4000

    def plan(self, seed: int, processes: int) -> parts.Plan:
        """Return the plan of the simulation. Raises `ConfigError`."""
        deadlines, loads = self.deadlines(), tuple(self.load or LOADS)
        if not all(number > 0 for number in (self.requests, self.loaded_requests, *deadlines, *loads)):
            raise ConfigError("requests, deadlines and loads: give more than 0 of each")
        traffic, prices = Traffic(self.places, self.gain), tuple(self.price or PRICES)
        return parts.Plan(deadlines, prices, traffic, self.requests, loads, self.loaded_requests, seed, processes)

    def deadlines(self) -> tuple[float, ...]:
        """Return the deadlines in seconds. Raises `ConfigError`."""
        if self.deadline_ms:
            return tuple(ms / 1e3 for ms in self.deadline_ms)
        if not self.step_ms > 0:
            raise ConfigError(f"step-ms is {self.step_ms}: give more than 0")
        return parts.sweep(self.step_ms / 1e3)

    def __str__(self) -> str:
        deadlines = ", ".join(f"{deadline * 1e3:g}" for deadline in self.deadlines())
        return (
            f"{self.requests} requests at deadlines of {deadlines} ms, {self.places} places to leave a gate, "
            f"gain {self.gain or 'as the paper reports'}"
        )


def queries(
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to simulate. gains: figure 11, and the planners against each other; tight: accuracy and "
            "latency at once, with deadlines of 60 to 100 ms in steps of 5; models: figure 12; wrong: what is "
            "left of the gain when learned caches err; loaded: Poisson arrivals into the scheduler; decision: "
            "how long the planner takes to pick a model. May be repeated. Default: all."
        ),
    ] = None,
    played: Played,
    seed: Seed = 0,
    processes: Processes = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate GATI's section 7.3: a gate, then faces (46 %) or vehicles (45 %), each with the models of table 5.

    The planners are: the deadline split equally or in proportion, each with and without replanning, and `expected`.
    That one maximises the expected accuracy of the whole query, less the price of its time. Without `--price` it takes
    the price that divides what learned caches earn between accuracy and latency (`latebind/queries/bargain.py`).

    A request is right if all of its steps are right and it is in time; it counts with the probability of that, given
    the models that ran. `research/gati/queries/traffic.py` says where the gate's learned caches are. Requests come one
    after another, as in the paper, except in the part `loaded`. Intervals (95 %) are over requests, paired.

    Example: `python -m research queries --part gains --step-ms 10 --price 1`
    """
    with reporting():
        asked = Asked(played.plan(seed, processes), tuple(played.wrong or WRONG))
        console.print(f"{played}, seed {seed}")
        files = Files(
            page=page,
            title="Queries",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: {one: told.tables for one, told in found.items()},
        )
        tell_parts(part or Part, RUN, asked, files)


@dataclass(frozen=True, slots=True)
class Asked:
    """The simulations to run, each once for all parts that need it, and the share of wrong hits of learned caches."""

    plan: parts.Plan
    wrong: tuple[float, ...]
    known: list[parts.Found] = field(default_factory=list)

    def found(self, tell: Progress) -> parts.Found:
        """Return the results of every side at every deadline."""
        if not self.known:
            self.known.append(parts.play(self.plan, tell))
        return self.known[0]


def _gains(asked: Asked, tell: Progress) -> Told:
    found = asked.found(tell)

    tables: dict[str, Rows] = {
        "right in time, % by deadline in ms": report.side_rows(found, report.accuracy),
        "right, in time or not, %": report.side_rows(found, report.accuracy_at_any_time),
        "mean latency, ms": report.side_rows(found, report.latency),
        "late": report.side_rows(found, report.lateness),
        "gained over a planner's own baseline, points, and times quicker (figure 11)": report.benefit_rows(found),
        "what caches alone gain, and what replanning adds": report.part_rows(found),
        "our planner against baselines": report.own_rows(found),
        "expected over the better of equal and proportional, all replanned": report.better_rows(found),
        "the worst and the best of the sweep": report.promise_rows(found),
    }
    return Told(tables, lambda: plots.benefit_figures(found))


def _tight(asked: Asked, tell: Progress) -> Told:
    found = parts.play(replace(asked.plan, deadlines=parts.tight()), tell)
    return Told(
        {
            "our planner against baselines, tight deadlines": report.own_rows(found),
            "the worst and the best of tight deadlines": report.promise_rows(found),
        }
    )


def _models(asked: Asked, tell: Progress) -> Told:
    found = asked.found(tell)

    return Told({"who answered (figure 12)": report.model_rows(found)}, lambda: plots.model_figures(found))


def _wrong(asked: Asked, tell: Progress) -> Told:
    found = asked.found(tell)
    return Told(
        {
            f"gained over a planner's own baseline where {share:.1%} of early exits are wrong": report.benefit_rows(
                found, share
            )
            for share in asked.wrong
        }
    )


def _loaded(asked: Asked, tell: Progress) -> Told:
    rows = report.loaded_rows(parts.play_loaded(asked.plan, tell))
    return Told({f"under load, {asked.plan.loaded_requests} requests": rows})


def _decision(asked: Asked, tell: Progress) -> Told:
    return Told({"a pick takes (median)": report.decision_rows([decision(name) for name in EVERY])})


RUN: ByPart[Part, Asked] = {
    Part.GAINS: _gains,
    Part.TIGHT: _tight,
    Part.MODELS: _models,
    Part.WRONG: _wrong,
    Part.LOADED: _loaded,
    Part.DECISION: _decision,
}
