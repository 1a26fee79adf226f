"""Starts the application on Ray Serve, waits for signals, and stops the application."""

import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from latebind.cluster.replica import Application
from latebind.domain.config import ClusterConfig, ServeConfig
from latebind.domain.errors import ConfigError
from latebind.forks.client import fork_server, lending
from latebind.repository.listing import Selection

NAME = "latebind"
SAFE = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}
OWN = {  # only if Ray is started for this server alone
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray use loopback; else it finds a public address
    "RAY_worker_niceness": "0",  # else ingress and replicas give way to whatever else runs on the machine
}
DRAIN = 45.0  # seconds that a replica has to answer its calls before it ends
HEALTH_PERIOD, HEALTH_TIMEOUT = 0.25, 10.0  # seconds; Ray notices a dead replica only at the end of a period
METRICS_PERIOD, LOOK_BACK = 1.0, 5.0  # seconds between figures for autoscaling, and over which Ray averages them
STARTS = 3  # attempts
OBJECT_STORE = 80 << 20  # bytes; latebind keeps nothing there
CALLS = 10_000  # Ray's own calls at once; the calls of clients do not pass through Ray

logger = logging.getLogger(__name__)


@contextmanager
def on_ray(
    selection: Selection, settings: ServeConfig, *, explicit: tuple[str, ...] = ()
) -> Iterator[tuple[int, int | None]]:
    """Serve on Ray while the block lasts; yields the ports for HTTP and gRPC. Raises `ConfigError`.

    Settings of the engine named in `explicit` are not chosen for the cores of a replica.

    If no cluster is named, one is started on this machine, which other machines cannot reach, and ended with the block.
    """
    for name, value in {**SAFE, **({} if settings.cluster.address else OWN)}.items():
        os.environ.setdefault(name, value)
    serve = _ray_serve()
    import ray  # noqa: PLC0415  (optional, and slow to import)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="latebind-")))
        forks = stack.enter_context(fork_server())
        forks.warm()
        # Engines on this machine are forked from that process, which has imported the slow packages.
        stack.enter_context(lending(forks, folder / "lender"))
        _connect(ray, settings.cluster)
        stack.callback(ray.shutdown)
        stack.callback(partial(serve.delete, NAME) if settings.cluster.address else serve.shutdown)
        serve.start(proxy_location="Disabled")
        application = Application(selection, settings, secrets.token_urlsafe(32), folder / "lender", explicit)
        try:
            handle = serve.run(bound(application), name=NAME, route_prefix=None, _local_testing_mode=False)
        except RuntimeError as error:
            raise ConfigError(f"Ray could not start the application: {error}") from None
        yield tuple(handle.ports.remote().result())


def check(on: str, settings: ServeConfig, *, event_log: bool = False) -> None:
    """Raise `ConfigError` for options of `latebind serve` that cannot be used on a cluster."""
    if on != "ray":
        raise ConfigError(f"--on is {on!r}: choose ray, or leave it out to serve on this machine alone")
    refused = {
        "--event-log": (event_log, "each engine would write over it: serve on one machine to record one"),
        "--split": (bool(settings.repository.split), "replicas serve one version: split on one machine"),
        "--cores": (bool(settings.engine.cores), "all replicas would share them: give --replica-cpus instead"),
        "--unix": (bool(settings.server.unix), "other machines cannot reach it"),
        "--keep-going": (settings.generations.keep_going, "all replicas serve the same: name models with --model"),
        "--dashboard": (
            settings.server.dashboard is True,
            "the page shows only one engine: use /metrics for all replicas",
        ),
    }
    for option, (given, why) in refused.items():
        if given:
            raise ConfigError(f"{option} does not go with --on {on}: {why}")


def wait() -> None:
    """Return when the process gets SIGINT or SIGTERM."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


def bound(application: Application) -> Any:
    """Return the application in Ray Serve's form: an ingress bound to replicas."""
    serve = _ray_serve()
    from latebind.cluster.deployments import IngressActor, ReplicaActor  # noqa: PLC0415  (it imports ray)

    config, engine = application.settings.cluster, application.settings.engine
    common = {
        "max_ongoing_requests": CALLS,
        "health_check_period_s": HEALTH_PERIOD,
        "health_check_timeout_s": HEALTH_TIMEOUT,
        "graceful_shutdown_timeout_s": DRAIN,
    }
    replicas = serve.deployment(
        ReplicaActor,
        name="replica",
        ray_actor_options={"num_cpus": config.cpus, "num_gpus": float(engine.device.startswith("cuda"))},
        request_router_config={
            "request_router_class": "latebind.cluster.deployments:AnnouncingRouter",
            "request_routing_stats_period_s": 1.0,
        },
        **({"autoscaling_config": autoscaling(config)} if config.scales else {"num_replicas": config.replicas}),
        **common,
    )
    # The ingress asks for almost nothing, on a node of its kind if one is configured.
    node = {"resources": {config.ingress: 0.001}} if config.ingress else {}
    ingress = serve.deployment(
        IngressActor, name="ingress", ray_actor_options={"num_cpus": 0, **node}, num_replicas=1, **common
    )
    return ingress.bind(application, replicas.bind(application))


def autoscaling(config: ClusterConfig) -> dict[str, Any]:
    """Return Ray's settings for a number of replicas that follows the traffic."""
    return {
        "min_replicas": config.replicas,
        "max_replicas": config.max_replicas,
        "metrics_interval_s": METRICS_PERIOD,
        "look_back_period_s": LOOK_BACK,
        "upscale_delay_s": 0.0,  # the policy itself waits; Ray's own 30 and 600 s would start over each time
        "downscale_delay_s": 0.0,
        "policy": {
            "policy_function": "latebind.cluster.deployments:BySlack",
            "policy_kwargs": {"up": config.up_after, "down": config.down_after},
        },
    }


def _connect(ray: Any, config: ClusterConfig) -> None:
    if config.address:
        ray.init(address=config.address, namespace=NAME)
        return
    for attempt in range(STARTS):  # on a busy machine Ray may need more than the 30 s that it gives itself
        try:
            ray.init(
                namespace=NAME,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                configure_logging=False,
            )
        except Exception as error:  # Ray raises nothing more specific
            ray.shutdown()
            if attempt + 1 == STARTS:
                raise ConfigError(f"Ray does not start: {error}") from error
        else:
            return


def _ray_serve() -> Any:
    """Import Ray Serve. Raises `ConfigError` without the extra."""
    try:
        from ray import serve  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("Ray is not installed: pip install 'latebind[ray]', or leave --on out") from error
    return serve
