"""Every key of the configuration, its meaning, and the option of `latebind serve` that sets it, if there is one.

Rarely used keys can be set only in the file. Options override the file.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
import typer
from msgspec.structs import replace

from latebind.cli.options import numbers
from latebind.domain.config import EngineConfig, ServeConfig
from latebind.domain.errors import ConfigError
from latebind.domain.wording import size

KEYS = """
Address and display
  --host server.host: Address to listen on: 0.0.0.0 is all of IPv4, `::` all of IPv4 and IPv6. Default: 127.0.0.1.
  --port server.port: Port to listen on, 0 for any free one. Default: 8000.
  --unix server.unix: Serve HTTP on a Unix socket at this path instead of host and port.
  --prefix server.prefix: The prefix of all URL paths, such as /models, if a proxy passes it on. Default: none.
  --grpc-port server.grpc_port: Port for gRPC, 0 for any free one. Needs latebind[grpc]. Default: no gRPC.
  --deadline-ms server.deadline (seconds): Deadline of requests without one. Default: 1000.
  --show-exit server.show_exit: Whether answers say at which stage they left the network. Default: yes.
  --dashboard server.dashboard: Whether there is a read-only page at /dashboard. Default: only if the server listens on
    loopback.
Access
  --token-file server.token_file: A file with the token that every call except health needs. Default: none.
  --admin-token-file server.admin_token_file: A file with the token for calls that change what is served or how.
  --allow-host server.allow_hosts: A host name by which clients may call this server; may be repeated.
  --allow-origin server.allow_origins: A site, such as https://app.example, whose pages may call this server (CORS); may
    be repeated. Default: none.
  --tls-cert server.tls_cert: Use TLS with this certificate (PEM, followed by its chain).
  --tls-key server.tls_key: The key of the certificate (PEM, no password).
  --tls-client-ca server.tls_client_ca: Answer only clients whose certificate this authority (PEM) signed.
  --max-body server.max_body (bytes): The largest request, also after decompression, such as 64MiB. Default: 64MiB.
  --max-json server.max_json (bytes): The largest amount of JSON in a request; parsing it delays other requests.
    Default: 16MiB.
  --max-connections server.max_connections: The most HTTP connections that may be open at once. Default: 4096.
  --shared-memory server.shared_memory: Let clients name system shared memory whose key begins with this; may be
    repeated. Default: none.
Early exits and batches
  --exits engine.exits: Whether learned caches may answer early. Default: yes.
  --floor engine.floor (share): The lowest fidelity. Requests that would be late or refused get less than the calibrated
    fidelity, down to this; with time to spare they get more. Default: always as calibrated.
  --below engine.below (share): The largest share of requests to answer with less than the calibrated fidelity.
    Default: 1.
  --policy policy.name: The batching policy: late, lazy+, graph, or a class of your own as package.module:Class, which
    is imported and run. Default: late.
  --max-batch policy.max_batch: The largest batch; 0: the one each model was built for. Default: 0.
Workers and cores
  --workers engine.workers: The number of workers. Default: one for each core except the frontend's, at most 8; one
    with all these cores if all models read texts.
  --threads engine.threads: Threads of each worker. Default: 1; more on more than 9 cores, or if all models read texts.
  --cores engine.cores: Cores for the engine, such as 1 or 2,3. Default: any.
  --slots engine.slots: The most requests of a model in flight at once. Default: 256; with --memory
    fewer, down to 16, where these would take more than a quarter of it.
  --backend engine.backend: Run stages on this backend instead of the one that build chose; build has not compared it.
  --device engine.device: Compute on cpu, cuda or cuda:0. Default: cpu.
More models than memory holds
  --memory residency.budget (bytes): The memory for weights, slots, batches and requests between stages together, such
    as 500MB or 2GiB; models load on demand. The processes come on top. Default: all models are loaded.
  --evict residency.policy: The eviction policy: late, lru, or a class of your own as package.module:Class, which is
    imported and run. Default: late.
  --idle residency.idle (seconds): Free the memory of models that had no request for this many seconds; the next request
    loads them again. Without --memory, the budget is all of the machine's memory. Default: 0, never.
Adapting learned caches to the traffic
  --adapt adaptation.on: Whether learned caches are retrained on the traffic and their fidelity is watched. With
    --floor, each level is watched. Default: no.
  --sample adaptation.sample (share): The largest share of requests to run again as samples. Default: 0.2.
  --retrain-s adaptation.interval (seconds): Seconds after which caches are retrained in any case. Default: 900.
  --adapted adaptation.folder: Folder for the versions of retrained caches. Default: beside each model.
Models: remote repositories, versions, changes while serving
  --cache repository.cache: Folder for models fetched from a URL. Default: in the user's cache folder.
  --cache-size repository.most (bytes): The most to fetch from a URL, such as 500MB or 2GiB. Default: 64GiB.
  --split repository.split: Serve several versions of a model, such as resnet=1:90,2:10 in percent of its requests;
    2:shadow sends version 2 copies and compares. May be repeated, for other models. Default: the newest version.
  --split-by server.split_by: The header whose value decides which version answers; the same value always gets the same
    version. Default: requests take turns.
  --watch generations.watch (seconds): Seconds between scans for new models and versions. Default: scan only on SIGHUP.
  --keep-going generations.keep_going: Whether to serve the models that load if others do not. Default: no.
  --manage server.manage: Whether clients may load and unload models. Default: no.
Traces and logs
  --trace-rate observability.trace_rate (share): Share of calls to trace from admission to answer. Default 0: only calls
    whose caller requests it.
  --otlp observability.otlp: Send traces to this OpenTelemetry collector, such as http://127.0.0.1:4318.
  --log-format observability.log_format: Format of log lines: text or json. Default: text.
Several replicas, on Ray
  --replicas cluster.replicas: The smallest number of replicas on Ray. Default: 1.
  --max-replicas cluster.max_replicas: The largest number of replicas on Ray; the traffic decides how many run.
    Default: as --replicas.
  --replica-cpus cluster.cpus: Cores that each replica requests from Ray. Default: 0, none.
  --ray-address cluster.address: The Ray cluster to serve on, such as auto. Default: start one on this machine.
Keys only in the file
  engine.granularities (rows): One worker for each of these largest batches, such as [1, 1, 2, 4, 8]; on a CPU no more
    run at once than there are cores for. Instead of engine.workers. Default: none.
  policy.window (seconds): With the policy graph, how long the oldest request waits for a full batch. Default: 0.
  policy.shed: Whether requests that cannot be answered in time are refused or dropped. Default: yes.
  residency.stages: Whether models are loaded and evicted stage by stage; otherwise as a whole. Default: yes.
  residency.patience (seconds): How long a request may wait for its model while later requests for others are served;
    the time of loads that go first counts. Default: 30.
  residency.window (seconds): The time over which request rates are measured. Default: 600.
  residency.back_off (seconds): The delay before a failed load is retried, doubled each further time. Default: 1.
  residency.tier: Where evicted weights are kept: page-cache (the system keeps them while it has spare memory) or disk.
    Default: page-cache.
  residency.resting (bytes): While started requests keep more than this between stages, no others start; 0: no limit.
    Default: 0.
  adaptation.rows (rows): How many of the latest samples are kept to train caches on, and as many to check them.
    Default: 6000.
  adaptation.window (seconds): The age up to which samples are kept. Default: 3600.
  adaptation.yields: Whether caches are retrained only while other processes leave cores idle. Default: yes.
  generations.crashes: A model is taken out of service after this many engine crashes while it ran. Default: 3.
  generations.within (seconds): The time within which these crashes count. Default: 60.
  generations.back_off (seconds): The delay before an engine that did not start is retried, doubled each further time.
    Default: 1.
  generations.patience (seconds): An engine whose work is late by more than this is killed and replaced. Default: 10.
  generations.drain (seconds): How long a replaced engine has to answer what it accepted. Default: 60.
  cluster.up_after (seconds): A replica is added when answers were at risk for this long. Default: 5.
  cluster.down_after (seconds): A replica is removed when fewer were enough for this long. Default: 60.
  cluster.ingress: The Ray resource of the nodes that the ingress may run on. Default: any node.
  cluster.calls: The most calls in flight to one replica. Default: 256.
"""
ENTRY = re.compile(
    r"  (?:--(?P<option>\S+) )?(?P<part>\w+)\.(?P<key>\w+)(?: \((?P<unit>\w+)\))?: (?P<help>.*(?:\n    .*)*)"
)
READ: Mapping[str, Callable[[str, Any], Any]] = {  # options whose values are converted
    "deadline_ms": lambda _, milliseconds: milliseconds / 1e3,
    "cores": numbers,
    "memory": size,
    "max_body": size,
    "max_json": size,
    "cache_size": size,
}
PLACE = re.compile(r"`\$\.(\w+)")

Given = dict[str, Any]
"""Values by the names of their options, with underscores; None where an option was not given."""


class Setting(NamedTuple):
    """A key `part.key` of the configuration; `option` has underscores, and is empty for a key only in the file."""

    panel: str
    option: str
    part: str
    key: str
    unit: str  # of the key; the option may have another one, stated in its name or help
    help: str


class Settings:
    """Settings described by a text, whose options a command takes as `Annotated[Given, Settings(...)]`.

    The title of a panel is followed by its settings, each `  --NAME PART.KEY (UNIT): HELP`; name and unit are optional.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[Setting]:
        """Yield every setting, including those that only the file has."""
        for panel in re.split(r"\n(?=\S)", self._text.rstrip())[1:]:
            title, _, rest = panel.partition("\n")
            for option, part, key, unit, text in ENTRY.findall(rest):
                yield Setting(title, option.replace("-", "_"), part, key, unit, " ".join(text.split()))

    def _options(self) -> Iterator[Setting]:
        return (setting for setting in self if setting.option)

    def parameters(self) -> Iterator[Parameter]:
        """Yield a parameter for each option, for Typer to read."""
        whole = ServeConfig()
        for panel, name, part, key, _, text in self._options():
            kind: Any = get_type_hints(type(getattr(whole, part)))[key]
            if READ.get(name) in {size, numbers}:
                kind = str
            kind = list[str] | None if kind == tuple[str, ...] else kind | None
            option = typer.Option(help=text.replace("[", "\\["), rich_help_panel=panel)
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])

    def read(self, file: Path | None, given: Given) -> tuple[ServeConfig, Given]:
        """Read the file if there is one, override it with the given options, and check each part once.

        Also returns the engine's keys that were given, for `engine.cores.fitted`. Raises `ConfigError`.
        """
        settings, tables = (ServeConfig(), {}) if file is None else _read(file)
        parts: dict[str, Given] = {"engine": {}}
        for _, name, part, key, *_ in self._options():
            if (value := given[name]) is not None:
                if name in READ:
                    value = READ[name](f"--{name.replace('_', '-')}", value)
                parts.setdefault(part, {})[key] = tuple(value) if isinstance(value, list) else value
        engine = {**tables.get("engine", {}), **parts["engine"]}
        if engine.keys() >= {"workers", "granularities"}:
            raise ConfigError(
                "engine.workers and engine.granularities both set the number of workers: give one of them"
            )
        changed = {part: replace(getattr(settings, part), **values) for part, values in parts.items()}
        settings = replace(settings, **changed)
        residency = settings.residency
        if residency.idle and not residency.budget:  # unloading models needs a budget
            all_of_it = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            settings = replace(settings, residency=replace(residency, budget=all_of_it))
        return settings, engine


SETTINGS = Settings(KEYS)


def _read(file: Path) -> tuple[ServeConfig, dict[str, Given]]:
    """Return the configuration that a file sets, and its raw tables."""
    try:
        text = file.read_bytes()
        return msgspec.toml.decode(text, type=ServeConfig, strict=True), msgspec.toml.decode(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (ConfigError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}{known_keys(str(error))}") from None


def known_keys(error: str) -> str:
    """Return the keys of the configuration's table that a decoder error is about; "" for other errors."""
    if "unknown field" not in error:
        return ""
    place = PLACE.search(error)
    table: Any = type(getattr(ServeConfig(), place[1])) if place else ServeConfig
    return f"; the keys are {', '.join(field.name for field in msgspec.structs.fields(table))}"


def check_machine(engine: EngineConfig, event_log: Path | None) -> None:
    """Raise `ConfigError` for cores that this process may not have, and for a log that cannot be written."""
    missing = [core for core in engine.cores if not _may_run_on(core)]
    if missing:
        allowed = sorted(os.sched_getaffinity(0))
        raise ConfigError(f"engine.cores names {missing}, where this process may not run: it may run on {allowed}")
    if event_log is not None and not event_log.absolute().parent.is_dir():
        raise ConfigError(f"--event-log {event_log}: {event_log.parent} does not exist: create it first")


def _may_run_on(core: int) -> bool:
    """Return whether this thread may run on a core, even one that it was not started on; it stays where it is."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, ValueError, OverflowError):
        return False
    os.sched_setaffinity(0, before)
    return True
