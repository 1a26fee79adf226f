"""The engine's process, forked by `client`: loads the models and passes messages between the door and the driver.

It inherits four descriptors: the slots, which worker runs what (`running`), a stream of fixed-size messages, and a
stream of JSON lines for control. The first control line is the order; the answer says what is served. The process ends
when the door closes its end.
"""

import logging
import os
import selectors
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import LatebindError
from latebind.domain.events import Event
from latebind.engine.adopting import Adopting
from latebind.engine.cores import usable_cores
from latebind.engine.crew import at_once, load_crew, open_crew, told_of_memory
from latebind.engine.device_pool import DeviceStaging
from latebind.engine.driver import Driver
from latebind.engine.event_log_file import EventLogFile
from latebind.engine.loader import Loader
from latebind.engine.mapping import Mappings
from latebind.engine.messages import EventReader
from latebind.engine.order import FORGET, PICTURE, TRACES, EngineOrder, EngineStarted
from latebind.engine.running import BEAT_SECONDS, Running, map_running, marking_loading
from latebind.engine.served import Served, with_queries
from latebind.engine.slots import SlotMemory
from latebind.engine.spin_wait import SpinWait
from latebind.engine.staging import HostStaging, Staging
from latebind.engine.worker import LoadedModel, Worker
from latebind.heap import settle
from latebind.logs import write_logs
from latebind.program.device import HOST, find_device, identity

READ_BYTES = 1 << 14

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> None:
    """Serve until the door closes. The arguments are the descriptors and the log format (`latebind.logs`)."""
    *descriptors, log_format = arguments
    slots, running, messages, control = map(int, descriptors)
    write_logs("engine", log_format)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal or systemd sends these to all processes
        signal.signal(number, signal.SIG_IGN)  # the door handles them: it answers what is in flight, then closes
    with socket.socket(fileno=messages) as message_socket, socket.socket(fileno=control) as control_socket:
        with control_socket.makefile("rb") as lines:
            line = lines.readline()
        if not line:
            return
        order = msgspec.json.decode(line, type=EngineOrder)
        places = map_running(running, order.engine.crew)
        try:
            engine = Engine(order, slots, places, message_socket, control_socket)
        except LatebindError as error:
            _told(control_socket, EngineStarted(error=str(error)))
            return
        engine.serve()


class Engine:
    """Loads the models, then passes events between the door and the driver."""

    def __init__(
        self, order: EngineOrder, slots: int, running: Running, messages: socket.socket, control: socket.socket
    ) -> None:
        _set_threads(order.engine)
        self._gpu = {} if (gpu := identity(order.engine.device)) is None else {"gpu": gpu}
        self._messages, self._control = messages, control
        self._exit = ExitStack()
        self._waker, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (messages, control, self._wakened):
            self._selector.register(sock, selectors.EVENT_READ, sock)
        self._few = True  # whether calls arrive one at a time; if several arrive together, others need the core
        self._spin_wait = SpinWait(self._selector.select, may_spin=lambda: self._few and not running.any)
        self._running = running
        workers, loader, residency = _models(order, running)
        models = workers[0]
        self._served = served = with_queries(models, list(map(Path, order.queries)), order.engine.slots)
        self._too_large = told_of_memory(models, order.residency.budget, residency.budget) if loader else {}
        config = _scheduler_config(order, models, served, residency)
        os.ftruncate(slots, served.bytes)
        memory = SlotMemory(slots, served.specs, served.rows.total)
        staging = _staging(order.engine, [model.spec.name for model in models], memory)
        self._exit.callback(staging.close)
        crew = [_worker(each, memory, staging, order.policy) for each in workers]
        self._adopting = Adopting(crew, models, order.adapted)
        self._caches = self._adopting.take_up()
        self._lines = b""
        self._reader = EventReader([spec.name for spec in served.specs])
        self._driver = Driver(
            config,
            crew,
            listen=self._listen,
            wake=self._wake,
            send=self._send,
            staging=staging,
            owners=memory.owners,
            tensors=Mappings(served.queries, memory.by_name, served.rows, {spec.name: spec for spec in served.specs}),
            loader=loader,
            log=self._event_log(order.event_log, config),
            running=running,
            recompiled={model.spec.name for model in models if model.program.backend == "compile"},
        )
        _warn_of_shared_cores(order.engine, models)
        settle()

    def serve(self) -> None:
        """Serve until the door closes its end."""
        with self._exit, self._selector:
            self._running.beat()
            served = self._served
            started = EngineStarted(
                served.specs, served.rows.total, served.deadlines, too_large=self._too_large, caches=self._caches
            )
            if _told(self._control, started):
                self._driver.run()

    def _listen(self, seconds: float | None) -> list[Event] | None:
        """Wait for messages, control lines or a wake-up, at most `seconds`; return None once the door has closed.

        It returns at least as often as the door is to see that somebody listens.
        """
        events: list[Event] = []
        found = self._spin_wait.wait(BEAT_SECONDS if seconds is None else min(seconds, BEAT_SECONDS))
        self._running.beat()
        for key, _ in found:
            sock: socket.socket = key.data
            data = sock.recv(READ_BYTES)
            if not data:
                return None
            if sock is self._messages:
                events.extend(self._reader.feed(data))
                self._few = len(events) == 1
            elif sock is self._control:
                *lines, self._lines = (self._lines + data).split(b"\n")
                for line in lines:
                    _send_line(self._control, self._answer(line))
        return events

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
        return self._adopting.adopt(line)

    def _event_log(self, file: str | None, config: SchedulerConfig) -> EventLogFile | None:
        """Return the log of all events in `file`, if one is configured."""
        if not file:
            return None
        log = EventLogFile(Path(file), config)
        self._exit.callback(log.close)
        return log

    def _send(self, data: bytes) -> None:
        try:
            self._messages.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            logger.warning("the door has closed; %d bytes of replies are lost", len(data))

    def _wake(self) -> None:
        self._waker.send(b"\0")


def _models(order: EngineOrder, running: Running) -> tuple[list[list[LoadedModel]], Loader | None, ResidencyConfig]:
    """Return each worker's models, the loader and the residency configuration.

    Without a budget all models are loaded now and there is no loader. With one, nothing is loaded, and the
    configuration returned has the bytes that are left for models, and those that requests may keep between stages.
    """
    paths, queries = marking_loading(map(Path, order.directories), running), list(map(Path, order.queries))
    if not order.residency.budget:
        return load_crew(paths, order.engine), None, order.residency
    workers, pieces, residency = open_crew(paths, order.engine, order.residency, queries)
    return workers, Loader(pieces, running), residency


def _scheduler_config(
    order: EngineOrder, models: Sequence[LoadedModel], served: Served, residency: ResidencyConfig
) -> SchedulerConfig:
    """Return the scheduler's configuration for these models, the queries over them and the workers."""
    rows = served.rows.total
    return SchedulerConfig(
        tuple(ServedModel(model.spec, model.costs, rows[model.spec.name], model.footprint) for model in models),
        order.engine.crew,
        order.policy,
        order.engine.granularities,
        at_once(order.engine) if order.engine.granularities else 0,
        residency,
        tuple(one.query for one in served.queries),
        order.engine.slots,
    )


def _worker(models: Sequence[LoadedModel], memory: SlotMemory, staging: Staging, policy: PolicyConfig) -> Worker:
    """Return a worker that runs these models."""
    by_name = {model.spec.name: model for model in models}
    return Worker(by_name, memory, stream=staging.stream(), compact=policy.compact)


def _set_threads(config: EngineConfig) -> None:
    """Restrict the process to the configured cores and number of threads per stage."""
    if config.cores:
        os.sched_setaffinity(0, config.cores)
    torch.set_num_threads(config.threads)


def _staging(config: EngineConfig, models: Sequence[str], memory: SlotMemory) -> Staging:
    """Return what brings inputs to the device on which stages compute, and outputs back."""
    device = find_device(config.device)
    return HostStaging(models, memory) if device == HOST else DeviceStaging(models, memory, device)


def _warn_of_shared_cores(config: EngineConfig, models: Sequence[LoadedModel]) -> None:
    """Warn if workers and lookups compete for cores, and say what to do."""
    cores = usable_cores(config)
    running = at_once(config) if config.granularities else config.workers
    if running * config.threads > cores:
        logger.warning(
            "%d workers of %d threads have %d cores and slow each other down: give more cores, or fewer workers or "
            "threads",
            running,
            config.threads,
            cores,
        )
    for model in models:
        if model.costs.aside and cores <= running * config.threads:
            logger.warning(
                "%s: lookups aside have no core of their own here (%d for %d workers of %d threads): give more, or "
                "run `latebind calibrate --lookups in-line`",
                model.spec.name,
                cores,
                running,
                config.threads,
            )


def _told(control: socket.socket, started: EngineStarted) -> bool:
    """Answer the order; False if the door has closed while models were loaded."""
    try:
        _send_line(control, started)
    except ConnectionError:
        return False
    return True


def _send_line(control: socket.socket, message: object) -> None:
    control.sendall(msgspec.json.encode(message) + b"\n")
