"""What door and engine say to each other as the engine starts: one JSON line each way on the control stream."""

from dataclasses import dataclass, field

from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.model import ModelSpec

PICTURE = b"picture"  # a later line that asks for a `Picture`
TRACES = b"traces"  # a line that asks for the traces of requests that have ended
FORGET = b"forget"  # a later line: count from now, what was asked until now was a trial; answered by an empty object


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """Which model directories to serve, and how; `queries` are the files of queries over these models."""

    directories: tuple[str, ...]
    engine: EngineConfig
    policy: PolicyConfig
    event_log: str | None = None
    adapted: str = ""  # the folder of versions of learned caches; empty: beside each model
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    queries: tuple[str, ...] = ()
    log_format: str = "text"


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """What is served, queries behind the models: that and `rows`, by name, fix the layout of the slots.

    `deadlines` are the seconds of queries' requests that name no time-out, of those that have such. `error` says why
    nothing is served, if so.
    """

    models: tuple[ModelSpec, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """A later line: use this version of a model's learned caches (`adaptation.versions`) from the next batch on.

    An empty line asks for the metrics instead.
    """

    model: str
    version: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """The answer to `Adopt`; with an error nothing has changed."""

    error: str | None = None
