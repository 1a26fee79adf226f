"""The options of `latebind serve`, in groups. Each group returns the settings that its options set, by section."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import msgspec
import typer
from msgspec.structs import replace

from latebind.cli.numbers import numbers
from latebind.cli.together import check_ray, check_workers, known_keys
from latebind.domain.config import TIERS, ServeConfig
from latebind.domain.errors import ConfigError
from latebind.domain.wording import size
from latebind.engine.cores import fitted

Parts = dict[str, dict[str, Any]]
"""Values by their part of the configuration and their key there; None where an option was not given."""


class Group(Protocol):
    """Some of the options."""

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""


def read_settings(file: Path | None, groups: Sequence[Group], *, on: str | None = None) -> ServeConfig:
    """Read the file if there is one, put the given options over it, and check each part once. Raises `ConfigError`.

    Where neither says how many workers there are, the cores of this machine decide, or those of a replica `on` Ray.
    """
    given: Parts = {}
    for group in groups:
        for part, values in group.parts().items():
            given.setdefault(part, {}).update({key: value for key, value in values.items() if value is not None})
    settings, said = (ServeConfig(), {}) if file is None else _read(file)
    settings = replace(settings, **{part: replace(getattr(settings, part), **values) for part, values in given.items()})
    return fitted(settings, {**said.get("engine", {}), **given["engine"]}, on=on)


def _read(file: Path) -> tuple[ServeConfig, Parts]:
    """Return what a file sets, and the same as it stands there."""
    try:
        text = file.read_bytes()
        return msgspec.toml.decode(text, type=ServeConfig, strict=True), msgspec.toml.decode(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (ConfigError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}{known_keys(str(error))}") from None


def _named(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else numbers(option, text)


def _bytes(option: str, text: str | None) -> int | None:
    return None if text is None else size(option, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Where models from a URL are kept, and how many bytes of them."""

    PANEL: ClassVar = "Models from a URL"

    cache: Annotated[
        Path | None, typer.Option(help="Folder for models that a URL names. Default: in the user's cache folder.")
    ] = None
    cache_size: Annotated[
        str | None, typer.Option(help="The most that may be fetched from a URL, as 500MB or 2GiB. Default: 64GiB.")
    ] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        return {"repository": {"cache": _named(self.cache), "most": _bytes("--cache-size", self.cache_size)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Where the server listens, by when it answers, and what it shows."""

    PANEL: ClassVar = "Where it listens, what it shows"

    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on: 0.0.0.0 is all of IPv4, `::` all of IPv4 and IPv6. Default: 127.0.0.1."
        ),
    ] = None
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any free one. Default: 8000.")] = None
    grpc_port: Annotated[
        int | None, typer.Option(help="Port to speak gRPC on too, 0 for any free one. Needs latebind\\[grpc].")
    ] = None
    deadline_ms: Annotated[float | None, typer.Option(help="Deadline of requests that name none. Default: 1000.")] = (
        None
    )
    show_exit: Annotated[
        bool | None, typer.Option(help="Whether answers say at which stage they left the network. Default: yes.")
    ] = None
    dashboard: Annotated[
        bool | None,
        typer.Option(
            help="Whether there is a read-only page at /dashboard. Default: where only this machine reaches it."
        ),
    ] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        server = {
            "host": self.host,
            "port": self.port,
            "grpc_port": self.grpc_port,
            "deadline": _seconds(self.deadline_ms),
            "show_exit": self.show_exit,
            "dashboard": self.dashboard,
        }
        return {"server": server}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Who may call the server, by what proof, and whose memory it reads."""

    PANEL: ClassVar = "Who may call"

    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that every call but health needs. Default: none.")
    ] = None
    admin_token_file: Annotated[
        Path | None, typer.Option(help="A file with the token for calls that change what is served or how.")
    ] = None
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which clients call this server; may be repeated.")
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(help="Speak TLS with this certificate (PEM, followed by its chain).")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate (PEM, no password).")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Answer only clients whose certificate this authority (PEM) signed.")
    ] = None
    shared_memory: Annotated[
        list[str] | None,
        typer.Option(
            help="Let clients name system shared memory whose key begins with this; may be repeated. Default: none."
        ),
    ] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        server = {
            "token_file": _named(self.token_file),
            "admin_token_file": _named(self.admin_token_file),
            "allow_hosts": None if self.allow_host is None else tuple(self.allow_host),
            "tls_cert": _named(self.tls_cert),
            "tls_key": _named(self.tls_key),
            "tls_client_ca": _named(self.tls_client_ca),
            "shared_memory": tuple(self.shared_memory) if self.shared_memory else None,
        }
        return {"server": server}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Whether learned caches may answer early, and which policy forms batches."""

    PANEL: ClassVar = "Early exits and batches"

    exits: Annotated[bool | None, typer.Option(help="Whether learned caches may answer early. Default: yes.")] = None
    policy: Annotated[
        str | None,
        typer.Option(
            help="Which requests run together: late, lazy+, graph, or a class of yours, as package.module:Class, which "
            "is imported and runs. Default: late."
        ),
    ] = None
    max_batch: Annotated[int | None, typer.Option(help="The largest batch; 0: what each model was built for.")] = None
    window_ms: Annotated[float | None, typer.Option(help="How long graph batching holds a batch back. Default: 0.")] = (
        None
    )

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        policy = {"name": self.policy, "max_batch": self.max_batch, "window": _seconds(self.window_ms)}
        return {"engine": {"exits": self.exits}, "policy": policy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers that run stages: how many, on which cores and device, and for how many requests."""

    PANEL: ClassVar = "Workers and cores"

    workers: Annotated[
        int | None,
        typer.Option(help="Workers that run at once. Default: one for each core beside the door's, at most 8."),
    ] = None
    granularities: Annotated[
        str | None,
        typer.Option(help="A worker for each of these largest batches, as 1,1,2,4,8,16; instead of --workers."),
    ] = None
    threads: Annotated[
        int | None, typer.Option(help="Threads of each worker. Default: 1, more on more than 9 cores.")
    ] = None
    cores: Annotated[str | None, typer.Option(help="Cores for the engine, as 1 or 2,3. Default: any.")] = None
    slots: Annotated[
        int | None, typer.Option(help="Requests of a model that may be under way at once. Default: 256.")
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(help="Run stages on this backend instead of the one that build chose; no build has compared it."),
    ] = None
    device: Annotated[str | None, typer.Option(help="Compute on cpu, cuda or cuda:0. Default: cpu.")] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        granularities = _numbers("--granularities", self.granularities)
        check_workers(self.workers, granularities)
        engine = {
            "workers": self.workers,
            "granularities": granularities,
            "threads": self.threads,
            "cores": _numbers("--cores", self.cores),
            "slots": self.slots,
            "backend": self.backend,
            "device": self.device,
        }
        return {"engine": engine}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How much memory models may use, and which of them are evicted first."""

    PANEL: ClassVar = "More models than memory holds"

    memory: Annotated[
        str | None,
        typer.Option(
            help="What weights, slots, batches and requests between stages may take together, as 500MB or 2GiB: models "
            "load on demand. The processes come on top. Default: all are loaded."
        ),
    ] = None
    evict: Annotated[
        str | None,
        typer.Option(
            help="Which models go when room is needed: late, lru, or a class of yours, as package.module:Class, which "
            "is imported and runs. Default: late."
        ),
    ] = None
    tier: Annotated[
        str | None,
        typer.Option(
            help=f"Where evicted stages stay: {' or '.join(TIERS)}, which frees their pages. Default: {TIERS[0]}."
        ),
    ] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        budget = _bytes("--memory", self.memory)
        return {"residency": {"budget": budget, "policy": self.evict, "tier": self.tier}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapting:
    """Whether learned caches adapt to the traffic, and how."""

    PANEL: ClassVar = "Learned caches that follow the traffic"

    adapt: Annotated[
        bool | None,
        typer.Option(
            help="Whether learned caches are retrained on the traffic and their fidelity is watched. Default: no."
        ),
    ] = None
    sample: Annotated[
        float | None, typer.Option(help="The largest share of requests to run again for that. Default: 0.2.")
    ] = None
    retrain_s: Annotated[
        float | None, typer.Option(help="Seconds after which caches are retrained in any case. Default: 900.")
    ] = None
    adapted: Annotated[
        Path | None, typer.Option(help="Folder for the versions of retrained caches. Default: beside each model.")
    ] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        adaptation = {
            "on": self.adapt,
            "sample": self.sample,
            "interval": self.retrain_s,
            "folder": _named(self.adapted),
        }
        return {"adaptation": adaptation}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changing:
    """How new versions of models are taken up while the server runs."""

    PANEL: ClassVar = "Changes while it serves"

    watch: Annotated[
        float | None,
        typer.Option(help="Seconds between looks for new models and versions. Default: look on SIGHUP only."),
    ] = None
    manage: Annotated[
        bool | None, typer.Option(help="Whether clients may have models loaded and unloaded. Default: no.")
    ] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        return {"generations": {"watch": self.watch}, "server": {"manage": self.manage}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Traces, the log and the event log."""

    PANEL: ClassVar = "Traces and logs"

    trace_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of calls to follow from admission to answer. Default 0: only calls whose caller asks for it."
        ),
    ] = None
    otlp: Annotated[
        str | None, typer.Option(help="Send traces to this OpenTelemetry collector, as http://127.0.0.1:4318.")
    ] = None
    log_format: Annotated[str | None, typer.Option(help="Lines of the log: text or json. Default: text.")] = None
    event_log: Annotated[Path | None, typer.Option(help="Write events and actions to FILE for `replay`.")] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        told = {"trace_rate": self.trace_rate, "otlp": self.otlp, "log_format": self.log_format}
        return {"observability": told}


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRay:
    """Whether to serve on Ray, and with how many replicas."""

    PANEL: ClassVar = "Several replicas, on Ray"

    on: Annotated[
        str | None, typer.Option(help="Serve on `ray`: an ingress, and replicas of what serves here otherwise.")
    ] = None
    replicas: Annotated[int | None, typer.Option(help="The smallest number of replicas on Ray. Default: 1.")] = None
    max_replicas: Annotated[
        int | None,
        typer.Option(help="The largest number of replicas on Ray; the traffic decides. Default: as --replicas."),
    ] = None
    replica_cpus: Annotated[
        float | None,
        typer.Option(help="Cores that each replica asks Ray for. Default 0: none, which leaves it to the machine."),
    ] = None
    ray_address: Annotated[
        str | None, typer.Option(help="The Ray cluster to serve on, as auto. Default: start one on this machine.")
    ] = None

    def parts(self) -> Parts:
        """Return what was given. Raises `ConfigError`."""
        replicas = {"--replicas": self.replicas, "--max-replicas": self.max_replicas}
        check_ray(self.on, {**replicas, "--replica-cpus": self.replica_cpus})
        cluster = {
            "replicas": self.replicas,
            "max_replicas": self.max_replicas,
            "cpus": self.replica_cpus,
            "address": self.ray_address,
        }
        return {"cluster": cluster}
