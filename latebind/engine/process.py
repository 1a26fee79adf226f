"""The engine's process, forked by `client`: loads the models and passes messages between the frontend and the driver.

It inherits four descriptors: the slots, the places (what each thread does), a stream of fixed-size messages (`shared`),
and a stream of JSON lines for control. The first control line is the order; the answer says what is served. The process
ends when the frontend closes its end.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from latebind.adaptation.controller import BUILT, FULL_DEPTH, down_to, number_of
from latebind.adaptation.versions import Versions, versions_folder
from latebind.batching.policy import make_policy
from latebind.domain.actions import Action
from latebind.domain.config import EngineConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import ConfigError, DoesNotFit, LatebindError, WrongQuery
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Event
from latebind.engine.cores import at_once, usable_cores
from latebind.engine.driver import Driver, Left
from latebind.engine.loaded import LoadedModel, load_for_workers
from latebind.engine.mapping import Steps, of_torch
from latebind.engine.on_demand import Loader, open_for_workers, report_memory
from latebind.engine.order import FORGET, PICTURE, TRACES, Adopt, EngineOrder, EngineStarted, InUse, with_queries
from latebind.engine.shared import Listening, Running, send_line
from latebind.engine.slots import SlotMemory
from latebind.engine.staging import HostStaging, Staging
from latebind.engine.worker import Worker
from latebind.heap import settle
from latebind.logs import write_logs
from latebind.program.device import HOST, NO_TORCH, find_device, has_torch, identity
from latebind.queries.file.wiring import DefinedQuery

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> None:
    """Serve until the frontend closes. The arguments are the descriptors and the log format (`latebind.logs`)."""
    *descriptors, log_format = arguments
    slots, places, messages, control = map(int, descriptors)
    write_logs("engine", log_format)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal or systemd sends these to all processes
        signal.signal(number, signal.SIG_IGN)  # the frontend handles them: it answers what is in flight, then closes
    with socket.socket(fileno=messages) as message_socket, socket.socket(fileno=control) as control_socket:
        with control_socket.makefile("rb") as lines:
            line = lines.readline()
        if not line:
            return
        order = msgspec.json.decode(line, type=EngineOrder)
        try:
            engine = Engine(order, slots, Running(order.engine.worker_count, places), message_socket, control_socket)
        except LatebindError as error:
            with suppress(ConnectionError):  # the frontend has closed while models were loaded
                query = error.query if isinstance(error, WrongQuery) else ""
                send_line(control_socket, EngineStarted(error=str(error), query=query))
            return
        except Exception:  # written while the sockets are open: as they close, the frontend kills this process
            logger.exception("the engine cannot begin")
            return
        engine.serve()


class Engine:
    """Loads the models, then passes events between the frontend and the driver."""

    def __init__(
        self, order: EngineOrder, slots: int, running: Running, messages: socket.socket, control: socket.socket
    ) -> None:
        config = order.engine
        if config.cores:
            os.sched_setaffinity(0, config.cores)
        self._gpu = {} if (gpu := identity(config.device)) is None else {"gpu": gpu}
        self._exit = ExitStack()
        self._control = control
        self._running = running
        self._later = list[Left]()  # to be compiled for batches while the engine serves
        paths, queries = list(map(Path, order.directories)), list(map(Path, order.queries))
        loader, residency, too_large = None, order.residency, dict[str, str]()
        if order.residency.budget:  # nothing is loaded now; `residency` has the bytes that are left for models
            workers, pieces, residency = open_for_workers(
                *(paths, config, order.residency, queries), named=order.named, running=running
            )
            loader = Loader(pieces, running)
            too_large = report_memory(workers[0], order.residency.budget, residency.budget)
        else:
            later = None if order.replaces else self._leave
            workers = load_for_workers(running.loading(paths), config, named=order.named, later=later)
        models = workers[0]
        if any(model.promises.thresholds for model in models) and not make_policy(order.policy).counts_exits:
            raise ConfigError(f"the policy {order.policy.name} chooses no levels: take late, or leave the floor out")
        served = with_queries(models, queries, config.slots, memory=order.residency.budget)
        _limit_torch(served.queries, config.threads)
        rows = served.rows.total
        scheduling = SchedulerConfig(
            tuple(
                ServedModel(model.spec, model.costs, rows[model.spec.name], model.footprint, config.below)
                for model in models
            ),
            config.worker_count,
            order.policy,
            config.granularities,
            at_once(config) if config.granularities else 0,
            residency,
            tuple(one.query for one in served.queries),
            served.slots,
        )
        os.ftruncate(slots, served.bytes)
        memory = SlotMemory(slots, served.specs, rows)
        names, device = [model.spec.name for model in models], find_device(config.device)
        staging: Staging = HostStaging(names, memory)
        if device != HOST:
            from latebind.engine.device import DeviceStaging  # noqa: PLC0415  (with torch)

            staging = DeviceStaging(names, memory, device)
        self._exit.callback(staging.close)
        self._workers = [
            Worker({one.spec.name: one for one in each}, memory, stream=staging.stream()) for each in workers
        ]
        self._versions = {
            model.spec.name: Versions(versions_folder(model.directory.path, order.adapted), model.directory)
            for model in models
            if model.lookups
        }
        self._promises = {model.spec.name: model.promises for model in models}
        self._targets = {
            model.spec.name: model.promises.fidelity[model.costs.target] for model in models if model.costs.levels
        }
        self._levels: dict[str, int] = {}  # how many may be used, for models that have any
        self._started = EngineStarted(
            served.specs, served.slots, rows, served.deadlines, too_large=too_large, caches=self._first_caches()
        )
        log = EventLogFile(Path(order.event_log), scheduling) if order.event_log else None
        if log is not None:
            self._exit.callback(log.close)
        names = [spec.name for spec in served.specs]
        listening = self._exit.enter_context(Listening(names, messages, control, running, self._answer))
        with self._blaming(names):
            self._driver = Driver(
                scheduling,
                self._workers,
                listen=listening.listen,
                wake=listening.wake,
                send=messages.sendall,
                staging=staging,
                owners=memory.owners,
                steps=Steps(
                    served.queries, memory.by_name, served.rows, {one.name: one for one in served.specs}, staging
                ),
                loader=loader,
                log=log,
                running=running,
                recompiled={model.spec.name for model in models if model.program.backend == "compile"},
            )
        for model, levels in self._levels.items():
            self._driver.limit(model, levels)
        _warn_of_shared_cores(config, models)
        settle()

    def _leave(self, number: int, work: Callable[[], None]) -> None:
        self._later.append((number, work))

    @contextmanager
    def _blaming(self, models: Sequence[str]) -> Iterator[None]:
        """Let the first place name the model that does not fit, which the frontend blames for the error."""
        try:
            yield
        except DoesNotFit as error:
            self._running.load(1 + models.index(error.model))
            raise

    def serve(self) -> None:
        """Serve until the frontend closes its end."""
        with self._exit:
            self._running.beat()
            try:
                send_line(self._control, self._started)
            except ConnectionError:  # the frontend has closed while models were loaded
                return
            self._driver.run(self._later)

    def _answer(self, line: bytes) -> object:
        """Perform a control line and return the answer."""
        if not line:
            return {**self._driver.snapshot(), **self._gpu}
        if line == PICTURE:
            return self._driver.picture()
        if line == TRACES:
            return self._driver.traces()
        if line == FORGET:
            self._driver.forget()
            return {}
        try:
            wanted = msgspec.json.decode(line, type=Adopt)
            self._use(wanted.model, wanted.version)
            if wanted.model in self._levels:
                self._driver.limit(wanted.model, self._levels[wanted.model])
        except (LatebindError, msgspec.MsgspecError, KeyError, OSError) as error:  # the version is faulty
            return str(error)
        return None

    def _first_caches(self) -> dict[str, InUse]:
        """Begin with the current versions of learned caches, and return them by model."""
        found = {}
        for model, versions in self._versions.items():
            name, reason = versions.first()
            if reason:
                logger.warning("%s begins with the version %r of its learned caches: %s", model, name, reason)
            self._use(model, name)
            found[model] = InUse(versions.base, name)
        return found

    def _use(self, model: str, version: str) -> None:
        """Let all workers use a version of a model's learned caches. Raises, changing nothing, if it is faulty."""
        name, least = down_to(version)
        promises, heads = self._promises[model], None  # the heads of `build`
        levels, kept = promises.thresholds, promises.down_to(least)
        if name == FULL_DEPTH or not kept:
            name, heads = FULL_DEPTH, {}
            levels, kept = tuple([{} for _ in levels]), 1
        elif name != BUILT:
            heads = self._versions[model].lookups(name)
            if levels:
                own = self._versions[model].levels(name, self._targets[model])
                levels, kept = promises.of_version(own), min(kept, promises.down_to(min(own)))
        for worker in self._workers:
            worker.adopt(model, number_of(name), heads, levels)
        if levels:
            self._levels[model] = kept


def _limit_torch(queries: Iterable[DefinedQuery], threads: int) -> None:
    """Let torch compute on `threads` threads, if it is used. Raises `ConfigError` if a query lacks it."""
    needing = next(((one.query.name, operation) for one in queries for operation in of_torch(one)), None)
    if needing is not None and not has_torch():
        raise ConfigError(f"the query {needing[0]} computes {needing[1]}(), which needs torch, and {NO_TORCH}")
    if needing is not None or "torch" in sys.modules:
        import torch  # noqa: PLC0415

        torch.set_num_threads(threads)


def _warn_of_shared_cores(config: EngineConfig, models: Sequence[LoadedModel]) -> None:
    """Warn if workers and lookups compete for cores, and say what to do."""
    cores, running = usable_cores(config), at_once(config) if config.granularities else config.workers
    summary = f"{running} workers of {config.threads} threads have {cores} cores"
    if running * config.threads > cores:
        logger.warning("%s and slow each other down: give more cores, or fewer workers or threads", summary)
    for model in models:
        if model.costs.aside and cores <= running * config.threads:
            logger.warning(
                "%s: lookups aside have no core of their own here (%s): give more, or run `latebind calibrate "
                "--lookups in-line`",
                model.spec.name,
                summary,
            )


class EventLogFile(EventLog):
    """An event log at `path`. After the first error (a full disk, say), which it logs, it writes no more."""

    def __init__(self, path: Path, config: SchedulerConfig) -> None:
        self._path = path
        self._given_up = False
        with self._giving_up():
            super().__init__(path.open("wb"), config)
            self._file.flush()  # if this process is killed, what is in the file can be replayed

    def write(self, now: float, event: Event, actions: Iterable[Action]) -> None:
        """Append one entry."""
        if not self._given_up:
            with self._giving_up():
                super().write(now, event, actions)

    def close(self) -> None:
        """Write what is buffered and close the file."""
        if not self._given_up:
            with self._giving_up():
                self._file.close()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """If the block raises `OSError`, log it and give up the file: the engine keeps serving without it."""
        try:
            yield
        except OSError as error:
            self._given_up = True
            logger.error("%s is not written any more: %s. It replays up to its last complete line", self._path, error)
