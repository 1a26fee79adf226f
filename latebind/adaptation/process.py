"""The adaptation service: a process forked by `client`.

Of several services that share a folder of versions, one leads for each model: it retrains, and the others follow what
it chooses (`versions.Leadership`). Each watches its own traffic, and may stop its own exits.

One thread listens, compares sampled requests with the base model and decides. A lesson runs on another thread: it takes
a third of a second, in which a version that errs would go unnoticed. Both give way to serving.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from struct import Struct
from threading import Thread, get_native_id

import torch

from latebind.adaptation.adapter import Adapter
from latebind.adaptation.controller import BUILT, Decision, Use, Version, down_to, name_of
from latebind.adaptation.messages import (
    AdaptationOrder,
    FromService,
    Started,
    Status,
    Unusable,
    UseVersion,
    encoded,
    to_service,
)
from latebind.domain.errors import ConfigError, NotFound, RepositoryError
from latebind.logs import write_logs
from latebind.repository.directory import ModelDirectory

logger = logging.getLogger(__name__)

AT_A_TIME = 500  # messages that are taken in while samples wait to be compared
LOOK_SECONDS = 0.5
SOON = 0.02  # seconds between two looks whether a lesson has ended

YIELD_SECONDS = 2e-4  # makes the thread's computations a tenth slower
EVENT = Struct("=QiiI44x")  # struct sigevent: value, signal, what is to be done, thread
PERIOD = Struct("=qqqq")  # struct itimerspec: seconds and nanoseconds between two signals, and until the first
SIGEV_THREAD_ID = 4
CLOCK_MONOTONIC = 1


class AdaptationService:
    """One loop over the models: take in answers, compare samples, carry out decisions.

    Only lessons run on another thread, one at a time.
    """

    def __init__(self, order: AdaptationOrder, frontend: Connection) -> None:
        self._config, self._frontend = order.config, frontend
        self._models: list[Adapter] = []
        self._left_out: dict[int, str] = {}  # the models that cannot be followed, by number, and why
        with yielding_often(order.config.yields):
            for number, path in enumerate(order.directories):
                try:
                    adapter = Adapter(
                        ModelDirectory.open(Path(path)),
                        order.config,
                        threads=order.threads,
                        backend=order.backend,
                        wanted=order.wanted.get(path, ""),
                        floor=order.floor,
                    )
                    self._models.append(adapter)
                except (ConfigError, RepositoryError, OSError) as error:
                    self._left_out[number] = str(error)
        self._looked = time.monotonic()
        self._reported: dict[str, Status] = {}
        self._teaching = False
        self._taught: SimpleQueue[Callable[[], object]] = SimpleQueue()  # what to do once a lesson has ended

    def run(self) -> None:
        """Run until the frontend closes its end. Files are consistent at any moment, so nothing is cleaned up."""
        self._send(Started(self._left_out, tuple([model.coarse for model in self._models])))
        if not self._models:
            return
        for model in self._models:
            self._lead(model)
            wanted = model.controller.asked
            self._use(model, Use(wanted, "as built" if wanted == BUILT else "it was in use before"))
        while self._listen():
            self._compare()
            self._learn()
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()

    def _listen(self) -> bool:
        """Take in what the frontend sends; False once it has closed."""
        busy = any(any(model.waiting) for model in self._models)
        if not self._frontend.poll(0.0 if busy else SOON if self._teaching else LOOK_SECONDS):
            return True
        for _ in range(AT_A_TIME):
            try:
                if not self._frontend.poll():
                    break
                message = to_service(self._frontend.recv_bytes())
            except (EOFError, OSError):  # the frontend was killed, perhaps in the middle of a message
                return False
            assert not isinstance(message, AdaptationOrder), "the order comes once, before all else"
            model = self._models[message.model]
            if isinstance(message, Unusable):
                self._carry_out(model, model.controller.unusable(name_of(message.version)))
            else:
                self._carry_out(model, model.take(message))
        return True

    def _compare(self) -> None:
        """Look at some sampled requests of the model that has the most waiting."""
        model = max(self._models, key=lambda model: model.waiting)
        if not (batch := model.batch()):
            return
        try:
            with yielding_often(self._config.yields):
                decisions = model.see(batch)
        except Exception:
            logger.exception("comparing answers of %s failed", model.spec.name)
        else:
            self._carry_out(model, decisions)

    def _learn(self) -> None:
        """Take over what a lesson made, and begin the next one in its own thread: it takes a third of a second."""
        if not self._taught.empty():
            self._taught.get()()
            self._teaching = False
        model = next((model for model in self._models if model.due), None)
        if self._teaching or model is None or model.due is None:
            return
        asked, model.due, self._teaching = model.due, None, True
        Thread(target=self._teach, args=(model, asked.reason, model.lesson(asked)), daemon=True).start()

    def _teach(self, model: Adapter, reason: str, lesson: Callable[[], Version | None]) -> None:
        """Root of the thread of a lesson."""
        begun, version = time.thread_time(), None
        try:
            with yielding_often(self._config.yields):
                version = lesson()
        except Exception as error:
            logger.error("adapting %s failed: %s", model.spec.name, error, exc_info=not isinstance(error, OSError))
            self._taught.put(partial(model.learned, None, time.monotonic()))
            return
        result = f"version {version.name}" if version else "nothing could be shown"
        took = time.thread_time() - begun
        logger.info("%s: retrained (%s) in %.2f s of a core: %s", model.spec.name, reason, took, result)
        self._taught.put(partial(self._learned, model, version))

    def _learned(self, model: Adapter, version: Version | None) -> None:
        model.retrained += 1
        model.refused += version is None
        if model.due is None or not model.due.alarmed:  # else an alarm came meanwhile: what was made is out of date
            self._carry_out(model, model.learned(version, time.monotonic()))

    def _look(self) -> None:
        """Check whether a retraining is due, an operator has chosen a version, or there is something to report."""
        self._looked = time.monotonic()
        for model in self._models:
            self._lead(model)
            self._carry_out(model, model.controller.waited(self._looked, self._config.interval))
            chosen = self._chosen(model)
            if chosen != model.seen:
                self._choose(model, chosen)
            status = model.status()
            if status != self._reported.get(model.spec.name, Status(model.spec.name)):
                self._reported[model.spec.name] = status
                self._send(status)

    def _lead(self, model: Adapter) -> None:
        """Check which of the services that share the folder leads. What it uses, all use."""
        led, name = model.leads, model.spec.name
        try:
            model.leads = model.lead.held()
        except OSError as error:
            model.leads = False
            logger.error("%s: the leader cannot be determined: %s", name, error)
            return
        if model.leads and not led:
            logger.info("%s: this server retrains its learned caches for all that share %s", name, model.folder)
            self._use(model, Use(model.controller.asked, "it is what the new leader uses"))

    def _chosen(self, model: Adapter) -> str:
        """Return the folder's choice; if it cannot be read, the last known one."""
        try:
            return model.versions.current()
        except OSError as error:
            logger.error("%s: the chosen version cannot be read: %s", model.spec.name, error)
            return model.seen

    def _choose(self, model: Adapter, name: str) -> None:
        """Take over what an operator, or the leader, has chosen."""
        try:
            version = model.version(name)
        except (NotFound, RepositoryError) as error:
            logger.warning("%s cannot use version %s: %s", model.spec.name, name, error)
            if model.leads:
                self._make_current(model, model.seen)
            else:
                model.seen = name
            # decisions made before this check may not have been reported
            self._use(model, Use(model.controller.asked, "what was chosen cannot be used"))
            return
        model.seen = name
        self._carry_out(model, model.controller.chosen(name, version, stopped=model.versions.stopped()))

    def _carry_out(self, model: Adapter, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Use):
                self._use(model, decision)
            elif model.leads:
                model.due = decision
            else:
                model.learned(None, time.monotonic())  # the leader does

    def _use(self, model: Adapter, use: Use) -> None:
        """Use a version, and as the leader make all services use it.

        The frontend is informed first: if this process dies in between, the next one learns it from the frontend.
        """
        if model.leads and self._chosen(model) != model.seen:
            return  # an operator has just chosen, which `_look` will find
        self._send(UseVersion(model.spec.name, use.version, use.reason))
        name, _ = down_to(use.version)  # each server decides which levels it uses
        if model.leads and name != model.seen:
            self._make_current(model, name)

    def _make_current(self, model: Adapter, version: str) -> None:
        """Make all servers use a version. If that cannot be written, this server alone uses it."""
        try:
            model.versions.make_current(version)
        except OSError as error:
            logger.error("%s: other servers cannot be switched to version %s: %s", model.spec.name, version, error)
        else:
            model.seen = version

    def _send(self, message: FromService) -> None:
        try:
            self._frontend.send_bytes(encoded(message))
        except (BrokenPipeError, ConnectionResetError):
            logger.warning("the frontend has closed")


def main(arguments: Sequence[str]) -> None:
    """Serve until the frontend closes; the argument is the descriptor of the socket between them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the frontend gets it too, and closes
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Connection(int(arguments[0])) as frontend:
        try:
            order = to_service(frontend.recv_bytes())
        except (EOFError, OSError):  # the server died before it sent the order
            return
        assert isinstance(order, AdaptationOrder)
        write_logs("adaptation", order.log_format)
        _give_way(order)
        AdaptationService(order, frontend).run()


def _give_way(order: AdaptationOrder) -> None:
    """Run only when nothing else wants a core, and on cores that the engine does not use, if there are any.

    A low priority is not enough: when a request comes, Linux lets even such a thread finish its time slice of
    milliseconds. Nor is the idle scheduling class alone, so long computations run in `yielding_often`.
    """
    if order.config.yields and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif order.config.yields:
        os.nice(19)
    others = os.sched_getaffinity(0) - set(order.cores)
    if order.cores and others:
        os.sched_setaffinity(0, others)
    torch.set_num_threads(order.threads)


@contextmanager
def yielding_often(wanted: bool = True) -> Iterator[None]:
    """Make this thread yield its core every `YIELD_SECONDS` within this context, if `wanted` and if the system can.

    Linux runs a thread of the class `SCHED_IDLE` when no other wants the core. But it decides that only when a thread
    wakes, sleeps or yields, and at its ticks, milliseconds apart; and even then it may choose the idle one while others
    wait, because they have had more of the core (EEVDF). Yielding makes it choose again: p99 of a call beside a service
    that learns is 1.15 ms with this and 3.06 without (ResNet-56; 1.11 with built caches).

    A timer does it, so that long calls of torch or OpenVINO are interrupted too: its signal has `sched_yield` of the C
    library as its handler, and Python does not notice.
    """
    timer = _timer() if wanted and sys.platform == "linux" else None
    try:
        yield
    finally:
        if timer is not None:
            ctypes.CDLL(None).timer_delete(timer)


def _timer() -> ctypes.c_void_p | None:
    """Start a timer for this thread; None if the user may have no more of them, and the thread does not yield."""
    libc = ctypes.CDLL(None)
    number = signal.SIGRTMIN + 1
    handle = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("signal", libc))
    nanoseconds = int(YIELD_SECONDS * 1e9)
    event = EVENT.pack(0, number, SIGEV_THREAD_ID, get_native_id())
    timer = ctypes.c_void_p()
    with suppress(AttributeError):  # a C library before glibc 2.34 has timers elsewhere
        handle(number, ctypes.cast(libc.sched_yield, ctypes.c_void_p))
        if libc.timer_create(CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0:
            libc.timer_settime(timer, 0, PERIOD.pack(0, nanoseconds, 0, nanoseconds), None)
            return timer
    return None
