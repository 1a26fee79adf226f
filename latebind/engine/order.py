"""What door and engine say on the control stream, mostly as the engine starts: one JSON line each way."""

from dataclasses import dataclass, field

from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.model import ModelSpec

PICTURE = b"picture"  # a later line; answered by a `Picture`
TRACES = b"traces"  # a later line; answered by the traces of requests that have ended since the last one
FORGET = b"forget"  # a later line: reset the metrics, requests so far were trials; answered by an empty object


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """The first line to the engine: which model directories to serve, and how.

    `queries` are files over these models.
    """

    directories: tuple[str, ...]
    engine: EngineConfig
    policy: PolicyConfig
    event_log: str | None = None
    adapted: str = ""  # folder of the versions of learned caches; empty: beside each model
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    queries: tuple[str, ...] = ()
    log_format: str = "text"


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The answer: what is served, models first, then queries.

    `models` and the number of `rows` by name determine the layout of the slots. `deadlines` are the default seconds of
    queries that have any. `too_large` says of models that memory does not hold as a whole what they take. `error` says
    why nothing is served, if so.
    """

    models: tuple[ModelSpec, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)
    too_large: dict[str, str] = field(default_factory=dict)
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
