"""`latebind bench exits`, `load` and `memory`: what early exits gain over HTTP, and the memory of workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from latebind.cli.bench.options import Backend, Core, FrontendCore, Model, Repository, ServerLog, Subject, Tuning
from latebind.cli.console import console, progress, reporting, save, show
from latebind.cli.options import JsonFile, Seed, numbers, read_dims
from latebind.domain.errors import ConfigError

if TYPE_CHECKING:
    from latebind.bench.subject import MadeUp

DRAWN: Final = 1000  # sizes of rows


def exits(
    subject: Subject,
    *,
    backend: Backend = None,
    tuning: Tuning,
    full: Annotated[
        str | None,
        typer.Option(help="For the side without exits, serve this build of the same network, such as one not cut."),
    ] = None,
    engine_core: Core = 1,
    frontend_core: FrontendCore = 0,
    seed: Seed = 0,
    log: ServerLog = None,
    json_file: JsonFile = None,
) -> None:
    """Measure mean latency with exits off and on, one request after another over HTTP, and the answers' fidelity.

    The two sides answer the same rows, so differences are paired. With `--folds 5`, each fifth of the rows is answered
    with thresholds that were calibrated on the other four fifths, so the same held-out rows serve for both.

    Example: `latebind bench exits models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5`
    """
    from latebind.bench import exits as bench
    from latebind.bench.subject import Setting

    setting = Setting(backend, (frontend_core,), engine_core, seed, log)
    with reporting(), progress("asking two servers") as on_progress:
        found = bench.closed(subject.load(), setting=setting, folds=tuning.wanted(), full=full, progress=on_progress)
    gain = found.gain(seed)
    requests = len(found.on.answers)
    show(f"{subject.model}: {requests} requests a side, closed loop, batch 1, seed {seed}", found.rows())
    show("where they left, exits on", found.exit_rows())
    if found.lengths is not None:
        show("by length", found.gain_rows())
    console.print(f"mean off / mean on   {gain}")
    console.print(f"answers bit for bit  {'identical' if found.identical else 'different'}")
    figures = {"gain": gain, "fidelity": found.fidelity, "left_at": found.on.left_at, "identical": found.identical}
    seconds = {"seconds_on": found.on.seconds.tolist(), "seconds_off": found.off.seconds.tolist()}
    tables = {"sides": found.rows(), "exits": found.exit_rows(), "lengths": found.gain_rows()}
    save(json_file, {**figures, **seconds, **tables})


def load(
    subject: Subject,
    *,
    dims: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            help="If rows differ in size, the sizes to send, drawn uniformly, as in L=5..40; repeat it for each name. "
            "Default: all that the model allows.",
        ),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            help="The sizes to send, from FILE: those of one row on each line, in the order of `latebind models`."
        ),
    ] = None,
    requests: Annotated[int, typer.Option(help="How many requests each side gets.")] = 2000,
    rate: Annotated[float | None, typer.Option(help="Requests a second. Default: set by --load.")] = None,
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

    A model whose rows differ in size needs no data: it gets made-up rows of all sizes, or of those that `--dim`
    or `--lengths` give, and a table shows the latencies by length.

    Examples:

    * `latebind bench load models --model resnet56 --data rows.npz --load 0.9`
    * `latebind bench load models --model guard --dim L=5..40`
    * `latebind bench load models --model guard --lengths lengths.txt --deadline-ms 100`
    """
    from latebind.bench import exits as bench

    with reporting():
        deadline = deadline_ms / 1e3
        if subject.data is not None and (dims or lengths):
            raise ConfigError("--data defines the sizes already: leave --dim and --lengths out")
        asked = _made_up(subject, dims or (), lengths, seed) if subject.data is None else subject.load()
        found, rate = bench.open_loop(asked, requests=requests, rate=rate, load=share, deadline=deadline, seed=seed)
    show(f"{subject.model}: {requests} requests a side at {rate:.0f}/s, Poisson, seed {seed}", found.rows())
    show("where they left, exits on", found.exit_rows())
    if by_length := found.length_rows():
        show("latency by length, exits on", by_length)
    save(json_file, {"sides": found.rows(), "exits": found.exit_rows(), "lengths": by_length})


def _made_up(subject: Subject, dims: Sequence[str], lengths: Path | None, seed: int) -> "MadeUp":
    """Return the model with rows of sizes from a file, or drawn from ranges. Raises `ConfigError`."""
    from latebind.bench.subject import MadeUp, sized, sizes_drawn, sizes_in

    spec = sized(subject.repository, subject.model)
    if lengths is not None and dims:
        raise ConfigError("--dim and --lengths both set the sizes to send: give one of them")
    given = read_dims(dims).values()
    sizes = sizes_drawn(spec, tuple(given), DRAWN, seed=seed) if lengths is None else sizes_in(lengths, spec)
    return MadeUp(subject.repository, subject.model, {}, spec=spec, sizes=sizes)


def memory(
    repository: Repository,
    model: Model,
    granularities: Annotated[
        str | None,
        typer.Option(
            help="The largest batch of each worker, with commas between. Default: 1,1,2,4,8,16, as far as the "
            "model allows."
        ),
    ] = None,
    backend: Backend = None,
    json_file: JsonFile = None,
) -> None:
    """Measure the memory of one worker, of several that share the weights, and of several with a copy each.

    Example: `latebind bench memory models --model resnet56`
    """
    from latebind.bench import memory as workers

    with reporting():
        wanted = () if granularities is None else numbers("--granularities", granularities)
        found = workers.run(repository, model, granularities=wanted, backend=backend)
    show(f"memory of {model}, MB: private, and with a part of what is shared (PSS)", workers.rows(found))
    console.print(f"Ebird's workers, each with a copy on the device, take {workers.PAPER:+.1%}")
    save(json_file, found)
