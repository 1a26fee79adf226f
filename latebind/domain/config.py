"""The one frozen tree of settings: read once, validated once, passed down in parts.

`cli.settings` has the meaning and the unit of each key; the help and the reference are made from it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from ipaddress import ip_address
from math import inf
from typing import Any

import msgspec

from latebind.domain.costs import NOTHING, Footprint, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.domain.query import Query
from latebind.domain.split import Split

TIERS = ("page-cache", "disk")
KEY_PREFIX = re.compile(r"/?[A-Za-z0-9][A-Za-z0-9._-]*")
HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
ORIGIN = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


def _require(
    part: str, of: msgspec.Struct, *names: str, least: float = 0.0, above: float = -inf, most: float = inf, advice: str
) -> None:
    """Raise `ConfigError`, with `advice`, if a setting of these is below `least`, not `above`, or beyond `most`."""
    for name in names:
        value = getattr(of, name)
        if not (least <= value <= most and value > above):  # NaN is neither
            raise ConfigError(f"{part}.{name} is {value}: {advice}")


def find(key: str, name: str, known: Mapping[str, str]) -> Any:
    """Return what `name` stands for: one of the `known` names, or `package.module:Name`, which is imported.

    Each process that decides imports it itself, so configurations hold a path and not an object. `key` is the setting
    that has the name, for messages. Raises `ConfigError` if there is nothing of this name.
    """
    path = known.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(f"{key} is {name!r}: choose {' or '.join(known)}, or your own class as package.module:Class")
    try:
        return getattr(import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(
            f"{key} is {name!r}, which cannot be imported ({error}): put its folder on PYTHONPATH"
        ) from error
    except AttributeError:
        raise ConfigError(f"{key} is {name!r}: {module} has no {attribute}") from None


class PolicyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which batching policy decides, and its settings.

    `name` is one of `batching.policy.POLICIES` or the dotted path of a class.
    """

    name: str = "late"
    max_batch: int = 0
    window: float = 0.0
    shed: bool = True

    def __post_init__(self) -> None:
        _require("policy", self, "max_batch", advice="give 1 or more, or 0 for the model's own")
        _require("policy", self, "window", advice="give 0 or more seconds")


class ResidencyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much memory models may take together, and how it is shared.

    A `budget` of 0 sets no bound: all models are loaded before anything is served. `policy` chooses victims: one of
    `residency.policy.POLICIES` or the dotted path of a class.
    """

    budget: int = 0
    policy: str = "late"
    stages: bool = True
    patience: float = 30.0
    window: float = 600.0
    back_off: float = 1.0
    tier: str = TIERS[0]
    resting: int = 0
    idle: float = 0.0

    def __post_init__(self) -> None:
        _require("residency", self, "budget", advice="give 0 for no limit, or more bytes")
        _require("residency", self, "idle", advice="give 0 for never, or more seconds")
        _require("residency", self, "patience", "window", "back_off", above=0.0, advice="give more than 0 seconds")
        if self.tier not in TIERS:
            raise ConfigError(f"residency.tier is {self.tier!r}: choose from {', '.join(TIERS)}")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the scheduler knows of one model. At most `max_queued` requests for it may wait."""

    spec: ModelSpec
    costs: ModelCosts
    max_queued: int = 256
    footprint: Footprint = NOTHING  # used only where memory is limited
    below: float = 1.0  # the largest share of requests that may run at a level below the target's


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Everything a scheduler starts from; two schedulers with equal configurations decide alike.

    `granularities` are the largest batches of the workers (Ebird, section VI); empty: only policy and model limit them.
    At most `at_once` workers run at a time; 0: all of them. Requests of models and of `queries` have slots 0 to `slots`
    - 1; the rows of steps come after those (`domain.query.lay_out`).
    """

    models: tuple[ServedModel, ...]
    workers: int = 1
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    granularities: tuple[int, ...] = ()
    at_once: int = 0
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    queries: tuple[Query, ...] = ()
    slots: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}: at least one worker is needed")
        if self.granularities and (len(self.granularities) != self.workers or min(self.granularities) < 1):
            raise ConfigError(f"granularities are {self.granularities}: give each of {self.workers} workers 1 or more")
        names = [*(served.spec.name for served in self.models), *(query.name for query in self.queries)]
        if len(set(names)) != len(names):
            raise ConfigError(f"two models have the same name in {sorted(names)}: give each its own")


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the engine's process runs. `granularities` are Ebird's (section VI).

    Without a number of `slots`, each model has 256, or fewer where they would take too much of a limited memory.
    """

    workers: int = 1
    granularities: tuple[int, ...] = ()
    threads: int = 1
    cores: tuple[int, ...] = ()
    slots: int | None = None
    exits: bool = True
    floor: float = 1.0
    below: float = 1.0
    backend: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"engine.device is {self.device!r}: give cpu, cuda, or cuda:0 for the first of several")
        given = ("workers", "threads", *(() if self.slots is None else ("slots",)))
        _require("engine", self, *given, least=1, advice="give 1 or more")
        for name in ("floor", "below"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"engine.{name} is {getattr(self, name)}: give a share above 0 and up to 1")
        if self.floor < 1.0 and not self.exits:
            raise ConfigError("engine.floor needs learned caches, and exits are off: leave one of them out")
        if any(batch < 1 for batch in self.granularities):
            raise ConfigError(f"engine.granularities are {self.granularities}: give batches of 1 or more")

    @property
    def worker_count(self) -> int:
        """The number of workers."""
        return len(self.granularities) or self.workers


class AdaptationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether learned caches are adapted to the traffic, and how.

    Requests that ran to the end of the network are samples at no cost, which `sample` does not count.
    """

    on: bool = False
    sample: float = 0.2
    rows: int = 6000
    window: float = 3600.0
    interval: float = 900.0
    folder: str = ""
    yields: bool = True

    def __post_init__(self) -> None:
        share = "give a share above 0 and at most 1"
        _require("adaptation", self, "sample", above=0.0, most=1.0, advice=share)
        _require("adaptation", self, "window", "interval", "rows", above=0.0, advice="give more than 0")


class GenerationsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one engine follows another. One that is killed because it is late counts as a crash (`engine.driver`).

    With `keep_going`, models that cannot be served do not keep others from being served at the start.
    """

    crashes: int = 3
    within: float = 60.0
    back_off: float = 1.0
    patience: float = 10.0
    drain: float = 60.0
    watch: float = 0.0
    keep_going: bool = False

    def __post_init__(self) -> None:
        _require("generations", self, "crashes", least=1, advice="give 1 or more")
        _require("generations", self, "watch", advice="give 0 for never, or more seconds")
        seconds = ("within", "back_off", "patience", "drain")
        _require("generations", self, *seconds, above=0.0, advice="give more than 0 seconds")


class RepositoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is served of a repository, and the copy of one at a URL. For `split` see `domain.split`."""

    cache: str = ""
    most: int = 64 << 30
    split: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require("repository", self, "most", least=1, advice="give 1 byte or more")
        self.splits()

    def splits(self) -> tuple[Split, ...]:
        """Return the splits. Raises `ConfigError` for an invalid one, and for two of one model."""
        found = [Split.read(text) for text in self.split]
        for split in found:
            if sum(each.model == split.model for each in found) > 1:
                raise ConfigError(f"--split names {split.model!r:.140} twice: give all of its versions in one option")
        return tuple(found)


class FrontendConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the server listens, and who may do what. `dashboard` None: only where no other machine can reach it.

    With `unix`, HTTP is spoken on a Unix socket at this path in place of `host` and `port`. The path of every URL
    begins with `prefix`. `max_body` and `max_json` are bytes of a request, and of its JSON.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    unix: str = ""
    prefix: str = ""
    grpc_port: int | None = None
    deadline: float = 1.0
    show_exit: bool = True
    shared_memory: tuple[str, ...] = ()
    dashboard: bool | None = None
    token_file: str = ""
    admin_token_file: str = ""
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    manage: bool = False
    max_body: int = 64 << 20
    max_json: int = 16 << 20
    max_connections: int = 4096
    split_by: str = ""

    def __post_init__(self) -> None:
        ports = ("port",) if self.grpc_port is None else ("port", "grpc_port")
        _require("server", self, *ports, most=65535, advice="give 1 to 65535, or 0 for any free port")
        _require("server", self, "deadline", above=0.0, advice="give more than 0 seconds")
        share = "give 1kB to 1GiB"  # more would be all that requests under way may hold together
        _require("server", self, "max_body", "max_json", least=1000, most=1 << 30, advice=share)
        _require("server", self, "max_connections", least=1, advice="give 1 or more")
        if not PREFIX.fullmatch(self.prefix):
            raise ConfigError(f"server.prefix is {self.prefix!r}: give the prefix of a path, such as /models")
        for prefix in self.shared_memory:
            if not KEY_PREFIX.fullmatch(prefix):
                raise ConfigError(f"server.shared_memory is {prefix!r}: give the prefix of keys, such as /latebind-")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("server.tls_cert and server.tls_key belong together: give both, or none for no TLS")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError("server.tls_client_ca needs TLS: give tls_cert and tls_key too")
        for name in self.allow_hosts:
            if not HOST.fullmatch(name):
                raise ConfigError(f"server.allow_hosts has {name!r}: give a name or address, with or without a port")
        for origin in self.allow_origins:
            if not ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"server.allow_origins has {origin!r}: give scheme and host of a site, such as https://app.example"
                )

    @property
    def shows_dashboard(self) -> bool:
        """Whether there is a dashboard."""
        return is_loopback(self.host) if self.dashboard is None else self.dashboard


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`, a name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ObservabilityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server reports of its work."""

    trace_rate: float = 0.0
    otlp: str = ""
    log_format: str = "text"  # or "json"

    def __post_init__(self) -> None:
        _require("observability", self, "trace_rate", most=1.0, advice="give a share from 0 to 1")
        if self.otlp and not self.otlp.startswith(("http://", "https://")):
            raise ConfigError(f"observability.otlp is {self.otlp!r}: give a URL such as http://127.0.0.1:4318")
        if self.log_format not in {"text", "json"}:
            raise ConfigError(f"observability.log_format is {self.log_format!r}: choose text or json")


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many replicas serve on Ray. A cluster that is started here can be reached from no other machine."""

    replicas: int = 1
    max_replicas: int = 0
    cpus: float = 0.0
    address: str = ""
    up_after: float = 5.0
    down_after: float = 60.0
    ingress: str = ""
    calls: int = 256

    def __post_init__(self) -> None:
        _require("cluster", self, "replicas", "calls", least=1, advice="give 1 or more")
        _require("cluster", self, "cpus", "up_after", "down_after", advice="give 0 or more")
        if self.max_replicas and self.max_replicas < self.replicas:
            raise ConfigError(f"cluster.max_replicas is {self.max_replicas}: give {self.replicas} or more, or 0")

    @property
    def scales(self) -> bool:
        """Whether the number of replicas follows the traffic."""
        return self.max_replicas > self.replicas


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of `latebind serve`, as its TOML file spells them."""

    server: FrontendConfig = FrontendConfig()
    engine: EngineConfig = EngineConfig()
    policy: PolicyConfig = PolicyConfig()
    residency: ResidencyConfig = ResidencyConfig()
    adaptation: AdaptationConfig = AdaptationConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    generations: GenerationsConfig = GenerationsConfig()
    repository: RepositoryConfig = RepositoryConfig()
    cluster: ClusterConfig = ClusterConfig()

    def __post_init__(self) -> None:
        if self.generations.keep_going and self.repository.split:
            raise ConfigError(
                "repository.split needs all of its versions: leave out repository.split or generations.keep_going"
            )
