"""`python -m research batching` and `live`: policies on LazyBatching's accelerator, simulated, and on this engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Backend, Conditions, Page, Processes, Subject
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.domain.errors import ConfigError
from research.hardware.networks import NETWORKS
from research.lazybatching import live as live_bench
from research.lazybatching import mixed as mixed_bench
from research.lazybatching import parts, report
from research.lazybatching.bound import MULTIPLES, bound_rows, bounds
from research.lazybatching.plots import load_figures
from research.lazybatching.scene import Scene, measured_models
from research.lazybatching.sentences import read_sentences
from research.lazybatching.simulated import Result
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = "Simulated on the accelerator of LazyBatching's table I; baselines are the best of their kind at each load."


class Part(StrEnum):
    """The parts of the evaluation."""

    LOADS = "loads"
    DEADLINES = "deadlines"
    CAPACITY = "capacity"
    COLOCATED = "colocated"
    LENGTHS = "lengths"
    SIZES = "sizes"
    OTHERS = "others"
    BOUND = "bound"
    MIXED = "mixed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The models to simulate besides the accelerator's networks, and the number and length of runs."""

    models: Annotated[
        Path | None,
        typer.Option(
            help="For the part measured: a folder of models that `latebind build` made and timed on this machine."
        ),
    ] = None
    seeds: Annotated[
        int, typer.Option(help="How often each cell of a table is run, each time with another seed, from 0 on.")
    ] = 20
    requests: Annotated[
        int, typer.Option(help="How many requests each run has; the first twentieth is not counted.")
    ] = 2_000
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:ARRAY]",
            help="Lengths of sentences in words, input and output: an array (N, 2) in an .npz file, named where "
            "the file has several, as in lengths.npz:multi30k. Default: drawn at random.",
        ),
    ] = None
    processes: Processes = 0

    def plan(self) -> parts.Plan:
        """Return the plan of the simulation. Raises `ConfigError`."""
        scene = Scene(read_sentences(self.lengths), measured_models(self.models) if self.models else {})
        return parts.Plan(scene, self.seeds, self.requests, self.processes)

    def chosen(self, wanted: Sequence[Part] | None) -> Sequence[Part]:
        """Return the parts to run; by default all that can run with the options given. Raises `ConfigError`."""
        if self.models is None and Part.MEASURED in (wanted or ()):
            raise ConfigError("--part measured needs a folder of models: --models FOLDER")
        return wanted or [one for one in Part if self.models is not None or one is not Part.MEASURED]


def batching(
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to simulate. loads: figures 12 to 14; deadlines: figure 15; capacity: the largest load with "
            "at most 1 % of the answers late, and beyond it; colocated, lengths, sizes: section VI-C; others: "
            "figure 16; bound: what could ideally be saved, by how a step's cost grows; mixed: near and far deadlines "
            "together, and whom admission refuses for nothing; measured: models of this machine (--models). May be "
            "repeated. Default: all."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            help=f"For loads, a network: {', '.join(NETWORKS)}; may be repeated. Default: {', '.join(parts.MAIN)}."
        ),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="Offered load in requests a second, or for bound and --models as a multiple of capacity; may be "
            "repeated."
        ),
    ] = None,
    runs: Runs,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare batching policies on a simulated accelerator (LazyBatching, tables I and II, figures 12 to 16).

    Every ratio is given against three baselines: the mean of untuned windows (the paper's 15 times), the best window of
    5 ms or more (its 5.3, 2.7 and 2.5 times), and the best of all windows including 0, without and with leaving early.
    The best baseline is chosen anew at each load. A star marks a baseline that does not keep up with the load.
    Intervals are over the seeds.

    With --models, the costs of models that were measured on this machine are simulated beside the accelerator's.

    Example: `python -m research batching --part loads --network gnmt --load 250 --load 1000 --seeds 5`
    """
    with reporting():
        unknown = [name for name in network or () if name not in NETWORKS]
        if unknown:
            raise ConfigError(f"there is no network {unknown[0]!r}: take one of {', '.join(NETWORKS)}")
        asked = Asked(runs.plan(), tuple(network or ()), tuple(load or ()))
        console.print(f"{runs.seeds} seeds, {runs.requests} requests a run, largest batch 64 unless said otherwise")
        console.print(f"lengths: {asked.plan.scene.sentences.told}", highlight=False, markup=False, soft_wrap=True)
        files = Files(
            page=page,
            title="Batching policies",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: {one: told.raw for one, told in found.items()},
        )
        tell_parts(runs.chosen(part), RUN, asked, files)


def live(
    subject: Subject,
    *,
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="Offered load, as a multiple of what the model answers one request at a time; may be repeated. "
            "Default: 0.5, 1, 1.5."
        ),
    ] = None,
    side: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare only with this policy, named as in the tables, such as 'GraphB(0, 16)'; may be repeated. "
            "Default: all."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many blocks of requests each policy gets at each load.")] = 10,
    seconds: Annotated[float, typer.Option(help="How many seconds a block of requests lasts.")] = 2.0,
    saturation: Annotated[
        bool, typer.Option(help="Also measure the throughput while requests are always waiting.")
    ] = True,
    backend: Backend = None,
    conditions: Conditions,
    json_file: JsonFile = None,
) -> None:
    """Compare batching policies on the live engine, and simulate the same requests.

    Each policy has an engine of its own on the same core; they take turns. Exits are off. The best baseline of a round
    is the one that was best in all other rounds, as somebody would tune by past traffic. Each block is also simulated
    with the costs of launches and messages measured just before and after it (as `python -m research validate` does),
    and in `told all` also with those measured during it: near saturation the machine's speed at that moment decides.
    `alone` is the latency of a request when no other is there, `least` what a policy could reach that knows all lengths
    in advance and costs nothing itself.

    Example: `python -m research live models --model resnet56 --data images.npz --load 0.8`
    """
    with reporting(), progress("batching") as tell:
        found = live_bench.run(
            subject.load(),
            setting=conditions.setting(backend),
            plan=live_bench.Plan(tuple(load or live_bench.LOADS), rounds, seconds, tuple(side or ()), saturation),
            progress=tell,
        )
    console.print(
        f"{subject.model}: {found.capacity:.0f} a second one after another, late after {found.allowed * 1e3:.1f} ms; "
        f"{found.other_answers} answers unlike the first to the same row; {rounds} rounds of {seconds:g} s, "
        f"seed {conditions.seed}"
    )
    show("by load, a multiple of that", found.rows())
    show("who is ahead, and what could be reached at most", found.verdict_rows())
    if saturation:
        show("with always enough to do", found.throughput_rows())
    tables = {"latency": found.rows(), "verdict": found.verdict_rows(), "throughput": found.throughput_rows()}
    save(json_file, tables)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `batching`. Without networks or loads, each part uses its usual ones."""

    plan: parts.Plan
    networks: tuple[str, ...]
    loads: tuple[float, ...]


def _loads(asked: Asked, tell: Progress) -> Told:
    return _by_load(parts.loads(asked.plan, asked.networks or parts.MAIN, asked.loads or parts.LOADS, tell))


def _others(asked: Asked, tell: Progress) -> Told:
    return _by_load(parts.loads(asked.plan, parts.OTHERS, asked.loads or parts.LOADS_OF_OTHERS, tell))


def _measured(asked: Asked, tell: Progress) -> Told:
    return _by_load(parts.measured(asked.plan, asked.loads or parts.MULTIPLES, tell))


def _by_load(found: Sequence[Result]) -> Told:
    raw = {
        "latency": report.latency_rows(found),
        "ratios": report.ratio_rows(found),
        "summary": report.summary_rows(found),
    }
    titles = (
        "latency: mean over seeds (25th to 75th percentile)",
        f"times less than the baselines; {report.PAST} past the baseline's capacity",
        "geometric mean over the loads that all baselines keep up with",
    )
    return Told(dict(zip(titles, raw.values(), strict=True)), lambda: load_figures(found), raw)


def _deadlines(asked: Asked, tell: Progress) -> Told:
    rows = report.late_rows(parts.deadlines(asked.plan, tell))
    networks = dict.fromkeys(row["network"] for row in rows)
    tables = {f"share after their deadline, {one}": [row for row in rows if row["network"] == one] for one in networks}
    return Told(tables, raw=rows)


def _capacity(asked: Asked, tell: Progress) -> Told:
    carried = parts.capacities(asked.plan, tell)
    title = "the highest load with 1 % after 100 ms; saturated; in time at 1.2 times that, shedding"
    return Told({title: report.capacity_rows(carried)}, raw=carried)


def _colocated(asked: Asked, tell: Progress) -> Told:
    found = parts.colocated(asked.plan, tell)
    tables = {
        f"{', '.join(parts.COLOCATED)} on one worker: times less": report.ratio_rows(found),
        "each of them: mean / p99 ms": report.model_rows(found),
        "p99 of each, times less than under the baselines with the least mean": report.tail_rows(found),
    }
    return Told(tables, raw=list(tables.values()))


def _lengths(asked: Asked, tell: Progress) -> Told:
    rows = report.late_rows(parts.lengths(asked.plan, tell))
    return Told({"answers expected to be no longer than N % of those in training: late": rows}, raw=rows)


def _sizes(asked: Asked, tell: Progress) -> Told:
    rows = {size: report.ratio_rows(found) for size, found in parts.sizes(asked.plan, tell).items()}
    return Told({f"times less with a largest batch of {size}": some for size, some in rows.items()}, raw=rows)


def _bound(asked: Asked, tell: Progress) -> Told:
    rows = bound_rows(bounds(asked.plan, asked.loads or MULTIPLES, tell))
    return Told({"means over those of the best GraphB, at multiples of serial capacity": rows}, raw=rows)


def _mixed(asked: Asked, tell: Progress) -> Told:
    found = mixed_bench.mixed(asked.plan.seeds, mixed_bench.SECONDS, asked.plan.processes, tell)
    tables = {
        "mixed deadlines: refused, and in time without admission": mixed_bench.refused_rows(found),
        f"goodput at {mixed_bench.OVERLOAD:g} times capacity over the peak": mixed_bench.overload_rows(found),
    }
    return Told(tables, raw=found)


RUN: ByPart[Part, Asked] = {
    Part.LOADS: _loads,
    Part.DEADLINES: _deadlines,
    Part.CAPACITY: _capacity,
    Part.COLOCATED: _colocated,
    Part.LENGTHS: _lengths,
    Part.SIZES: _sizes,
    Part.OTHERS: _others,
    Part.BOUND: _bound,
    Part.MIXED: _mixed,
    Part.MEASURED: _measured,
}
