"""`latebind serve`: the door in this process, the engine in one of its own."""

import asyncio
import logging
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
import uvloop
from msgspec.structs import replace

from latebind.adaptation.beside import start_beside
from latebind.batching import POLICIES, make_policy
from latebind.cli.console import reporting
from latebind.cli.numbers import numbers
from latebind.cli.steps import in_order
from latebind.cli.together import check_machine, check_ray, check_workers, known_keys
from latebind.compiled import is_compiled
from latebind.domain.config import GRPC_STACKS, TIERS, ServeConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.domain.sizes import size
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.forks import lending
from latebind.heap import settle
from latebind.logs import write_logs
from latebind.repository.mirror import open_selection
from latebind.repository.selection import Selection
from latebind.residency import POLICIES as RESIDENCY_POLICIES
from latebind.residency import make_policy as make_residency_policy
from latebind.server.descriptors import make_room
from latebind.server.door import Door
from latebind.server.limits import Limits
from latebind.server.listening import check_addresses
from latebind.server.secured import Secured

if TYPE_CHECKING:
    from latebind.server.telemetry import SpanExport

logger = logging.getLogger(__name__)

READY = "latebind serves at "  # printed with the URL once requests are answered; scripts wait for it
GRPC_READY = "latebind serves gRPC at "  # the line before, where it does
LIVE = [name for name in POLICIES if name != "static"]
LIVE_RESIDENCY = [name for name, policy in RESIDENCY_POLICIES.items() if not hasattr(policy, "foretell")]  # no oracles


def serve(
    repository: Annotated[
        str,
        typer.Argument(help="A folder of models, one model directory, or the URL of either, as s3://bucket/models."),
    ],
    model: Annotated[
        list[str] | None, typer.Option(help="Serve this model or query; may be repeated. Default: all.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML: [server], [engine], [policy], [residency], [adaptation], [generations], [observability], "
            "[repository], [cluster]; options win."
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for models that a URL names. Default: in the user's cache folder.")
    ] = None,
    cache_size: Annotated[
        str | None, typer.Option(help="The most that may be fetched from a URL, as 500MB or 2GiB. 64GiB.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any free one. Default: 8000.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that every call but health needs. Default: none.")
    ] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(help="A file with the token for calls that change what is served or how.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that clients call this server by; may be repeated.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Speak TLS with this certificate (PEM, chain behind it).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM, no password).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Answer only clients with a certificate that this one signed.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="Port to speak gRPC on too, 0 for any free one. Needs latebind\\[grpc].")
    ] = None,
    grpc_stack: Annotated[
        str | None, typer.Option(help=f"What speaks gRPC: {' or '.join(GRPC_STACKS)}, which is lean. {GRPC_STACKS[0]}.")
    ] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="Deadline of requests that name none. 1000.")] = None,
    show_exit: Annotated[bool | None, typer.Option(help="Whether answers tell the stage they left at.")] = None,
    shared_memory: Annotated[
        list[str] | None,
        typer.Option(help="Let clients name system shared memory whose key begins so; may be repeated. Default: none."),
    ] = None,
    dashboard: Annotated[
        bool | None,
        typer.Option(
            help="Whether there is a read-only page at /dashboard. Default: where only this machine reaches it."
        ),
    ] = None,
    exits: Annotated[bool | None, typer.Option(help="Whether learned caches may answer early.")] = None,
    policy: Annotated[str | None, typer.Option(help=f"Who runs together: {', '.join(LIVE)}. late.")] = None,
    max_batch: Annotated[int | None, typer.Option(help="The largest batch; 0 is what a model was built for.")] = None,
    window_ms: Annotated[float | None, typer.Option(help="How long graph batching holds a batch back. 0.")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers that run at once. 1.")] = None,
    granularities: Annotated[
        str | None, typer.Option(help="A worker for each of these largest batches, as 1,1,2,4,8,16; not --workers.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each worker. 1.")] = None,
    cores: Annotated[str | None, typer.Option(help="Cores for the engine, as 1 or 2,3. Default: any.")] = None,
    slots: Annotated[int | None, typer.Option(help="Requests of a model that may be under way at once. 256.")] = None,
    backend: Annotated[str | None, typer.Option(help="Run stages on this backend, not on the one built for.")] = None,
    device: Annotated[str | None, typer.Option(help="Compute on cpu, cuda or cuda:0. Default: cpu.")] = None,
    awake: Annotated[
        bool | None, typer.Option(help="Keep idle cores from sleeping: quicker at low load, more power. Needs root.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="What weights, slots and the largest batches of all workers may take, as 500MB or 2GiB: models load "
            "on demand. The processes come on top. Default: all are loaded."
        ),
    ] = None,
    evict: Annotated[
        str | None, typer.Option(help=f"Who goes when room is needed: {', '.join(LIVE_RESIDENCY)}. late.")
    ] = None,
    tier: Annotated[
        str | None, typer.Option(help=f"Where what goes stays: {' or '.join(TIERS)}, which gives all back. {TIERS[0]}.")
    ] = None,
    adapt: Annotated[
        bool | None, typer.Option(help="Whether learned caches follow the traffic, with a watch over their fidelity.")
    ] = None,
    sample: Annotated[float | None, typer.Option(help="Most requests to run again for that, as a share. 0.2.")] = None,
    retrain_s: Annotated[float | None, typer.Option(help="Seconds until caches are retrained anyway. 900.")] = None,
    adapted: Annotated[Path | None, typer.Option(help="Folder for their versions. Default: beside each model.")] = None,
    watch: Annotated[
        float | None, typer.Option(help="Look for new models and versions every so many seconds. Default: on SIGHUP.")
    ] = None,
    manage: Annotated[bool | None, typer.Option(help="Whether clients may have models loaded and unloaded.")] = None,
    trace_rate: Annotated[
        float | None, typer.Option(help="Share of calls to follow from admission to answer. 0, and whose caller asks.")
    ] = None,
    otlp: Annotated[
        str | None, typer.Option(help="Send traces to this OpenTelemetry collector, as http://127.0.0.1:4318.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="Lines of the log: text or json. text.")] = None,
    event_log: Annotated[Path | None, typer.Option(help="Write events and actions to FILE for `replay`.")] = None,
    on: Annotated[
        str | None, typer.Option(help="Serve on `ray`: an ingress, and replicas of all that serves here otherwise.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas on Ray, at least. 1.")] = None,
    max_replicas: Annotated[
        int | None, typer.Option(help="Replicas on Ray, at most: their number follows the traffic. Default: no more.")
    ] = None,
    replica_cpus: Annotated[
        float | None, typer.Option(help="Cores that each replica asks Ray for. 0, which leaves it to the machine.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="The Ray cluster to serve on, as auto. Default: one of its own, here.")
    ] = None,
) -> None:
    """Serve models and queries over the Open Inference Protocol v2 (HTTP, gRPC) until interrupted.

    A query is a graph of models under one deadline, written down beside them as `NAME.query.toml`; to clients it is one
    more model. Where it is named by `--model`, its models are served with it.

    Workers times threads should not exceed the cores that are left beside the door; of workers with granularities only
    as many run at once.

    When the engine's process dies, another takes over. On SIGHUP the repository is looked at again: new versions come
    up beside what is served, are tried, and take over without anybody's noticing; meanwhile both are in memory.

    Examples:

    * `latebind serve models`
    * `latebind serve models --model resnet56 --port 0 --cores 1 --policy graph --max-batch 8`
    * `latebind serve models --grpc-port 8001`
    * `latebind serve models --granularities 1,1,2,4,8,16`
    * `latebind serve models --config latebind.toml --no-exits`
    * `latebind serve models --memory 2GiB`
    * `latebind serve models --memory 500MB --evict lru --tier disk --deadline-ms 10000`
    * `latebind serve models --adapt --sample 0.1`
    * `latebind serve models --host 0.0.0.0 --token-file token --tls-cert server.pem --tls-key server.key`
    * `latebind serve models --watch 10 --manage`
    * `latebind serve s3://bucket/models --watch 60 --cache /var/cache/latebind`
    * `latebind serve models --log-format json --trace-rate 0.01 --otlp http://127.0.0.1:4318`
    * `latebind serve models --model traffic` (with `models/traffic.query.toml`)
    * `latebind serve models --on ray --replicas 2 --max-replicas 8 --replica-cpus 2`
    """
    with reporting():
        check_ray(on, {"--replicas": replicas, "--max-replicas": max_replicas, "--replica-cpus": replica_cpus})
        check_workers(workers, None if granularities is None else numbers("--granularities", granularities))
        settings = _settings(
            config,
            server={
                "host": host,
                "port": port,
                "grpc_port": grpc_port,
                "grpc_stack": grpc_stack,
                "deadline": None if deadline_ms is None else deadline_ms / 1e3,
                "show_exit": show_exit,
                "shared_memory": tuple(shared_memory) if shared_memory else None,
                "dashboard": dashboard,
                "token_file": _named(token_file),
                "admin_token_file": _named(admin_token_file),
                "allow_hosts": None if allow_host is None else tuple(allow_host),
                "tls_cert": _named(tls_cert),
                "tls_key": _named(tls_key),
                "tls_client_ca": _named(tls_client_ca),
                "manage": manage,
            },
            engine={
                "exits": exits,
                "workers": workers,
                "granularities": None if granularities is None else numbers("--granularities", granularities),
                "threads": threads,
                "cores": None if cores is None else numbers("--cores", cores),
                "slots": slots,
                "backend": backend,
                "device": device,
                "awake": awake,
            },
            adaptation={
                "on": adapt,
                "sample": sample,
                "interval": retrain_s,
                "folder": _named(adapted),
            },
            residency={
                "budget": None if memory is None else size("--memory", memory),
                "policy": evict,
                "tier": tier,
            },
            generations={"watch": watch},
            repository={
                "cache": _named(cache),
                "most": None if cache_size is None else size("--cache-size", cache_size),
            },
            observability={"trace_rate": trace_rate, "otlp": otlp, "log_format": log_format},
            policy={
                "name": policy,
                "max_batch": max_batch,
                "window": None if window_ms is None else window_ms / 1e3,
            },
            cluster={
                "replicas": replicas,
                "max_replicas": max_replicas,
                "cpus": replica_cpus,
                "address": ray_address,
            },
        )
        write_logs("door", settings.observability.log_format)
        make_policy(settings.policy)  # an unknown name is told here, not by the engine
        make_residency_policy(settings.residency)
        if settings.policy.name == "static":
            raise ConfigError("policy.name is 'static', which only simulations pad: take graph")
        check_addresses(settings.server)
        selection = open_selection(repository, model or (), settings.repository)
        if on is not None:
            _serve_on(on, settings, selection, event_log)
            return
        check_machine(settings.engine, event_log)
        if not uvloop.run(_serve(settings, selection, event_log)):
            raise typer.Exit(1)


async def _serve(settings: ServeConfig, selection: Selection, event_log: Path | None) -> bool:
    """Start the engine, open the door, and close both in that order's reverse; return whether there was time for it."""
    order = EngineOrder(
        directories=(),
        engine=settings.engine,
        policy=settings.policy,
        event_log=str(event_log) if event_log else None,
        adapted=settings.adaptation.folder,
        residency=settings.residency,
        log_format=settings.observability.log_format,
    )
    secured = Secured.by(settings.server)  # what is wrong there is told before an engine is started
    make_room(Limits().connections * (1 if settings.server.grpc_port is None else 2))
    async with AsyncExitStack() as stack:
        forks = stack.enter_context(lending.own())
        forks.warm()
        engines = await Engines.start(order, selection.first(), forks, settings.generations)
        stack.push_async_callback(engines.close)
        catalogue = Catalogue(engines, selection)
        observer = await start_beside(engines, settings, forks)
        if observer is not None:
            stack.push_async_callback(observer.close)
        following = asyncio.create_task(catalogue.follow(settings.generations.watch))
        stack.callback(following.cancel)
        export = _export(settings.observability.otlp)
        if export is not None:
            stack.push_async_callback(asyncio.to_thread, export.close)
        door = Door(
            engines,
            settings.server,
            deadlines=engines.deadlines,
            observer=observer,
            trace_rate=settings.observability.trace_rate,
            export=export,
            catalogue=catalogue,
            secured=secured,
        )
        async with door:
            door.close_on_signals()
            settle()
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, catalogue.look)
            _log(engines.models.values())
            say_where(settings, door.port, door.grpc_port, dashboard=settings.server.shows_dashboard)
            await asyncio.wait({asyncio.create_task(door.closed())})
        if door.hurried:
            await engines.close(0.0)
    return not door.hurried


def _serve_on(on: str, settings: ServeConfig, selection: Selection, event_log: Path | None) -> None:
    """Serve on a cluster until this process is told to end. Raises `ConfigError`."""
    from latebind.cluster.application import serving, wait  # noqa: PLC0415  (an optional dependency)
    from latebind.cluster.refusals import check  # noqa: PLC0415

    check(on, settings, event_log=event_log is not None)
    selection.first()  # what is not there is told here, not by a replica
    with serving(selection, settings) as (port, grpc_port):
        say_where(settings, port, grpc_port, dashboard=False)
        wait()


def say_where(settings: ServeConfig, port: int, grpc_port: int | None, *, dashboard: bool) -> None:
    """Print the addresses, that of HTTP last, which scripts wait for; log where the dashboard is, if there is one."""
    host = _printable(settings.server.host)
    url = f"{'https' if settings.server.tls_cert else 'http'}://{host}:{port}"
    if dashboard:
        logger.info("look at it: %s/dashboard/", url)
    if grpc_port is not None:
        print(f"{GRPC_READY}{host}:{grpc_port}", flush=True)
    print(f"{READY}{url}", flush=True)


def _log(models: Iterable[ModelSpec]) -> None:
    if is_compiled():
        logger.info("what launches and calls go through was compiled ahead of time")
    for spec in models:
        if spec.steps:
            logger.info("serving query %s: %s", spec.name, in_order(spec.steps))
        else:
            logger.info("serving %s version %s", spec.name, spec.version)


def _export(url: str) -> "SpanExport | None":
    """Return what sends traces to a collector, where there is one. Raises `ConfigError` without the extra."""
    if not url:
        return None
    try:
        from latebind.server.telemetry import SpanExport  # noqa: PLC0415  (an optional dependency)
    except ImportError as error:
        raise ConfigError("OpenTelemetry is not installed: pip install 'latebind[telemetry]'") from error
    return SpanExport.over_http(url)


def _settings(file: Path | None, **options: dict[str, Any]) -> ServeConfig:
    """Read the file if there is one, put the given options over it, and check everything once."""
    settings = ServeConfig()
    if file is not None:
        try:
            settings = msgspec.toml.decode(file.read_bytes(), type=ServeConfig, strict=True)
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
        except (ConfigError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: {error}{known_keys(str(error))}") from None
    parts = {
        part: replace(getattr(settings, part), **{key: value for key, value in given.items() if value is not None})
        for part, given in options.items()
    }
    return replace(settings, **parts)


def _named(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _printable(host: str) -> str:
    return f"[{host}]" if ":" in host else host
