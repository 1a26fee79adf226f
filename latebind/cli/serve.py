"""`latebind serve`: the frontend runs in this process, the engine in its own.

What the options need is imported here. The frontend is imported once they are checked and the fork server has started,
which imports the engine meanwhile, on another core.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latebind.batching.policy import make_policy
from latebind.child import GRPC_READY, READY
from latebind.cli.console import errors, in_order, progress, reporting, show
from latebind.cli.options import Repository
from latebind.cli.settings import SETTINGS, Given, check_machine
from latebind.compiled import is_compiled
from latebind.domain.config import ServeConfig
from latebind.domain.errors import ConfigError, LatebindError, RepositoryError
from latebind.domain.model import ModelSpec
from latebind.engine.cores import fitted
from latebind.forks.client import fork_server
from latebind.heap import importing, settle
from latebind.logs import write_logs
from latebind.program.device import check_adaptation
from latebind.program.metadata import read_texts
from latebind.repository.listing import Selection, Serving
from latebind.repository.mirror import open_selection
from latebind.residency.policy import make_policy as make_eviction
from latebind.server.access import Security
from latebind.server.limits import Limits, too_large_a_row
from latebind.server.listening import check_addresses, families, raise_file_limit

if TYPE_CHECKING:
    from latebind.engine.catalogue import Catalogue
    from latebind.served import Served
    from latebind.server.gateway import IndexEntry

logger = logging.getLogger(__name__)

ON_RAY = ("replicas", "max_replicas", "replica_cpus")  # options that need --on ray


def serve(
    repository: Repository,
    *,
    model: Annotated[
        list[str] | None, typer.Option(help="Serve this model or query; may be repeated. Default: all.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML: [server], [engine], [policy], [residency], [adaptation], [generations], [observability], "
            "[repository], [cluster]; options override it."
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="Serve on `ray`: an ingress and replicas, instead of one server.")
    ] = None,
    event_log: Annotated[Path | None, typer.Option(help="Write events and actions to FILE for `replay`.")] = None,
    given: Annotated[Given, SETTINGS],
) -> None:
    """Serve models and queries over the Open Inference Protocol v2 (HTTP, gRPC) until interrupted.

    A query is a graph of models under one deadline, described beside them in `NAME.query.toml`; clients call it like
    a model. If it is named by `--model`, its models are served with it.

    By default there is one worker for each core that the frontend leaves free, at most 8; if all models read
    texts, one worker with a thread for each of these cores (two on a machine of two). If you set workers and
    threads, their product should not exceed those cores.

    When the engine's process dies, another takes over. On SIGHUP the repository is scanned again: new versions start
    beside what is served, are tested, and take over without interruption; meanwhile both are in memory. Token files
    are read again too.

    Examples:

    * `latebind serve models`
    * `latebind serve models --model resnet56 --port 0 --cores 1 --policy graph --max-batch 8`
    * `latebind serve models --grpc-port 8001`
    * `latebind serve models --config latebind.toml --no-exits`
    * `latebind serve models --memory 2GiB`
    * `latebind serve models --memory 500MB --evict lru --deadline-ms 10000`
    * `latebind serve models --adapt --sample 0.1`
    * `latebind serve models --host 0.0.0.0 --token-file token --tls-cert server.pem --tls-key server.key`
    * `latebind serve models --watch 10 --manage --keep-going`
    * `latebind serve models --split resnet=1:90,2:10 --manage`
    * `latebind serve s3://bucket/models --watch 60 --cache /var/cache/latebind`
    * `latebind serve models --log-format json --trace-rate 0.01 --otlp http://127.0.0.1:4318`
    * `latebind serve models --model traffic` (with `models/traffic.query.toml`)
    * `latebind serve models --on ray --replicas 2 --max-replicas 8 --replica-cpus 2`
    """
    with reporting():
        named = [f"--{name.replace('_', '-')}" for name in ON_RAY if given[name] is not None]
        if on is None and named:
            raise ConfigError(f"{', '.join(named)}: only Ray has replicas: add --on ray, or leave the option out")
        settings, engine = SETTINGS.read(config, given)
        write_logs("frontend", settings.observability.log_format)
        check_policies(settings)
        check_adaptation(settings.adaptation)
        check_addresses(settings.server)
        selection = open_selection(repository, model or (), settings.repository)
        if on is not None:
            from latebind.cluster import application  # noqa: PLC0415  (an optional dependency)

            application.check(on, settings, event_log=event_log is not None)
            selection.first()  # so that a missing model is an error here, not in a replica
            with application.on_ray(selection, settings, explicit=tuple(engine)) as (port, grpc_port):
                say_where(settings, port, grpc_port, dashboard=False)
                application.wait()
            return
        check_machine(settings.engine, event_log)
        _serve(settings, tuple(engine), selection, event_log)


def check_policies(settings: ServeConfig) -> None:
    """Raise `ConfigError` for policies that the engine would refuse, before one is started."""
    make_policy(settings.policy)
    make_eviction(settings.residency)


def _serve(settings: ServeConfig, engine_keys: tuple[str, ...], selection: Selection, event_log: Path | None) -> None:
    """Check what is left to check, then serve; exit with 1 after a second signal.

    Keys of the engine that are not in `engine_keys` are chosen for the cores of this machine.
    """
    security = Security.by(settings.server)
    first, wrong = _readable(selection) if settings.generations.keep_going else (selection.first(), {})
    texts = read_texts([path for name, path in first.models.items() if name not in wrong])
    settings = fitted(settings, engine_keys, texts=texts)
    limits = Limits.by(settings.server)
    raise_file_limit(limits.connections * (1 if settings.server.grpc_port is None else 2))
    with fork_server() as forks:
        forks.warm()
        with importing():  # while the fork server does
            import uvloop  # noqa: PLC0415

            from latebind.served import serving  # noqa: PLC0415
        settle()
        log = str(event_log) if event_log else None
        begin = partial(serving, selection, first, settings, forks, wrong=wrong, event_log=log)
        if not uvloop.run(_run(begin, settings, security, selection, limits)):
            raise typer.Exit(1)


async def _run(
    begin: "Callable[..., AbstractAsyncContextManager[Served]]",
    settings: ServeConfig,
    security: Security,
    selection: Selection,
    limits: Limits,
) -> bool:
    """Start the engine, open the frontend, close both in reverse order; return False after a second signal."""
    async with AsyncExitStack() as stack:
        with progress("loading models") as loading:
            engines, catalogue, made = await stack.enter_async_context(begin(loading=loading))
        frontend = made(settings.server, security=security)
        async with frontend:
            frontend.close_on_signals()
            settle()
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _look_again, catalogue, security)
            if is_compiled():
                logger.info("the hot path is compiled")
            say_what(engines.models.values(), catalogue.index(), as_table=errors.is_terminal)
            for spec in engines.models.values():
                if warning := too_large_a_row(spec.inputs, limits):
                    logger.warning("%s: %s", spec.name, warning)
            for warning in selection.passed_over():
                logger.warning("%s", warning)
            if missing := [entry["name"] for entry in catalogue.index() if entry["state"] == "UNAVAILABLE"]:
                logger.warning("%d of the models and queries are not served: %s", len(missing), ", ".join(missing))
            say_where(settings, frontend.port, frontend.grpc_port, dashboard=settings.server.shows_dashboard)
            await asyncio.wait({asyncio.create_task(frontend.closed())})
        if frontend.forced:
            await engines.close(0.0)
    return not frontend.forced


def _look_again(catalogue: "Catalogue", security: Security) -> None:
    """Scan the repository and read the token files and certificates again."""
    catalogue.look()
    if security.tls is not None:
        security.tls.look()
    try:
        security.guard.read()
    except ConfigError as error:
        logger.error("the tokens were not changed: %s", error)


def _readable(selection: Selection) -> tuple[Serving, Mapping[str, LatebindError | OSError]]:
    """Return the intact models and queries to serve, and the errors of the others by name."""
    first, wrong = selection.first_whole()
    for name, path in first.models.items():
        try:
            read_texts([path])
        except (RepositoryError, OSError) as error:
            wrong[name] = error
    return first, wrong


def say_what(specs: Iterable[ModelSpec], entries: "Iterable[IndexEntry]", *, as_table: bool) -> None:
    """Report which models and queries are served: as log lines, or as a table that also has those that are not."""
    if as_table:
        served: list[Mapping[str, object]] = [
            {
                "serving": spec.name,
                "version": spec.version if not spec.steps else "query",
                "takes": ", ".join([one.name for one in spec.about.raw] or [one.name for one in spec.inputs]),
                "stages": len(spec.steps) or spec.stages,
                "exits after": " ".join(map(str, spec.lookups)),
                "wrong": "",
            }
            for spec in specs
        ]
        missing = [
            {**dict.fromkeys(served[0], ""), "serving": entry["name"], "wrong": entry["reason"]}
            for entry in entries
            if served and entry["state"] == "UNAVAILABLE"
        ]
        show("", [*served, *missing], to=errors)
        return
    for spec in specs:
        if spec.steps:
            logger.info("serving query %s: %s", spec.name, in_order(spec.steps))
        else:
            logger.info("serving %s version %s", spec.name, spec.version)


def say_where(settings: ServeConfig, port: int, grpc_port: int | None, *, dashboard: bool) -> None:
    """Print the addresses, that of HTTP last because scripts wait for it; log the dashboard's if there is one."""
    host = settings.server.host
    if ":" in host:
        host = f"[{host}]"
        logger.info("listening at %s over %s", host, " and ".join(families(settings.server.host)))
    url = f"{'https' if settings.server.tls_cert else 'http'}://{host}:{port}{settings.server.prefix}"
    if settings.server.unix:
        url = f"unix:{settings.server.unix}"
    if dashboard and not settings.server.unix:  # browsers cannot open a Unix socket
        logger.info("dashboard: %s/dashboard/", url)
    if grpc_port is not None:
        print(f"{GRPC_READY}{host}:{grpc_port}", flush=True)
    print(f"{READY}{url}", flush=True)
