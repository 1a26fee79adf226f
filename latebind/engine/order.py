"""The messages of frontend and engine on the control stream, mostly at the engine's start: one JSON line each way.

Also the layout of what is served in shared memory, which is part of the answer.
"""

import importlib.util
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.errors import ConfigError, QueryError, RepositoryError, WrongQuery
from latebind.domain.model import ModelSpec
from latebind.domain.query import StepRows, lay_out
from latebind.domain.split import BESIDE
from latebind.engine.slots import file_bytes
from latebind.learned.metadata import read_accuracies
from latebind.preprocessing.settings import reads_as
from latebind.program.device import IMPORTS
from latebind.queries.file.definition import query_name, read_query
from latebind.queries.file.wiring import DefinedQuery
from latebind.repository.directory import MODEL, STAGES, ModelDirectory

PICTURE = b"picture"  # a later line; answered by a `Picture`
TRACES = b"traces"  # a later line; answered by the traces of requests that have ended since the last one
MOST_SLOTS, LEAST_SLOTS = 256, 16  # of each model and query, if their number is not given
PART = 0.25  # the share of a limited memory that they take then, at most

FORGET = b"forget"  # a later line: reset the metrics, requests so far were trials; answered by an empty object


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """The first line to the engine: which model directories to serve, and how.

    `queries` are files over these models. `named` are the names for directories that hold versions of one model. If it
    `replaces` an engine that serves, everything is compiled before it takes over; otherwise calls wait for it.
    """

    directories: tuple[str, ...]
    engine: EngineConfig
    policy: PolicyConfig
    event_log: str | None = None
    adapted: str = ""  # folder of the versions of learned caches; empty: beside each model
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    queries: tuple[str, ...] = ()
    log_format: str = "text"
    named: dict[str, str] = field(default_factory=dict)
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class InUse:
    """A version of a model's learned caches, and the sha256 of the caches that it is of (`adaptation.versions`)."""

    base: str
    version: str


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The answer: what is served, models first, then queries.

    `models` and the number of `rows` by name determine the layout of memory; each has `slots` slots. `deadlines` are
    the default seconds of queries that have any. `too_large` says what models take that do not fit into memory as a
    whole. `caches` is the version of its learned caches that each model uses, if it has any. `error` says why nothing
    is served, if so, and `query` is the one to blame, if one is.
    """

    models: tuple[ModelSpec, ...] = ()
    slots: int = MOST_SLOTS
    rows: dict[str, int] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)
    too_large: dict[str, str] = field(default_factory=dict)
    caches: dict[str, InUse] = field(default_factory=dict)
    error: str | None = None
    query: str = ""


@dataclass(frozen=True, slots=True)
class Adopt:
    """A later line: use this version of a model's learned caches (`adaptation.versions`) from the next batch on.

    With one such as `built@0.97`, requests run only at levels that promise at least that (`controller.down_to`).

    The answer is the reason why it cannot be used, or null. An empty line asks for the metrics instead.
    """

    model: str
    version: str


def backend_imports(models: Iterable[Path], backend: str | None) -> list[str]:
    """Return the modules that the backends of these model directories import; `backend` runs all, if one is named.

    Those that are not installed are left out, and so are models that cannot be read: the engine reports these.
    """
    modules = set[str]()
    for path in models:
        with suppress(RepositoryError, OSError, msgspec.MsgspecError):
            directory = ModelDirectory.open(path)
            described = msgspec.json.decode(directory.read(MODEL), type=dict[str, Any])
            module = IMPORTS.get(backend or str(described.get("backend")))
            modules.update(() if module is None else (module,))
            if not directory.names(STAGES):  # torch converts it
                modules.add("torch")
    return [module for module in sorted(modules) if importlib.util.find_spec(module) is not None]


class Model(Protocol):
    """A model, and where it lies."""

    @property
    def spec(self) -> ModelSpec:
        """What clients and the scheduler know of it."""

    @property
    def directory(self) -> ModelDirectory:
        """Its verified directory."""


@dataclass(frozen=True, slots=True)
class Served:
    """The specifications of models, then of `queries`, and the rows in shared memory: `slots` each, and for steps."""

    specs: tuple[ModelSpec, ...]
    queries: tuple[DefinedQuery, ...]
    slots: int
    rows: StepRows

    @property
    def bytes(self) -> int:
        """The bytes that the slots take once all have been used."""
        return file_bytes(self.specs, self.rows.total)

    def left_of(self, memory: int) -> int:
        """Return the bytes that all slots leave of `memory`. Raises `ConfigError` if that is nothing."""
        if self.bytes >= memory:
            raise ConfigError(
                f"residency.budget is {memory} bytes, and slots for {len(self.specs)} models and queries take "
                f"{self.bytes} of them: give more --memory or fewer --slots"
            )
        return memory - self.bytes

    @property
    def deadlines(self) -> dict[str, float]:
        """The default seconds of requests without a time-out, for queries that define them."""
        return {one.query.name: one.query.deadline for one in self.queries if one.query.deadline}


def with_queries(models: Sequence[Model], files: Sequence[Path], slots: int | None, *, memory: int = 0) -> Served:
    """Return the models together with the queries of these files.

    If `slots` is None, there are `MOST_SLOTS`, or as many as take `PART` of the bytes of `memory`, if that is limited;
    at least `LEAST_SLOTS`.

    Raises `WrongQuery` for an invalid query, `RepositoryError` if two directories hold models of one name.
    """
    found: dict[str, Path] = {}
    for model in models:
        name, path = model.spec.name, model.directory.path
        if name in found:  # in two directories: one may be a copy
            raise RepositoryError(
                f"{found[name]} and {path} both hold a model named {name!r}: build one of them again under another "
                "--name, or remove one of the folders"
            )
        found[name] = path
    specs = {model.spec.name: model.spec for model in models}
    mains = [model.directory for model in models if BESIDE not in model.spec.name]
    accuracies = read_accuracies(mains) if files else {}
    readers = {model.spec.name: reads_as(model.directory) for model in models}
    queries = tuple(_read(file, specs, accuracies, readers) for file in files)
    every = (*specs.values(), *(one.query.spec for one in queries))

    def with_slots(number: int) -> Served:
        return Served(every, queries, number, lay_out(specs, [one.query for one in queries], number))

    if slots is not None or not memory:
        return with_slots(slots or MOST_SLOTS)
    numbers = range(LEAST_SLOTS, MOST_SLOTS + 1)
    fitting = bisect_right(numbers, memory * PART, key=lambda number: with_slots(number).bytes)
    return with_slots(numbers[max(fitting - 1, 0)])


def _read(
    file: Path, specs: Mapping[str, ModelSpec], accuracies: Mapping[str, float], readers: Mapping[str, str]
) -> DefinedQuery:
    """Return the query of a file, as `read_query` does. Raises `WrongQuery`."""
    try:
        return read_query(file, specs, accuracies, readers)
    except QueryError as error:
        raise WrongQuery(str(error), query_name(file)) from error
