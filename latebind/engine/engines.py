"""The `Gateway` of a server, which outlives its engines: one may die, or be replaced by one with other models.

A generation is one engine process with one set of models. `catalogue` changes the set; this module starts, replaces and
restarts engines accordingly. `docs/decisions.md` says why.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.random import default_rng  # now: numpy loads it when it is first used, and that use waits

from latebind.adaptation.controller import FULL_DEPTH
from latebind.domain.config import GenerationsConfig
from latebind.domain.errors import ConfigError, LatebindError, NotFound, Unavailable, WrongQuery
from latebind.domain.model import ModelSpec, TensorSpec, is_floating
from latebind.domain.picture import Picture
from latebind.domain.split import public_name
from latebind.domain.tracing import Trace
from latebind.engine.claims import Claim
from latebind.engine.client import EngineClient
from latebind.engine.order import MOST_SLOTS, EngineOrder, InUse, backend_imports
from latebind.engine.preprocessors import Opens, Preprocessors, Unreadable, check_fits, open_preprocessor
from latebind.engine.shared import LOOK_SECONDS
from latebind.forks.client import ForkServer
from latebind.preprocessing.preprocessor import Preprocessor
from latebind.preprocessing.reads import QueryPreprocessor
from latebind.repository.listing import Serving
from latebind.server.gateway import BFLOAT16, NO_DIMS, Array, Snapshot, array_dtype

T = TypeVar("T")

logger = logging.getLogger(__name__)

GROWTH = 4  # after a crash, how many times as many models each engine serves as the one before it
MOST_WAITING = 1024  # calls that may wait for an engine
LONGEST_BACK_OFF = 30.0
END_SECONDS = 3.0  # that a process gets to end by itself
PROBE_SECONDS = 60.0  # that a model may take to answer its trial request
FIGURES_SECONDS = 0.7  # that the engine has to answer with its figures; after that its last answer is used


class EngineStartFailed(LatebindError):
    """An engine did not start; `models` (or queries) are to blame, if known; it `crashed` if its process died."""

    def __init__(self, error: LatebindError, models: tuple[str, ...], *, crashed: bool) -> None:
        super().__init__(str(error))
        self.models = models
        self.crashed = crashed


class Engines:
    """Owns the engine that serves, and those that are ending. Create it with `start`, end it with `close`.

    Calls that arrive while there is no engine wait for the next one until their deadline, up to a limit on their
    number. `unavailable` gives the reason for each model that should be served and is not. `deadlines` maps a query to
    the seconds that its requests get if they name no time-out. `on_change` is called when another engine has taken
    over, `on_failed` with a model and a wanted version of its learned caches that this engine cannot use, `on_loading`
    now and then with a model that an engine loads, and the share of its models that it has loaded before.

    Which versions are wanted is kept only here, because this outlives engines and adaptation services: `adopt` notes
    it, and each engine uses them before it gets its first call. Which are used, engines report (`used`).
    """

    def __init__(self, order: EngineOrder, config: GenerationsConfig, forks: ForkServer, opens: Opens) -> None:
        self.serving = Serving()
        self.unavailable: dict[str, str] = {}
        self.models: Mapping[str, ModelSpec] = {}
        self.deadlines: dict[str, float] = {}
        self.on_change: Callable[[], None] | None = None
        self.on_loading: Callable[[str, float], None] | None = None
        self.on_failed: Callable[[str, str], None] | None = None
        self._order = order
        self._config = config
        self._forks = forks
        self._loaded = Preprocessors(opens)
        self._preprocessors: Mapping[str, Preprocessor] = {}  # of `models`
        self._crashes: dict[str, list[float]] = {}  # when engines died lately while they ran a model
        self._engine: EngineClient | None = None
        self._number = 0
        self._restarts = 0
        self._settled = asyncio.Event()  # cleared while an engine with all models is expected soon
        self._news = asyncio.Event()  # set, and replaced, whenever calls that wait should check again
        self._recovering = False  # until an engine serves all models again
        self._used_before: dict[str, InUse] = {}  # by models that the current engine may not have loaded yet
        self._wanted: dict[Path, InUse] = {}  # versions of learned caches, by model directory
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._answers: dict[object, tuple[Any, float]] = {}  # by question, the last answer and when it came
        self._since = 0.0  # when the engine took over
        self._ending: set[EngineClient] = set()
        self._closed = False

    @classmethod
    async def start(
        cls,
        order: EngineOrder,
        serving: Serving,
        forks: ForkServer,
        config: GenerationsConfig | None = None,
        *,
        opens: Opens = open_preprocessor,
        loading: Callable[[str, float], None] | None = None,
    ) -> Self:
        """Start an engine that serves `serving`. Raises what could not be loaded or does not answer.

        Directories and queries named in `order` itself are ignored. `forks` starts this engine and all later ones.
        `opens` loads what makes rows of the raw inputs of a model. `loading` is called with models that are being
        loaded (`on_loading`).
        """
        engines = cls(order, config or GenerationsConfig(), forks, opens)
        engines.on_loading = loading
        try:
            await engines.change(serving, tried=serving.names)
        except BaseException:
            await engines.close(0.0)
            raise
        engines._watching = asyncio.create_task(engines._watch())
        engines._watching.add_done_callback(engines._done)
        return engines

    @property
    def process_id(self) -> int:
        """The process id of the engine that serves."""
        assert self._engine is not None, "nothing is served"
        return self._engine.process_id

    @property
    def too_large(self) -> Mapping[str, str]:
        """What models take that do not fit into memory as a whole, by name, in the engine that serves."""
        return {} if self._engine is None else self._engine.too_large

    def live(self) -> bool:
        """Return True: the server is alive even while it has no engine."""
        return True

    def ready(self, model: str | None = None) -> bool:
        """Return whether an engine serves all models, or the `model` that is named, and does not hang.

        Each has answered a trial request.
        """
        if self._engine is None:
            return model is None and not (self.serving.names or self.unavailable)
        expected = not self._recovering if model is None else model in self.models
        return expected and self._engine.ready(model)

    def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> Coroutine[Any, Any, Claim]:
        """Return `rows` slots to fill, waiting if necessary.

        Raises `Refused`, `Expired`, `Unavailable`, `NotFound` or `InvalidRequest`.
        """
        if self._engine is not None and model in self.models and self._serves(model):
            return self._engine.claim(model, rows, deadline=deadline, priority=priority, dims=dims)
        return self._claim_later(model, rows, deadline, priority, dims)

    def preprocessor(self, model: str) -> Preprocessor | None:
        """Return what makes rows of the raw inputs of a model in `models`, if it has any."""
        return self._preprocessors.get(model)

    def places(self, model: str) -> int:
        """Return the number of a model's slots."""
        engine = self._engine
        return MOST_SLOTS if engine is None or model not in engine.models else engine.places(model)

    async def metrics(self) -> Snapshot:
        """Return the metrics of the engine that serves, since it started, with an `age` if they are not new."""
        found, age = await self._ask(EngineClient.metrics, Snapshot(models={}))
        return {**found, "restarts": self._restarts, "age": age} if age else {**found, "restarts": self._restarts}

    async def traces(self) -> Sequence[Trace]:
        """Return the traces of traced rows that ended since the last call, from the engine that serves."""
        nothing = cast(Sequence[Trace], ())
        found, age = await self._ask(EngineClient.traces, nothing)
        return nothing if age else found

    async def picture(self) -> Picture:
        """Return what is queued and running in the engine that serves, with an `age` if that is not new."""
        found, age = await self._ask(EngineClient.picture, Picture())
        return replace(found, age=age) if age else found

    async def _ask(self, question: Callable[[EngineClient], Awaitable[T]], nothing: T) -> tuple[T, float]:
        """Return what the engine answers, or its last answer, and how many seconds ago that was.

        While a question waits for its answer, no others are sent. Without an engine, returns `nothing`.
        """
        engine = self._engine
        if engine is None or not engine.live():
            return nothing, 0.0
        if engine.owes_answer <= FIGURES_SECONDS:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIGURES_SECONDS):
                    answer = await question(engine)
                self._answers[question] = answer, time.monotonic()
                return answer, 0.0
        last, when = self._answers.get(question, (nothing, self._since))
        return last, time.monotonic() - when

    async def adopt(self, model: str, version: str) -> None:
        """Use this version of a model's learned caches, in the engine that serves and in those that follow it.

        If the engine ends meanwhile, the next one begins with it. Raises `ConfigError` if it cannot be used; then what
        is used stays. Raises `Unavailable` if the model is not served with learned caches.
        """
        engine, used = self._engine, self._used(model)
        if engine is None or used is None or model not in self.serving.models:
            raise Unavailable(f"no engine serves {model} with learned caches")
        path = self.serving.models[model]
        self._wanted[path] = wanted = InUse(used.base, version)
        if model not in engine.caches:  # the next engine, which has this model too, takes over with the version
            return
        try:
            await engine.adopt(model, version)
        except Unavailable as error:
            logger.warning(
                "%s: the next engine takes over with version %s of its learned caches: %s", model, version, error
            )
        except ConfigError:
            if self._wanted[path] is wanted:
                self._wanted[path] = engine.caches[model]
            raise

    def wanted(self, model: str) -> str:
        """Return the version of a model's learned caches that was last wanted; empty if none was chosen."""
        wanted, used = self._wanted.get(self.serving.models.get(model, Path())), self._used(model)
        return wanted.version if wanted is not None and used is not None and wanted.base == used.base else ""

    def used(self, model: str) -> str:
        """Return the version of a model's learned caches that the engine reported last; empty without one."""
        used = self._used(model)
        return "" if used is None else used.version

    def _used(self, model: str) -> InUse | None:
        caches = {} if self._engine is None else self._engine.caches
        return caches.get(model) or self._used_before.get(model)

    async def change(self, serving: Serving, *, tried: Collection[str]) -> None:
        """Start a new engine that serves this, and let the old one finish its requests. One change at a time.

        Unavailable models and queries among `tried`, and queries that need them, are tried again. Raises
        `EngineStartFailed`; then nothing changes.
        """
        chances = {*tried, *serving.needing(tried)}
        left_out = {name: reason for name, reason in self.unavailable.items() if name not in chances}
        engine, found = await self._bring_up(serving.without(left_out))
        for name in tried:
            self._crashes.pop(name, None)
        self.serving = found.with_(serving.only(left_out))
        self.unavailable = {name: reason for name, reason in left_out.items() if name in self.serving.names}
        self._take_over(engine)

    async def close(self, grace: float = 10.0) -> None:
        """Wait up to `grace` seconds for requests in flight, then end all processes; with 0, kill them at once."""
        self._closed = True
        self._settle()
        tasks = {*self._tasks, *([self._watching] if self._watching else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engines = {*self._ending, *([self._engine] if self._engine else [])}
        ends = [engine.close(grace, patience=END_SECONDS) if grace else engine.kill() for engine in engines]
        await asyncio.gather(*ends)

    async def _claim_later(
        self, model: str, rows: int, deadline: float, priority: int, dims: Mapping[str, int]
    ) -> Claim:
        """Wait for an engine that serves this model, if one is expected, and claim slots there.

        If a version beside the main one is no longer served, the main one answers.
        """
        if model not in self.models and (main := public_name(model)) in self.models:
            return await self.claim(main, rows, deadline=deadline, priority=priority, dims=dims)
        if model in self.models and self._waiting < MOST_WAITING:
            self._waiting += 1
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    while not (self._settled.is_set() or self._serves(model) or model in self.unavailable):
                        await self._news.wait()
            except TimeoutError:
                pass
            finally:
                self._waiting -= 1
        if model in self.unavailable:
            raise Unavailable(self.unavailable[model])
        if model not in self.models:
            raise NotFound(f"there is no model {model!r:.140}")
        if self._engine is None or not self._serves(model):
            raise Unavailable("the engine is starting again: try again later")
        return await self._engine.claim(model, rows, deadline=deadline, priority=priority, dims=dims)

    def _serves(self, model: str) -> bool:
        return self._engine is not None and self._engine.live() and model in self._engine.models

    def _settle(self) -> None:
        """End the waiting of calls that wait for an engine."""
        self._settled.set()
        self._notify_waiting()

    def _notify_waiting(self) -> None:
        """Let calls that wait check again."""
        self._news.set()
        self._news = asyncio.Event()

    async def _bring_up(self, serving: Serving) -> tuple[EngineClient | None, Serving]:
        """Start an engine for this and try its models.

        Return it, with what it serves under the names of the loaded models.
        """
        if not serving.names:
            return None, serving
        try:
            imports = await asyncio.to_thread(backend_imports, serving.models.values(), self._order.engine.backend)
            engine = await EngineClient.prepare(self._order.log_format, self._forks, imports)
        except OSError as error:
            raise EngineStartFailed(Unavailable(f"no process can be started: {error}"), (), crashed=False) from error
        before = {name: serving.fingerprint_of(name) for name in serving.models}
        loading = asyncio.create_task(self._loaded.load(serving.models, before))
        try:
            self._number += 1
            log = self._order.event_log  # each generation writes its own
            order = replace(
                self._order,
                directories=tuple(map(str, serving.models.values())),
                named=serving.split_names(),
                queries=tuple(str(query.path) for query in serving.queries.values()),
                event_log=f"{log}.{self._number}" if log and self._number > 1 else log,
                replaces=self._engine is not None and self.ready(),
            )
            await engine.begin(order, partial(self._report_loading, [*serving.models]))
            found = serving.renamed(engine.order)
            loaded, wrong = await loading
            if wrong is not None:
                raise wrong
            specs = dict(zip(serving.models, [engine.models[own] for own in engine.order], strict=True))
            for name, one in loaded.items():
                check_fits(name, one, specs[name], changed=serving.fingerprint_of(name) != before[name])
            engine.preprocessors = self._with_queries({specs[name].name: one for name, one in loaded.items()}, engine)
            if not self._order.residency.budget:  # otherwise each piece was tried when it was measured
                await probe(engine, found.models)
            await self._bring_wanted(engine, found)
        except LatebindError as error:
            crashed = not engine.live() and isinstance(error, Unavailable | ProbeFailed)
            await engine.kill()
            names = list(serving.models)
            if isinstance(error, ProbeFailed | Unreadable):
                blamed: tuple[str, ...] = (error.model,)
            elif isinstance(error, WrongQuery):
                blamed = (error.query,)
            else:
                blamed = tuple([names[each] for each in engine.ran()])
            raise EngineStartFailed(error, blamed, crashed=crashed) from error
        except BaseException:
            await engine.kill()
            raise
        finally:
            loading.cancel()
        return engine, found

    def _report_loading(self, names: Sequence[str], number: int) -> None:
        if self.on_loading is not None:
            self.on_loading(names[number], number / len(names))

    def _with_queries(self, models: Mapping[str, Preprocessor], engine: EngineClient) -> dict[str, Preprocessor]:
        """Return preprocessors of models and of queries that use them; one equal to the current one is that object."""
        found = dict(models)
        for spec in engine.models.values():
            if spec.reads:
                one, before = QueryPreprocessor.of(spec, models), self._preprocessors.get(spec.name)
                found[spec.name] = before if before is not None and before == one else one
        return found

    async def _bring_wanted(self, engine: EngineClient, serving: Serving) -> None:
        """Let an engine that is to take over use the wanted versions of learned caches.

        Nothing is awaited between the last check and the return, so a version wanted meanwhile is not missed. Instead
        of a version that it cannot use, the whole network answers, which is always right.
        """
        while True:
            behind = {
                model: one
                for model, now in engine.caches.items()
                if (one := self._wanted.get(serving.models[model])) is not None and one.base == now.base and one != now
            }  # what was wanted of other caches does not count
            if not behind:
                return
            for model, wanted in behind.items():
                try:
                    await engine.adopt(model, wanted.version)
                except ConfigError as error:
                    logger.error("%s runs without exits: %s", model, error)
                    if self._wanted[serving.models[model]] is wanted:
                        self._wanted[serving.models[model]] = replace(wanted, version=FULL_DEPTH)
                    if self.on_failed is not None:
                        self.on_failed(model, wanted.version)

    def _take_over(self, engine: EngineClient | None, *, whole: bool = True) -> None:
        """Route new calls to this engine, and let the one before finish its requests.

        If it does not serve the `whole` set of models, calls for the others keep waiting.
        """
        before, self._engine = self._engine, engine
        self._answers, self._since = {}, time.monotonic()
        if engine is not None:
            logger.info("engine process %d %s", engine.process_id, "serves" if whole else f"has {[*engine.models]}")
            engine.on_lost = partial(self._lost, engine)
        if before is not None:
            self._used_before |= before.caches
            self._begin(self._end(before))
        if not whole:
            self._notify_waiting()
            return
        self.models = {} if engine is None else engine.models
        self._preprocessors = {} if engine is None else engine.preprocessors
        self._loaded.keep(self.serving)
        self.deadlines.clear()
        self.deadlines.update({} if engine is None else engine.deadlines)
        self._recovering = False
        self._settle()
        if self.on_change is not None:
            self.on_change()

    async def _end(self, engine: EngineClient) -> None:
        """Let an engine finish its requests, then end it."""
        self._ending.add(engine)
        await engine.close(self._config.drain, patience=END_SECONDS)
        self._ending.discard(engine)

    async def _watch(self) -> None:
        """Watch the engine that serves, and kill it if it has hung for too long."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            engine = self._engine
            if engine is not None and engine.live():
                engine.look(self._config.patience)

    def _lost(self, engine: EngineClient) -> None:
        """Handle the death of the engine that serves: calls wait for the next one from now on."""
        if engine is not self._engine or self._closed:
            return
        running = [engine.order[number] for number in engine.ran()]
        logger.error("the engine died while it ran %s: another takes over", ", ".join(running) or "nothing")
        self._restarts += 1
        self._blame(running)
        if not self._recovering:
            self._recovering = True
            self._settled.clear()
            self._begin(self._recover(engine.lost_calls))

    async def _recover(self, lost_calls: Mapping[str, int]) -> None:
        """Start engines until one serves all, leaving out models that prevent it.

        The first has only one model, that with most `lost_calls`; each one after it has several times as many, because
        loading all may take long where others need the cores. So calls do not wait for models that they are not for. It
        costs a third more loading, because models are loaded again.

        Ends as soon as `change` has replaced what was wanted: then that engine serves, or is recovered by itself; what
        prevents the old set says nothing about the new one.
        """
        begun, pause, wanted = time.monotonic(), self._config.back_off, self.serving
        models = sorted(wanted.models, key=lambda model: -lost_calls.get(model, 0))
        some = 1 if not self._order.residency.budget else len(models)  # else nothing is loaded before it is wanted
        while self.serving is wanted:
            serving = wanted.without(self.unavailable)
            first = {model: serving.models[model] for model in models if model in serving.models}
            part = serving if len(first) <= some else Serving(dict(islice(first.items(), some)))
            try:
                engine, _ = await self._bring_up(part)
            except EngineStartFailed as error:
                if self.serving is not wanted:
                    return
                logger.error("the engine does not start: %s", error)
                if error.crashed and self._blame(error.models):
                    continue
                if not error.crashed and error.models:
                    for model in error.models:
                        self._withdraw(model, f"{model} is not served: {self.serving.explain(error)}")
                    continue
                self._settle()  # calls do not wait while this does
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_BACK_OFF)
                continue
            if self.serving is not wanted or not self.unavailable.keys().isdisjoint(part.names):
                if engine is not None:  # other models are wanted by now, or one of these was withdrawn meanwhile
                    await engine.kill()
                continue
            if part is not serving and engine is not None and self._reads_anew(engine):
                await engine.kill()  # calls that wait were made with other preprocessors: let them wait for all models
                some = len(models)
                continue
            self._take_over(engine, whole=part is serving)
            if part is serving:
                logger.info("an engine serves again after %.2f s", time.monotonic() - begun)
                return
            some *= GROWTH

    def _reads_anew(self, engine: EngineClient) -> bool:
        """Return whether an engine has another preprocessor for a model than the one that calls are made with."""
        return any(self._preprocessors.get(model) is not one for model, one in engine.preprocessors.items())

    def _blame(self, running: Iterable[str]) -> bool:
        """Record a crash, and take models out of service that have reached the limit; return whether any have."""
        now, most, within = time.monotonic(), self._config.crashes, self._config.within
        blamed = False
        for model in running:
            times = [*[died for died in self._crashes.get(model, ()) if now - died < within], now]
            self._crashes[model] = times
            if len(times) >= most:
                blamed = True
                often = f"the engine died {most} times in {within:g} s while it ran"
                self._withdraw(model, f"{model} is not served any more: {often}. Fix it, then load it again")
        return blamed

    def _withdraw(self, model: str, reason: str) -> None:
        """Take a model out of service, and the queries that need it."""
        logger.error("%s", reason)
        self.unavailable[model] = reason
        for query in self.serving.needing([model]):
            self.unavailable[query] = f"{query} is not served: it needs {model}, which is not"
        self.models = {name: spec for name, spec in self.models.items() if name not in self.unavailable}
        self._notify_waiting()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a background task of the engines failed", exc_info=task.exception())


class ProbeFailed(LatebindError):
    """A model did not answer its trial request."""

    def __init__(self, model: str, error: LatebindError) -> None:
        super().__init__(f"{model} does not answer a trial request: {error}")
        self.model = model


async def probe(client: EngineClient, models: Iterable[str]) -> None:
    """Let each model answer a row of made-up numbers, one after another, then reset the metrics.

    Where rows differ in size, it answers one of the smallest and one of the largest. A model that cannot answer is
    never reported ready: raises `ProbeFailed`. Queries are not tried: they were checked when they were read, and what
    they compute from one model's outputs for the next may need real values.
    """
    for model in models:
        spec = client.models[model]
        least, most = {dim.name: dim.least for dim in spec.dims}, {dim.name: dim.most for dim in spec.dims}
        for dims in [least] if least == most else [least, most]:
            rows = {tensor.name: _made_up(spec, tensor, dims)[np.newaxis] for tensor in spec.inputs}
            try:
                await client.infer(model, rows, deadline=time.monotonic() + PROBE_SECONDS)
            except LatebindError as error:
                raise ProbeFailed(model, error) from error
    await client.forget()


def _made_up(spec: ModelSpec, tensor: TensorSpec, dims: Mapping[str, int]) -> Array:
    """Return an input of a row, as in profiling: standard normal numbers, or the filler of other dtypes."""
    shape = tensor.shape_of(dims)
    if is_floating(tensor.dtype) and tensor.dtype != BFLOAT16:
        return default_rng(0).standard_normal(shape).astype(tensor.dtype)
    return np.full(shape, tensor.filler, array_dtype(tensor.dtype))
