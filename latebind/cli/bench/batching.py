"""`latebind bench batching` and `live`: policies simulated on LazyBatching's accelerator, and on the engine here."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from latebind.bench.batching import live as live_bench
from latebind.bench.batching import parts, report
from latebind.bench.batching.sentences import read_sentences
from latebind.bench.batching.simulated import Run
from latebind.bench.exits import Setting
from latebind.cli.bench.options import Awake, Backend, Core, Data, DataOption, DoorCore, Model, Page, Repository, Seed
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.cli.sources import load_rows, options
from latebind.domain.errors import ConfigError
from latebind.engine.awake import kept_awake
from latebind.simulation.networks import NETWORKS


class Part(StrEnum):
    """What of the evaluation to run."""

    LOADS = "loads"
    DEADLINES = "deadlines"
    CAPACITY = "capacity"
    COLOCATED = "colocated"
    LENGTHS = "lengths"
    SIZES = "sizes"
    OTHERS = "others"


def batching(
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="loads: figures 12 to 14; deadlines: figure 15; capacity: the most with 1 % late, and past it; "
            "colocated, lengths, sizes: section VI-C; others: figure 16. May be repeated. Default: all."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help=f"For loads: {', '.join(NETWORKS)}; may be repeated. Default: {', '.join(parts.MAIN)}."),
    ] = None,
    load: Annotated[
        list[float] | None, typer.Option(help="Requests a second; may be repeated. Default: 16 to 2,000.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each cell, with seeds from 0 on.")] = 20,
    requests: Annotated[int, typer.Option(help="Requests of each run; the first 20th does not count.")] = 2_000,
    lengths: Annotated[
        Path | None,
        typer.Option(help="Words in and out of translations: an .npz file with an array (N, 2). Default: drawn."),
    ] = None,
    processes: Annotated[int, typer.Option(help="Runs at a time. Default: one for each core.")] = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare batching policies on a simulated accelerator (LazyBatching, tables I and II, figures 12 to 16).

    Every ratio is printed against the mean of untuned windows (the paper's 15 times), the best window of 5 ms or more
    (its 5.3, 2.7 and 2.5 times), and the best of all, window 0 included, without and with leaving early. The best is
    taken anew at each load. A star marks a baseline that does not keep up with the load.

    Example: `latebind bench batching --part loads --network gnmt --load 250 --load 1000 --seeds 5`
    """
    with reporting():
        unknown = [name for name in network or () if name not in NETWORKS]
        if unknown:
            raise ConfigError(f"there is no network {unknown[0]!r}: take one of {', '.join(NETWORKS)}")
        plan = parts.Plan(read_sentences(lengths), seeds, requests, processes)
        wanted = part or list(Part)
        found: dict[str, object] = {}
        console.print(f"{seeds} seeds, {requests} requests a run, largest batch 64 unless said otherwise")
        if Part.LOADS in wanted:
            with progress("loads") as tell:
                runs = parts.loads(plan, network or parts.MAIN, load or parts.LOADS, tell)
            found[Part.LOADS] = _tell_loads(runs, "by load")
            if page is not None:
                _draw(runs, page)
        if Part.OTHERS in wanted:
            with progress("other networks") as tell:
                runs = parts.loads(plan, parts.OTHERS, load or parts.LOADS_OF_OTHERS, tell)
            found[Part.OTHERS] = _tell_loads(runs, "of other networks")
        if Part.DEADLINES in wanted:
            with progress("deadlines") as tell:
                runs = parts.deadlines(plan, tell)
            found[Part.DEADLINES] = report.late_rows(runs)
            show_by_network("share of requests after their deadline", report.late_rows(runs))
        if Part.CAPACITY in wanted:
            with progress("capacity") as tell:
                carried = parts.capacities(plan, tell)
            found[Part.CAPACITY] = carried
            show(
                "the highest load with 1 % after 100 ms; saturated; in time at 1.2 times that, shedding",
                [
                    {
                        "network": one.network,
                        "policy": one.policy,
                        "highest/s": f"{one.highest:.0f}",
                        "saturated/s": f"{one.saturated:.0f}",
                        "in time at 120 %": f"{one.in_time:.3f}",
                    }
                    for one in carried
                ],
            )
        if Part.COLOCATED in wanted:
            with progress("co-located") as tell:
                runs = parts.colocated(plan, tell)
            found[Part.COLOCATED] = [report.ratio_rows(runs), report.model_rows(runs)]
            show(f"{', '.join(parts.COLOCATED)} on one worker: times less", report.ratio_rows(runs))
            show("each of them: mean / p99 ms", report.model_rows(runs))
        if Part.LENGTHS in wanted:
            with progress("expected lengths") as tell:
                runs = parts.lengths(plan, tell)
            found[Part.LENGTHS] = report.late_rows(runs)
            show("answers expected to be no longer than N % of those in training", report.late_rows(runs))
        if Part.SIZES in wanted:
            with progress("largest batches") as tell:
                by_size = parts.sizes(plan, tell)
            found[Part.SIZES] = {size: report.ratio_rows(runs) for size, runs in by_size.items()}
            for size, runs in by_size.items():
                show(f"times less with a largest batch of {size}", report.ratio_rows(runs))
    save(json_file, found)


def live(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    load: Annotated[
        list[float] | None,
        typer.Option(help="A multiple of what is answered one after another; may be repeated. Default: 0.5, 1, 1.5."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Blocks of each policy at each load.")] = 10,
    seconds: Annotated[float, typer.Option(help="Length of a block.")] = 2.0,
    backend: Backend = None,
    engine_core: Core = 1,
    door_core: DoorCore = 0,
    awake: Awake = False,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Compare batching policies on the live engine, and with the same requests simulated.

    Each policy has an engine of its own on the same core; they are asked in turn. Exits are off.

    Example: `latebind bench live models --model resnet56 --data images.npz --load 0.8`
    """
    with reporting(), progress("batching") as tell, kept_awake(awake):
        inputs, _ = load_rows(data, options(data_option or []))
        setting = Setting(backend, (door_core,), engine_core, seed)
        found = live_bench.run(
            repository,
            model,
            inputs,
            setting=setting,
            plan=live_bench.Plan(tuple(load or live_bench.LOADS), rounds, seconds),
            progress=tell,
        )
    console.print(
        f"{model}: {found.capacity:.0f} a second one after another, late after {found.allowed * 1e3:.1f} ms; "
        f"{rounds} rounds of {seconds:g} s, seed {seed}"
    )
    show("by load, a multiple of that", found.rows())
    show("with always enough to do", found.throughput_rows())
    save(json_file, {"latency": found.rows(), "throughput": found.throughput_rows()})


def _tell_loads(runs: Sequence[Run], what: str) -> dict[str, object]:
    latencies, ratios, summary = report.latency_rows(runs), report.ratio_rows(runs), report.summary_rows(runs)
    show(f"latency {what}: mean over seeds (25th to 75th percentile)", latencies)
    show(f"times less than the baselines {what}; {report.PAST} past the baseline's capacity", ratios)
    show("geometric mean over the loads that all baselines keep up with", summary)
    return {"latency": latencies, "ratios": ratios, "summary": summary}


def show_by_network(title: str, rows: report.Rows) -> None:
    """Print a table for each network: their columns differ."""
    for network in dict.fromkeys(str(row["network"]) for row in rows):
        show(f"{title}, {network}", [row for row in rows if row["network"] == network])


def _draw(runs: Sequence[Run], page: Path) -> None:
    from latebind.bench.batching.plots import write_batching_page  # noqa: PLC0415  (plotly is optional)

    write_batching_page(runs, page)
    console.print(f"page written to {page}")
