"""`python -m research elastic`: Ebird's evaluation, beside TensorFlow Serving's policies and a stronger baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

import typer

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Page, Processes
from latebind.cli.console import JsonFile, console, reporting
from latebind.domain.errors import ConfigError
from research.ebird import parts, plots, report
from research.ebird.sides import ELASTIC, EVALUATED, OPTIMAL, PARTS, Kind
from research.ebird.simulated import QOS, Burst, Stable
from research.hardware.chip import SIX, TITAN_RTX, Chip, Sharing
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = "Simulated on a Titan RTX; baselines are the best of their kind in each cell."


class Part(StrEnum):
    """The parts of the evaluation."""

    RISING = "rising"
    SPLIT = "split"
    BURSTS = "bursts"
    THROUGHPUT = "throughput"
    ABLATIONS = "ablations"
    DAY = "day"
    GAPS = "gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The number of seeds, the length of runs, and the low load."""

    seeds: Annotated[
        int, typer.Option(help="How often each cell of a table is run, each time with another seed, from 0 on.")
    ] = 5
    seconds: Annotated[
        float, typer.Option(help="How many seconds requests arrive, in a search for the throughput and in a day.")
    ] = 10
    low: Annotated[float, typer.Option(help="The low load of the day, as a share of the high load.")] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The GPU to simulate."""

    launch_ms: Annotated[
        float, typer.Option(help="Milliseconds that a server which batches on the host needs between two batches.")
    ] = TITAN_RTX.launch * 1e3
    sharing: Annotated[
        Sharing, typer.Option(help="How concurrent runs share the GPU when together they want more than all of it.")
    ] = TITAN_RTX.sharing
    calibrated: Annotated[
        bool,
        typer.Option(
            "--calibrated", help="Measure the CUDA device of this machine instead of taking the figures of a Titan RTX."
        ),
    ] = False

    def chip(self) -> Chip:
        """Return the GPU, calibrated on this machine if the option says so."""
        chip = TITAN_RTX
        if self.calibrated:
            from research.ebird.calibrate import calibrated

            chip = calibrated()
        return replace(chip, launch=self.launch_ms / 1e3, sharing=self.sharing)

    def __str__(self) -> str:
        return f"{self.launch_ms:g} ms between batches made on the host, shared {self.sharing}"


def elastic(
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to simulate. rising: figure 2; split: figure 6; bursts: figure 8; throughput: figure 9; "
            "ablations: each technique of Ebird by itself; day: a load that rises and falls; gaps: throughput "
            "by the time between two batches. May be repeated. Default: all."
        ),
    ] = None,
    network: Annotated[
        list[str] | None, typer.Option(help=f"A network: {', '.join(SIX)}; may be repeated. Default: all.")
    ] = None,
    runs: Runs,
    card: Card,
    processes: Processes = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate Ebird's evaluation: six networks on a Titan RTX, batches of 32, 99 % of answers within 200 ms.

    Elastic batches (algorithm 1, workers of 1, 1, 2, 4, 8 and 16, a pool of inputs on the GPU) are compared with
    batches made on the host (no window, the best of six windows, padded), and with batches without a window that use
    the pool, on one worker or on 2 or 4 of any size, whichever is better. `late` is shown beside them.

    The high load is what the best window sustains. `research/hardware/chip.py` says where each figure of the GPU
    comes from and what is assumed; nothing here is measured on a GPU.

    Example: `python -m research elastic --part throughput --network resnet50 --seeds 3`
    """
    with reporting():
        unknown = [name for name in network or () if name not in SIX]
        if unknown:
            raise ConfigError(f"there is no network {unknown[0]!r}: take some of {', '.join(SIX)}")
        networks = tuple(network or SIX)
        asked = Asked(parts.Plan(networks, runs.seeds, runs.seconds, runs.low, card.chip(), processes))
        console.print(
            f"{runs.seeds} seeds, searches and days of {runs.seconds:g} s, low load {runs.low:g} of the high one, "
            f"{card}, target {QOS * 1e3:g} ms"
        )
        files = Files(
            page=page,
            title="Elastic batches",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: {one: told.tables for one, told in found.items()},
        )
        tell_parts(part or Part, RUN, asked, files)


@dataclass(frozen=True, slots=True)
class Asked:
    """The simulations to run, with a cache of the loads that optimal wait sustains, which several parts need."""

    plan: parts.Plan
    known: dict[tuple[str, Stable | Burst], float] = field(default_factory=dict)

    def carried(self, networks: Sequence[str], load: Stable | Burst, tell: Progress) -> dict[str, float]:
        """Return the highest load of this kind that optimal wait sustains on each network."""
        missing = [network for network in networks if (network, load) not in self.known]
        found = parts.carried(self.plan, missing, tell, load) if missing else {}
        self.known.update({(network, load): highest for network, highest in found.items()})
        return {network: self.known[network, load] for network in networks}


def _rising(asked: Asked, tell: Progress) -> Told:
    (capacity,) = asked.carried([parts.PAPERS_NETWORK], asked.plan.stable, tell).values()
    runs = parts.rising(asked.plan, capacity, tell)

    title = f"{parts.PAPERS_NETWORK}: mean ms at shares of {capacity:.0f}/s, {parts.STEP} requests each (figure 2)"
    return Told({title: report.rising_rows(runs)}, lambda: [plots.rising_figure(runs)])


def _split(asked: Asked, tell: Progress) -> Told:
    splits = parts.splits(asked.plan.chip)

    return Told(
        {"256 inferences by so many workers, 256 copies (figure 6)": report.split_rows(splits)},
        lambda: [plots.split_figure(splits)],
    )


def _bursts(asked: Asked, tell: Progress) -> Told:
    sides = [side for side in EVALUATED if side.kind is not Kind.STATIC]
    runs = parts.bursts(asked.plan, sides, _high(asked, tell), tell)

    tables = {
        "mean ms of 150 requests at a low, then 250 at a high load (figure 8)": report.burst_rows(runs),
        "less with elastic batches (the paper: 44.6 to 70.9 %, 7.4 to 53.1 %)": report.reduction_rows(runs),
    }
    return Told(tables, lambda: plots.burst_figures(runs))


def _high(asked: Asked, tell: Progress) -> dict[str, float]:
    return asked.carried(asked.plan.networks, asked.plan.burst, tell)


def _throughput(asked: Asked, tell: Progress) -> Told:
    found = parts.throughput(asked.plan, tell)

    tables = {
        "requests a second with 99 % within the target (figure 9)": report.throughput_rows(found),
        "more with elastic batches (the paper: 34.4 % than optimal wait)": report.gain_rows(found),
    }
    return Told(tables, lambda: [plots.throughput_figure(found)])


def _ablations(asked: Asked, tell: Progress) -> Told:
    found = parts.parts_throughput(asked.plan, tell)
    runs = parts.bursts(asked.plan, (*OPTIMAL, *PARTS, ELASTIC), _high(asked, tell), tell)
    return Told({"each thing of Ebird alone, against optimal wait": report.part_rows(found, runs)})


def _day(asked: Asked, tell: Progress) -> Told:
    runs = parts.day(asked.plan, asked.carried(asked.plan.networks, asked.plan.stable, tell), tell)
    return Told({f"a day of {asked.plan.seconds:g} s between low and high load": report.day_rows(runs)})


def _gaps(asked: Asked, tell: Progress) -> Told:
    rows = report.gap_rows(parts.gaps(asked.plan, tell))
    return Told({"elastic carries more than optimal wait, by what this needs between two batches": rows})


RUN: ByPart[Part, Asked] = {
    Part.RISING: _rising,
    Part.SPLIT: _split,
    Part.BURSTS: _bursts,
    Part.THROUGHPUT: _throughput,
    Part.ABLATIONS: _ablations,
    Part.DAY: _day,
    Part.GAPS: _gaps,
}
