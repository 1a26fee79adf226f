"""The `Gateway` of a server that outlives its engines: one that dies, or that another takes over from.

One generation is one engine process with one set of models. `catalogue` changes the set, this follows it. Why it is so:
decision 20.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from latebind.domain.config import GenerationsConfig
from latebind.domain.errors import LatebindError, NotFound, Unavailable
from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace
from latebind.engine.claim import Claim
from latebind.engine.client import EngineClient
from latebind.engine.crashes import Crashes
from latebind.engine.order import EngineOrder
from latebind.engine.probe import Unfit, probe
from latebind.forks.client import ForkServer
from latebind.repository.selection import Serving
from latebind.server.gateway import Snapshot

logger = logging.getLogger(__name__)

MOST_WAITING = 1024  # calls that wait for an engine
LONGEST_BACK_OFF = 30.0
IDLE_LOOK_SECONDS = 0.02
END_SECONDS = 3.0  # that a process has to end by itself


class NotUp(LatebindError):
    """An engine that did not come to serve; `models` are those that have to do with it, if that is known.

    It `crashed` where its process died meanwhile.
    """

    def __init__(self, error: LatebindError, models: tuple[str, ...], *, crashed: bool) -> None:
        super().__init__(str(error))
        self.models = models
        self.crashed = crashed


class Engines:
    """Owns the engine that serves, and those that end. Make one with `start`, end it with `close`.

    Calls that come while there is no engine wait for the next one until their deadline, so many at most. `unavailable`
    says of models that are wanted and not served why that is; `deadlines` are the seconds of requests for queries that
    name no time-out, of those that have such. `on_change` is called when another engine has taken over.
    """

    def __init__(self, order: EngineOrder, config: GenerationsConfig, forks: ForkServer) -> None:
        self.serving = Serving()
        self.unavailable: dict[str, str] = {}
        self.models: Mapping[str, ModelSpec] = {}
        self.deadlines: dict[str, float] = {}
        self.on_change: Callable[[], None] | None = None
        self._order = order
        self._config = config
        self._forks = forks
        self._crashes = Crashes(config.crashes, config.within)
        self._engine: EngineClient | None = None
        self._number = 0
        self._restarts = 0
        self._settled = asyncio.Event()  # cleared while the next engine is expected
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[EngineClient] = set()
        self._closed = False

    @classmethod
    async def start(
        cls, order: EngineOrder, serving: Serving, forks: ForkServer, config: GenerationsConfig | None = None
    ) -> Self:
        """Start an engine of this order that serves `serving`; raises what it could not load or what does not answer.

        What directories and queries `order` names itself does not count. `forks` makes this engine and all later ones.
        """
        engines = cls(order, config or GenerationsConfig(), forks)
        try:
            await engines.change(serving, tried=serving.names)
        except BaseException:
            await engines.close(0.0)
            raise
        return engines

    @property
    def process_id(self) -> int:
        """The number of the process that serves."""
        assert self._engine is not None, "nothing is served"
        return self._engine.process_id

    def live(self) -> bool:
        """Whether the server lives, which it does without an engine too."""
        return True

    def ready(self, model: str | None = None) -> bool:
        """Whether an engine serves, and `model` is among what it serves; each of these has answered a trial."""
        if model is not None and model not in self.models:
            return False
        return self._engine.live() if self._engine is not None else not (self.serving.names or self.unavailable)

    def claim_now(self, model: str, rows: int) -> Claim | None:
        """Return so many slots to fill, of the engine that serves; None where there are none at once."""
        return self._engine.claim_now(model, rows) if self._engine is not None and model in self.models else None

    def claim(self, model: str, rows: int, *, deadline: float, priority: int = 0) -> Coroutine[Any, Any, Claim]:
        """Return so many slots to fill, once it is this call's turn. Raises `Refused`, `Unavailable` or `NotFound`."""
        engine = self._engine
        if engine is not None and engine.live() and model in self.models:
            return engine.claim(model, rows, deadline=deadline, priority=priority)
        return self._claim_later(model, rows, deadline, priority)

    async def metrics(self) -> Snapshot:
        """Return the figures of the engine that serves, since it began to."""
        if self._engine is None or not self._engine.live():
            return {"models": {}, "restarts": self._restarts}
        return {**await self._engine.metrics(), "restarts": self._restarts}

    async def traces(self) -> Sequence[Trace]:
        """Return what became of rows to be traced, of the engine that serves."""
        return await self._engine.traces() if self._engine is not None and self._engine.live() else ()

    async def picture(self) -> Picture:
        """Return what is under way in the engine that serves."""
        return await self._engine.picture() if self._engine is not None and self._engine.live() else Picture()

    async def adopt(self, model: str, version: str) -> None:
        """Have the engine use a version of learned caches; one that follows takes it up by itself."""
        if self._engine is None:
            raise Unavailable(f"no engine serves {model}")
        await self._engine.adopt(model, version)

    async def change(self, serving: Serving, *, tried: Collection[str]) -> None:
        """Have a new engine serve this, and the old one end what it has. Only one change at a time.

        Models and queries among `tried` get a new chance where they were unavailable, with queries that need them.
        Raises `NotUp`; then what is served stays.
        """
        chances = {*tried, *serving.needing(tried)}
        left_out = {name: reason for name, reason in self.unavailable.items() if name not in chances}
        engine, found = await self._bring_up(serving.without(left_out))
        for name in tried:
            self._crashes.forget(name)
        self.serving = found.with_(serving.only(left_out))
        self.unavailable = {name: reason for name, reason in left_out.items() if name in self.serving.names}
        self._take_over(engine)

    async def close(self, grace: float = 10.0) -> None:
        """Wait up to `grace` seconds for what is in flight, then end all processes; 0: end them at once."""
        self._closed = True
        self._settled.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        engines = {*self._ending, *([self._engine] if self._engine else [])}
        ends = [engine.close(grace, patience=END_SECONDS) if grace else engine.kill() for engine in engines]
        await asyncio.gather(*ends)

    async def _claim_later(self, model: str, rows: int, deadline: float, priority: int) -> Claim:
        """Wait for an engine where one is to be expected, and claim of that."""
        if model in self.models:
            await self._wait(deadline)
        if model in self.unavailable:
            raise Unavailable(self.unavailable[model])
        if model not in self.models:
            raise NotFound(f"there is no model {model!r:.140}")
        if self._engine is None or not self._engine.live():
            raise Unavailable("the engine is starting again: try again later")
        return await self._engine.claim(model, rows, deadline=deadline, priority=priority)

    async def _wait(self, deadline: float) -> None:
        """Return when an engine serves, or it is known that none will for long; where too many wait, at once."""
        if self._waiting == MOST_WAITING:
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._settled.wait()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    async def _bring_up(self, serving: Serving) -> tuple[EngineClient | None, Serving]:
        """Return an engine that serves this and has answered trials, and by the names of models what it serves."""
        if not serving.names:
            return None, serving
        try:
            engine = await EngineClient.prepare(self._order.log_format, self._forks)
        except OSError as error:
            raise NotUp(Unavailable(f"no process can be started: {error}"), (), crashed=False) from error
        try:
            await engine.begin(self._order_for(serving))
            found = serving.renamed(_models(engine))
            if not self._order.residency.budget:  # what is loaded on demand has been tried piece by piece
                await probe(engine, found.models)
        except LatebindError as error:
            crashed = not engine.live() and isinstance(error, Unavailable | Unfit)
            await engine.kill()
            names = list(serving.models)
            blamed = (error.model,) if isinstance(error, Unfit) else tuple([names[each] for each in engine.ran()])
            raise NotUp(error, blamed, crashed=crashed) from error
        except BaseException:
            await engine.kill()
            raise
        return engine, found

    def _order_for(self, serving: Serving) -> EngineOrder:
        """Return the order to serve this; each generation has an event log of its own."""
        self._number += 1
        log = self._order.event_log
        return replace(
            self._order,
            directories=tuple(map(str, serving.models.values())),
            queries=tuple(str(query.path) for query in serving.queries.values()),
            event_log=f"{log}.{self._number}" if log and self._number > 1 else log,
        )

    def _take_over(self, engine: EngineClient | None) -> None:
        """Have new calls go to this engine, and let the one before answer what it has."""
        before, self._engine = self._engine, engine
        self.models = {} if engine is None else engine.models
        self.deadlines.clear()
        if engine is not None:
            self.deadlines.update(engine.deadlines)
            logger.info("engine process %d serves", engine.process_id)
            engine.on_lost = partial(self._lost, engine)
        self._settled.set()
        if self.on_change is not None:
            self.on_change()
        if before is not None:
            self._begin(self._end(before))

    async def _end(self, engine: EngineClient) -> None:
        """Let an engine answer what it has, then end it."""
        engine.on_lost = None
        self._ending.add(engine)
        until = time.monotonic() + self._config.drain
        while engine.live() and not engine.idle and time.monotonic() < until:
            await asyncio.sleep(IDLE_LOOK_SECONDS)
        await engine.close(0.0, patience=END_SECONDS)
        self._ending.discard(engine)

    def _lost(self, engine: EngineClient) -> None:
        """The engine that serves has died: calls wait for the next one from now on."""
        if engine is not self._engine or self._closed:
            return
        names = _models(engine)
        running = [names[number] for number in engine.ran()]
        logger.error("the engine died while it ran %s: another takes over", ", ".join(running) or "nothing")
        self._restarts += 1
        self._settled.clear()
        self._blame(running)
        self._begin(self._recover())

    async def _recover(self) -> None:
        """Bring engines up until one serves; a model that keeps it from that is left out."""
        begun, pause, wanted = time.monotonic(), self._config.back_off, self.serving
        while True:
            try:
                engine, _ = await self._bring_up(wanted.without(self.unavailable))
                break
            except NotUp as error:
                logger.error("the engine does not start: %s", error)
                if self._leave_out(error):
                    continue
            self._settled.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_BACK_OFF)
        changed = self.serving is not wanted  # meanwhile: then another engine serves already, or its follower will
        if changed and engine is not None:
            await engine.kill()
        if not changed:
            self._take_over(engine)
            logger.info("an engine serves again after %.2f s", time.monotonic() - begun)

    def _leave_out(self, error: NotUp) -> bool:
        """Take models out of service that keep the engine from starting; return whether there were any."""
        if error.crashed:
            return self._blame(error.models)
        for model in error.models:
            self._withdraw(model, f"{model} is not served: {error}")
        return bool(error.models)

    def _blame(self, running: Iterable[str]) -> bool:
        """Take models out of service with which engines died too often; return whether there were any."""
        blamed = self._crashes.happened(running, time.monotonic())
        for model in blamed:
            often = f"the engine died {self._config.crashes} times in {self._config.within:g} s while it ran"
            self._withdraw(model, f"{model} is not served any more: {often}. Load it again, or mend it first")
        return bool(blamed)

    def _withdraw(self, model: str, reason: str) -> None:
        """Take a model out of service, and the queries that need it."""
        logger.error("%s", reason)
        self.unavailable[model] = reason
        for query in self.serving.needing([model]):
            self.unavailable[query] = f"{query} is not served: it needs {model}, which is not"
        self.models = {name: spec for name, spec in self.models.items() if name not in self.unavailable}

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("what was begun beside failed", exc_info=task.exception())


def _models(engine: EngineClient) -> list[str]:
    """Return the models of an engine in the order of their directories."""
    return [name for name, spec in engine.models.items() if not spec.steps]
