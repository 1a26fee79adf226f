"""`latebind bench exits` and `latebind bench load`: what leaving early is worth over HTTP, alone and under load."""

from typing import Annotated

import typer

from latebind.bench import exits as bench
from latebind.cli.bench.options import Backend, Conditions, ServerLog, Subject, Tuning
from latebind.cli.console import console, progress, reporting, save, show
from latebind.cli.options import JsonFile, Seed


def exits(
    subject: Subject,
    *,
    backend: Backend = None,
    tuning: Tuning,
    conditions: Conditions,
    log: ServerLog = None,
    json_file: JsonFile = None,
) -> None:
    """Measure mean latency with exits off and on, one request after another over HTTP, and the answers' fidelity.

    The two sides answer the same rows, so differences are paired. With `--folds 5`, each fifth of the rows is answered
    with thresholds that were calibrated on the other four fifths, so the same rows that trained nothing serve for both.

    Example: `latebind bench exits models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5`
    """
    setting = conditions.setting(backend, log)
    with reporting(), progress("asking two servers") as tell:
        found = bench.closed(subject.load(), setting=setting, folds=tuning.wanted(), progress=tell)
    gain = found.gain(conditions.seed)
    requests = len(found.on.answers)
    show(f"{subject.model}: {requests} requests a side, closed loop, batch 1, seed {conditions.seed}", found.rows())
    show("where they left, exits on", found.exit_rows())
    console.print(f"mean off / mean on   {gain}")
    console.print(f"answers bit for bit  {'identical' if found.identical else 'different'}")
    figures = {"gain": gain, "fidelity": found.fidelity, "left_at": found.on.left_at, "identical": found.identical}
    seconds = {"seconds_on": found.on.seconds.tolist(), "seconds_off": found.off.seconds.tolist()}
    save(json_file, {**figures, **seconds, "sides": found.rows(), "exits": found.exit_rows()})


def load(
    subject: Subject,
    *,
    requests: Annotated[int, typer.Option(help="How many requests each side gets.")] = 2000,
    rate: Annotated[float | None, typer.Option(help="Requests a second. Default: as --load says.")] = None,
    share: Annotated[
        float, typer.Option("--load", help="The rate, as a share of what the model answers one request at a time.")
    ] = 0.7,
    deadline_ms: Annotated[
        float, typer.Option(help="The deadline of every request, in milliseconds after its arrival.")
    ] = 1000.0,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Measure latency under Poisson traffic over HTTP with exits off and on, with the same arrivals for both.

    Example: `latebind bench load models --model resnet56 --data rows.npz --load 0.9`
    """
    with reporting():
        deadline = deadline_ms / 1e3
        found, rate = bench.open_loop(
            subject.load(), requests=requests, rate=rate, load=share, deadline=deadline, seed=seed
        )
    show(f"{subject.model}: {requests} requests a side at {rate:.0f}/s, Poisson, seed {seed}", found.rows())
    show("where they left, exits on", found.exit_rows())
    save(json_file, {"sides": found.rows(), "exits": found.exit_rows()})
