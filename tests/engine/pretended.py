"""Engines without processes, for how they follow one another: each reads its models, and a claim tells a version."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from latebind.adaptation.controller import BUILT
from latebind.domain.config import EngineConfig, GenerationsConfig, PolicyConfig
from latebind.domain.errors import ConfigError, LatebindError
from latebind.domain.model import ModelSpec
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder, InUse
from latebind.engine.preprocessors import Opens, open_preprocessor
from latebind.forks.client import ForkServer
from latebind.preprocessing.preprocessor import Preprocessor
from latebind.program.metadata import read_model
from latebind.queries.file.definition import read_query
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Selection
from latebind.server.gateway import NO_DIMS

BACK_OFF = 30.0


@dataclass
class Machine:
    """Where engines run, the latest last.

    Those that are to start wait for `go`, but for so many that are `free`; one has `reached` that point. `full`: there
    is no room for another process. `mute` models do not answer, `lethal` ones end the engine that loads them.
    """

    engines: list["Pretended"] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    free: int = 0
    full: bool = False
    mute: set[str] = field(default_factory=set)
    lethal: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)  # versions of learned caches
    meanwhile: Callable[[], None] = lambda: None  # happens whenever an engine is to use a version

    async def prepare(self, *words: object) -> "Pretended":
        self.reached.set()
        if self.free:
            self.free -= 1
        else:
            await self.go.wait()
        if self.full:
            raise OSError("no room")
        self.engines.append(Pretended(self))
        return self.engines[-1]


class Pretended:
    """What `Engines` uses of an `EngineClient`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.process_id = len(machine.engines)
        self.models: dict[str, ModelSpec] = {}
        self.order: list[str] = []
        self.deadlines: Mapping[str, float] = {}
        self.too_large: Mapping[str, str] = {}
        self.preprocessors: Mapping[str, Preprocessor] = {}
        self.caches: dict[str, InUse] = {}
        self.on_lost: Callable[[], None] | None = None
        self.owes_answer = 0.0
        self.log: str | None = None
        self.replaces = False
        self._alive = False
        self._ran: tuple[int, ...] = ()
        self.closed = asyncio.Event()
        self.lost_calls = Counter[str]()

    async def begin(self, order: EngineOrder, loading: Callable[[int], None] | None = None) -> None:
        self.log, self.replaces = order.event_log, order.replaces
        for number, path in enumerate(order.directories):
            self._ran = (number,)
            if loading is not None:
                loading(number)
            try:
                spec = read_model(ModelDirectory.open(Path(path))).spec()
            except LatebindError as error:
                raise ConfigError(str(error)) from error
            self.models[spec.name] = spec
            self.caches[spec.name] = InUse("base", BUILT)
            self.order.append(spec.name)
        for file in order.queries:
            spec = read_query(Path(file), self.models, {}).query.spec
            self.models[spec.name] = spec
        self._ran, self._alive = (), True

    async def infer(self, model: str, rows: object, *, deadline: float) -> None:
        self._ran = (self.order.index(model),)
        if model in self._machine.lethal:
            self._alive = False
        if model in self._machine.lethal | self._machine.mute:
            raise LatebindError("no answer")
        self._ran = ()

    async def forget(self) -> None:
        """Nothing is counted."""

    async def adopt(self, model: str, version: str) -> None:
        self._machine.meanwhile()
        if version in self._machine.refused:
            raise ConfigError(f"{version} is broken")
        self.caches[model] = replace(self.caches[model], version=version)

    async def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> str:
        return self.models[model].version

    async def _ask(self, line: bytes, heard: object) -> dict[str, object]:
        return {"models": {}}

    def live(self) -> bool:
        return self._alive

    def ready(self, model: str | None = None) -> bool:
        return self._alive and (model is None or model in self.models)

    def ran(self) -> tuple[int, ...]:
        return self._ran

    def look(self, patience: float) -> None:
        """It never stands still."""

    def die(self, *running: str) -> None:
        """End as a process does that ran these models."""
        self._alive, self._ran = False, tuple(map(self.order.index, running))
        if self.on_lost is not None:
            self.on_lost()

    async def kill(self) -> None:
        self._alive = False
        self.closed.set()

    async def close(self, grace: float, *, patience: float) -> None:
        await self.kill()


@dataclass
class Shop:
    """A repository in `place`, what serves it, and where."""

    place: Path
    machine: Machine
    engines: Engines
    catalogue: Catalogue

    @property
    def engine(self) -> Pretended:
        """The engine that started last."""
        return self.machine.engines[-1]

    def ask(self, model: str = "scale", seconds: float = 60.0) -> Coroutine[Any, Any, str]:
        """Return which version answers."""
        claim = self.engines.claim(model, 1, deadline=time.monotonic() + seconds)
        return cast(Coroutine[Any, Any, str], claim)

    def states(self) -> dict[str, str]:
        """Return the state of each model and query in the index, with the version that is served."""
        return {one["name"]: one["version"] or one["state"] for one in self.catalogue.index()}

    async def ended(self) -> None:
        """Return when nothing is left to be done for engines that were replaced."""
        async with asyncio.timeout(60.0):
            await asyncio.gather(*self.engines._tasks)


@asynccontextmanager
async def open_shop(
    place: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str] = (), opens: Opens = open_preprocessor
) -> AsyncIterator[Shop]:
    """Serve a repository, or these `names` of it."""
    machine, selection = Machine(), Selection(place, names)
    machine.go.set()
    monkeypatch.setattr("latebind.engine.engines.EngineClient.prepare", machine.prepare)
    order = EngineOrder((), EngineConfig(), PolicyConfig(), event_log="events")
    config = GenerationsConfig(crashes=3, within=60.0, back_off=BACK_OFF)
    engines = await Engines.start(order, selection.first(), cast(ForkServer, None), config, opens=opens)
    try:
        yield Shop(place, machine, engines, Catalogue(engines, selection))
    finally:
        await engines.close()
