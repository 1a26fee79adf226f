"""`latebind bench`: every promise of speed as a command that prints what it measured."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from latebind.bench import calibration as calibration_bench
from latebind.bench import drift as drift_bench
from latebind.bench import engine as engine_bench
from latebind.bench import exits as exits_bench
from latebind.bench import flood as flood_bench
from latebind.bench import load as load_bench
from latebind.bench import locality as locality_bench
from latebind.bench import scheduler as scheduler_bench
from latebind.bench import stages as stages_bench
from latebind.cli.bench_caches import caches
from latebind.cli.console import JsonFile, console, percent, progress, reporting, save, show
from latebind.cli.sources import load_rows, options
from latebind.domain.errors import ConfigError
from latebind.learned.promise import Promise
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS

app = typer.Typer(
    help="Measure what latebind promises; every command prints its settings.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

app.command()(caches)

Repository = Annotated[Path, typer.Argument(help="A folder of models.")]
Model = Annotated[str, typer.Option(help="Which model of the folder.")]
Data = Annotated[str, typer.Option(help="Rows to send: an .npz file or package.module:function.")]
DataOption = Annotated[list[str] | None, typer.Option(help="key=value for that function; may be repeated.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
Core = Annotated[int, typer.Option(help="The core of the engine.")]
DoorCore = Annotated[int, typer.Option(help="The core of door and client.")]


@app.command()
def scheduler(
    events: Annotated[int, typer.Option(help="Events of each measurement.")] = 200_000,
    rounds: Annotated[int, typer.Option(help="Measurements of each cell; the median counts.")] = 3,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Events a second that the scheduler handles on one core, by policy, batch size and waiting requests."""
    with reporting():
        speeds = scheduler_bench.run(events=events, rounds=rounds, seed=seed)
    show(
        f"scheduler, {events} events, median of {rounds} rounds, seed {seed}",
        [{**asdict(speed), "events_per_second": f"{speed.events_per_second:,.0f}"} for speed in speeds],
    )
    save(json_file, speeds)


@app.command()
def exits(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    backend: Annotated[str | None, typer.Option(help="Serve both sides with it. Default: as built.")] = None,
    folds: Annotated[
        int, typer.Option(help="Calibrate on the other rows, in so many folds. Default: take the model as it is.")
    ] = 0,
    fidelity: Annotated[float, typer.Option(help="The target to calibrate the folds for.")] = 0.97,
    engine_core: Core = 1,
    door_core: DoorCore = 0,
    seed: Seed = 0,
    log: Annotated[Path | None, typer.Option(help="Keep what the servers log.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Mean latency with exits off and on, one request after another over HTTP, paired, and the fidelity of the answers.

    With `--folds 5`, each fifth of the rows meets thresholds that were calibrated on the other four, so rows that
    trained nothing can serve for both.

    Example: `latebind bench exits models --model resnet56 --data examples.cifar10.data:unseen
    --data-option data=cifar10/ --folds 5`
    """
    setting = exits_bench.Setting(backend, (door_core,), engine_core, seed, log)
    with reporting(), progress("asking two servers") as tell:
        inputs, labels = load_rows(data, options(data_option or []))
        if folds:
            report = exits_bench.run_folds(
                repository, model, inputs, labels, setting=setting, folds=folds, fidelity=fidelity, progress=tell
            )
        else:
            report = exits_bench.run(repository, model, inputs, labels, setting=setting)
    show(f"{model}: {report.requests} requests a side, closed loop, batch 1, seed {seed}", report.rows())
    left = "  ".join(f"{stage}: {percent(share)}" for stage, share in report.left_at.items())
    console.print(f"mean off / mean on   {report.gain}")
    console.print(f"fidelity             {report.fidelity:.4f}")
    console.print(f"left at stage        {left}")
    console.print(f"answers bit for bit  {'identical' if report.identical else 'different'}")
    save(
        json_file,
        {**asdict(report), "seconds_on": report.seconds_on.tolist(), "seconds_off": report.seconds_off.tolist()},
    )


@app.command()
def engine(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    backend: Annotated[str | None, typer.Option(help="Serve both sides with it. Default: as built.")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Rows a call; may be repeated. Default: 1, 2, 4 and 8.")
    ] = None,
    folds: Annotated[
        int, typer.Option(help="Calibrate on the other rows, in so many folds. Default: take the model as it is.")
    ] = 0,
    fidelity: Annotated[float, typer.Option(help="The target to calibrate the folds for.")] = 0.97,
    engine_core: Core = 1,
    door_core: DoorCore = 0,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """What leaving early is worth in the live engine without a door: by the rows of a call, and throughput.

    Example: `latebind bench engine models --model resnet56 --data examples.cifar10.data:unseen
    --data-option data=cifar10/ --folds 5`
    """
    setting = exits_bench.Setting(backend, (door_core,), engine_core, seed)
    with reporting(), progress("asking two engines") as tell:
        inputs, _ = load_rows(data, options(data_option or []))
        report = engine_bench.run(
            repository,
            model,
            inputs,
            setting=setting,
            folds=folds,
            fidelity=fidelity,
            batches=batch or engine_bench.BATCHES,
            progress=tell,
        )
    kind = f"{folds} folds, target {fidelity:g}" if folds else "calibrated as it is"
    show(f"{model}: latency of rows in the engine, closed loop, {kind}, seed {seed}", report.rows())
    show("throughput with more waiting than a batch takes", report.throughput_rows())
    console.print(f"times more, each side with its better policy   {report.throughput()}")
    save(json_file, {"latency": report.rows(), "throughput": report.throughput_rows()})


@app.command()
def locality(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    alpha: Annotated[
        float | None, typer.Option(help="Classes follow Zipf's law with this exponent. Default: rows as they lie.")
    ] = None,
    phases: Annotated[int, typer.Option(help="How often another class dominates.")] = 2,
    length: Annotated[int, typer.Option(help="Requests of each phase.")] = 10_000,
    passes: Annotated[
        int, typer.Option(help="Without --alpha: how often all rows are sent, one pass after another.")
    ] = 1,
    jitter: Annotated[
        int | None,
        typer.Option(help="Shift images by up to so many cells, and mirror them, at random. Default: 2 with --alpha."),
    ] = None,
    fidelity: Annotated[float, typer.Option(help="The target.")] = 0.97,
    sample: Annotated[float, typer.Option(help="Share of requests that the service runs to the end.")] = 0.2,
    retrain_s: Annotated[float, typer.Option(help="Seconds until caches are retrained anyway.")] = 900.0,
    backend: Annotated[str | None, typer.Option(help="Serve all sides with it. Default: as built.")] = None,
    engine_core: Core = 1,
    door_core: DoorCore = 0,
    seed: Seed = 0,
    log: Annotated[Path | None, typer.Option(help="Keep what the servers log.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with plots to FILE.")] = None,
    json_file: JsonFile = None,
) -> None:
    """What following the traffic is worth: exits off, as built, and adapting; one request after another, paired.

    With `--alpha`, thresholds are calibrated on two fifths of the rows and the stream is made of the others.

    Example: `latebind bench locality models --model resnet56 --data examples.cifar10.data:unseen
    --data-option data=cifar10/ --alpha 1.5`
    """
    setting = exits_bench.Setting(backend, (door_core,), engine_core, seed, log)
    shift = jitter if jitter is not None else 2 if alpha is not None else 0
    traffic = locality_bench.Traffic(alpha, phases, length, shift, passes)
    with reporting(), progress("asking three servers") as tell:
        inputs, labels = load_rows(data, options(data_option or []))
        report = locality_bench.run(
            repository,
            model,
            inputs,
            labels,
            traffic,
            setting=setting,
            fidelity=fidelity,
            options=("--sample", str(sample), "--retrain-s", str(retrain_s)),
            progress=tell,
        )
    kind = f"Zipf {alpha:g}, {phases} phases of {length}" if alpha is not None else f"rows as they lie, {passes} times"
    show(
        f"{model}: {len(report.calls['off'])} requests a side, {kind}, target {fidelity:g}, seed {seed}", report.rows()
    )
    console.print(f"first version from request {report.begun} on; the service counted {report.told}")
    if page is not None:
        from latebind.bench.page import write_locality_page  # noqa: PLC0415  (plotly is optional)

        write_locality_page(report, page, title=f"latebind: {model}, {kind}")
        console.print(f"page written to {page}")
    save(json_file, {"rows": report.rows(), "begun": report.begun, "told": report.told})


@app.command()
def drift(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    trials: Annotated[int, typer.Option(help="Trials of each kind of change.")] = 20,
    fidelity: Annotated[float, typer.Option(help="The target.")] = 0.97,
    brighter: Annotated[float, typer.Option(help="What is added to all inputs to make them brighter.")] = 1.5,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """How soon a change of class mix or brightness is caught by the guards over fidelity, in requests and samples.

    A trial passes if the version in use is left within 500 samples and 2,000 requests, or fidelity never fell under
    the target.

    Example: `latebind bench drift models --model resnet56 --data examples.cifar10.data:unseen
    --data-option data=cifar10/`
    """
    with reporting(), progress("changing the traffic") as tell:
        inputs, labels = load_rows(data, options(data_option or []))
        if labels is None:
            raise ConfigError("a stream by classes needs labels: give data that has them")
        found = drift_bench.run(
            repository,
            model,
            inputs,
            labels,
            trials=trials,
            fidelity=fidelity,
            by=brighter,
            seed=seed,
            progress=tell,
        )
    show(
        f"{model}: {trials} trials of each change, target {fidelity:g}, seed {seed}",
        drift_bench.summary(found, fidelity),
    )
    save(json_file, found)


@app.command()
def calibration(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    fidelity: Annotated[float, typer.Option(help="The target to calibrate for.")] = 0.98,
    confidence: Annotated[float, typer.Option(help="Confidence in it.")] = 0.95,
    splits: Annotated[int, typer.Option(help="How many random halves to calibrate on.")] = 20,
    backend: Annotated[str | None, typer.Option(help="The backend. Default: as built.")] = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Whether fidelity is kept: calibrate on random halves of the rows, judge each on the half it has not seen.

    Example: `latebind bench calibration models --model resnet56 --data examples.cifar10.data:unseen
    --data-option data=cifar10/ --fidelity 0.98`
    """
    with reporting():
        inputs, _ = load_rows(data, options(data_option or []))
        promise = Promise(fidelity, confidence)
        report = calibration_bench.run(
            repository, model, inputs, promise=promise, splits=splits, backend=backend, seed=seed
        )
    show(
        f"{model}: {splits} calibrations on halves of {report.rows} rows, target {fidelity:g}, seed {seed}",
        [
            {
                "split": number,
                "shown": f"{split.shown:.4f}",
                "at least": f"{split.lower:.4f}",
                "realised": f"{split.realised:.4f}",
                "left early": percent(split.left_early),
                "times less": f"{split.gain:.2f}",
            }
            for number, split in enumerate(report.splits)
        ],
    )
    console.print(f"under the target     {report.broken} of {splits}")
    save(json_file, report)


@app.command()
def load(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    requests: Annotated[int, typer.Option(help="Requests of each side.")] = 2000,
    rate: Annotated[float | None, typer.Option(help="Requests a second. Default: by --load.")] = None,
    share: Annotated[float, typer.Option("--load", help="Rate as a share of what is answered one by one.")] = 0.7,
    deadline_ms: Annotated[float, typer.Option(help="How long an answer may take.")] = 1000.0,
    page: Annotated[Path | None, typer.Option(help="Write a page with plots to FILE.")] = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Latency under Poisson traffic over HTTP with exits off and on, the same arrivals for both."""
    with reporting():
        inputs, labels = load_rows(data, options(data_option or []))
        report = load_bench.run(
            repository,
            model,
            inputs,
            labels,
            requests=requests,
            rate=rate,
            load=share,
            deadline=deadline_ms / 1e3,
            seed=seed,
        )
        show(f"{model}: {requests} requests a side at {report.rate:.0f}/s, Poisson, seed {seed}", report.rows())
        show("where they left, exits on", report.exit_rows())
        if page is not None:
            from latebind.bench.page import write_page  # noqa: PLC0415  (plotly is optional)

            write_page(report, page, title=f"latebind: {model} with exits off and on")
            console.print(f"page written to {page}")
    save(json_file, {"sides": report.rows(), "exits": report.exit_rows()})


@app.command()
def flood(
    repository: Repository,
    model: Model,
    data: Data,
    data_option: DataOption = None,
    rounds: Annotated[int, typer.Option(help="Pairs of phases, without and with the flood.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of a phase.")] = 3.0,
    engine_core: Core = 1,
    door_core: DoorCore = 0,
    json_file: JsonFile = None,
) -> None:
    """Throughput of the engine on its own core while 16 clients flood the door with small requests."""
    with reporting():
        inputs, _ = load_rows(data, options(data_option or []))
        report = flood_bench.run(
            repository,
            model,
            inputs,
            rounds=rounds,
            seconds=seconds,
            door_cores=(door_core,),
            engine_core=engine_core,
        )
    show(f"{model}: {rounds} rounds of {seconds:g} s, medians", [asdict(report)])
    save(json_file, report)


@app.command()
def stages(
    network: Annotated[
        list[str] | None, typer.Option(help=f"{' or '.join(stages_bench.NETWORKS)}; may be repeated. Default: both.")
    ] = None,
    backend: Annotated[list[str] | None, typer.Option(help="May be repeated. Default: eager and openvino.")] = None,
    min_stage_ms: Annotated[
        list[float] | None, typer.Option(help="What a stage is worth at least; may be repeated, for a sweep.")
    ] = None,
    limit: Annotated[bool, typer.Option(help="Whether a chain may take at most 5 % over the uncut model.")] = True,
    runs: Annotated[int, typer.Option(help="Pairs of runs for each ratio.")] = 100,
    threads: Annotated[int, typer.Option(help="Threads of each side.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Where networks can be cut, and what a chain of stages costs over the uncut network: paired, interleaved.

    Example: `latebind bench stages --network resnet56 --backend openvino --no-limit --min-stage-ms 0.3`
    """
    with reporting():
        rows = stages_bench.run(
            network or tuple(stages_bench.NETWORKS),
            backend or ("eager", "openvino"),
            minima=[ms / 1e3 for ms in min_stage_ms or [MIN_STAGE_SECONDS * 1e3]],
            max_overhead=MAX_OVERHEAD if limit else None,
            runs=runs,
            threads=threads,
        )
    show(
        f"chain of stages over the uncut model, {runs} pairs, {threads} threads, random weights",
        [
            {
                "network": row.network,
                "backend": row.backend,
                "cut points": row.cut_points,
                "min stage ms": f"{row.min_stage_seconds * 1e3:g}",
                "stages": row.stages,
                "batch": row.batch,
                "uncut ms": f"{row.uncut * 1e3:.2f}",
                "chain / uncut": str(row.ratio),
            }
            for row in rows
        ],
    )
    save(json_file, rows)
