"""The adaptation service, a process that `client` has forked.

Of several services that share a folder of versions one leads, for each model: it retrains, and the others follow what
it chooses (`versions.Leadership`). Each watches its own traffic, and may stop its own exits.

One thread listens and decides, one compares sampled requests with the base model, one retrains: a lesson takes a
third of a second, in which a version that errs would go unnoticed. All give way to serving.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from struct import Struct
from threading import Condition, Thread, get_native_id

import torch

from latebind.adaptation.adapter import Adapter, Sampled
from latebind.adaptation.controller import BUILT, Decision, Retrain, Use, name_of
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
from latebind.adaptation.versions import Leadership
from latebind.domain.errors import ConfigError, NotFound, RepositoryError
from latebind.learned.promise import upper_bound
from latebind.logs import write_logs
from latebind.repository.directory import ModelDirectory

logger = logging.getLogger(__name__)

AT_A_TIME = 500  # messages that are taken in while samples that were compared have to wait
WAITING = 512  # sampled requests that may wait to show, and as many to teach; newer ones are not taken
AT_ONCE = 8  # of them run as one batch
LOOK_SECONDS = 0.5
SINCE_ALARM = 40  # samples that are kept when fidelity fell: the newest show what came
SINCE_MOVED = 5  # samples that came between a change of classes and its being noticed
CONFIDENCE = 0.975  # of each bound of the fidelity that is told

YIELD_SECONDS = 2e-4  # what the thread computes takes a tenth longer
EVENT = Struct("=QiiI44x")  # struct sigevent: value, signal, what is to be done, thread
PERIOD = Struct("=qqqq")  # struct itimerspec: seconds and nanoseconds between two signals, and until the first
SIGEV_THREAD_ID = 4
CLOCK_MONOTONIC = 1


class Lane:
    """One model: its adapter, what waits for it and what was counted."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.name = adapter.spec.name
        self.to_compare: deque[Sampled] = deque()
        self.to_teach: deque[Sampled] = deque()
        self.lesson: Retrain | None = None
        self.told = Status(self.name)
        # what the folder said last: the choice of the leader, or of an operator, for all servers that share it
        self.seen = adapter.versions.current()
        self.lead = Leadership(adapter.folder)
        self.leads = False
        self.sampled = self.retrained = self.refused = 0

    def wait(self, sampled: Sampled) -> None:
        """Have a sampled request wait for its turn, unless too many do."""
        _, told = sampled
        waiting = self.to_compare if told.draw is not None and told.draw.shows else self.to_teach
        if len(waiting) < WAITING:
            waiting.append(sampled)

    def batch(self) -> list[Sampled]:
        """Return those whose turn it is; first those that are compared, for a version in use may err."""
        waiting = self.to_compare or self.to_teach
        return [waiting.popleft() for _ in range(min(AT_ONCE, len(waiting)))]

    def chosen(self) -> str:
        """Return what the folder says; while it cannot be read, what it said last."""
        try:
            return self.adapter.versions.current()
        except OSError as error:
            logger.error("%s: what is chosen cannot be seen: %s", self.name, error)
            return self.seen

    def status(self) -> Status:
        """Return the figures of now."""
        controller = self.adapter.controller
        last, fidelity, lower, upper = list(controller.last), None, 0.0, 1.0
        if last:
            same = sum(last)
            fidelity = same / len(last)
            lower = 1.0 - upper_bound(len(last) - same, len(last), CONFIDENCE)
            upper = upper_bound(same, len(last), CONFIDENCE)
        alarms = controller.watch.alarms + controller.looks.alarms
        counted = (self.sampled, self.retrained, self.refused, alarms)
        return Status(self.name, *counted, fidelity, lower, upper, controller.target)


class AdaptationService:
    """Passes answers to the controllers and carries out what they decide."""

    def __init__(self, order: AdaptationOrder, frontend: Connection) -> None:
        self._config, self._frontend = order.config, frontend
        self._lanes: list[Lane] = []
        self._left_out: dict[int, str] = {}  # the models that cannot be followed, by number, and why
        with yielding_often(order.config.yields):
            for number, path in enumerate(order.directories):
                try:
                    directory, wanted = ModelDirectory.open(Path(path)), order.wanted.get(path, "")
                    adapter = Adapter(
                        directory, order.config, threads=order.threads, backend=order.backend, wanted=wanted
                    )
                    self._lanes.append(Lane(adapter))
                except (ConfigError, RepositoryError, OSError) as error:
                    self._left_out[number] = str(error)
        self._work = Condition()  # guards the lanes
        self._looked = time.monotonic()

    def run(self) -> None:
        """Listen until the frontend closes its end. What is on disk is whole at any moment, so nothing is tidied up."""
        self._tell(Started(left_out=self._left_out))
        if not self._lanes:
            return
        for lane in self._lanes:
            self._lead(lane)
            wanted = lane.adapter.controller.wanted
            self._use(lane, Use(wanted, "as built" if wanted == BUILT else "it was in use before"))
        for root in (self._compare_on, self._learn_on):
            Thread(target=root, daemon=True).start()
        while self._listen():
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()

    def _listen(self) -> bool:
        """Take in what the frontend sends; False once it has closed."""
        if not self._frontend.poll(LOOK_SECONDS):
            return True
        with self._work:
            for _ in range(AT_A_TIME):
                try:
                    if not self._frontend.poll():
                        break
                    told = to_service(self._frontend.recv_bytes())
                except (EOFError, OSError):  # killed, perhaps in the middle of a message
                    return False
                assert not isinstance(told, AdaptationOrder), "the order comes once, before all else"
                lane = self._lanes[told.model]
                controller = lane.adapter.controller
                if isinstance(told, Unusable):
                    self._carry_out(lane, controller.unusable(name_of(told.version)))
                    continue
                self._carry_out(lane, controller.answered(told.answer))
                if told.draw is not None:
                    lane.wait((controller.total, told))
                    self._work.notify_all()
        return True

    def _look(self) -> None:
        """Now and then: is a retraining due, has an operator chosen a version, what is there to tell."""
        self._looked = time.monotonic()
        with self._work:
            for lane in self._lanes:
                self._lead(lane)
                controller = lane.adapter.controller
                self._carry_out(lane, controller.waited(self._looked, self._config.interval))
                chosen = lane.chosen()
                if chosen != lane.seen:
                    self._choose(lane, chosen)
                status = lane.status()
                if status != lane.told:
                    lane.told = status
                    self._tell(status)

    def _lead(self, lane: Lane) -> None:
        """See who leads: one service of those that share the folder. What it uses, all use."""
        led = lane.leads
        try:
            lane.leads = lane.lead.held()
        except OSError as error:
            lane.leads = False
            logger.error("%s: who leads cannot be seen: %s", lane.name, error)
            return
        if lane.leads and not led:
            logger.info(
                "%s: this server retrains its learned caches for all that share %s", lane.name, lane.adapter.folder
            )
            self._use(lane, Use(lane.adapter.controller.wanted, "it is what the new leader uses"))

    def _choose(self, lane: Lane, name: str) -> None:
        """Take over what an operator, or the leader, has chosen."""
        try:
            version = lane.adapter.version(name)
        except (NotFound, RepositoryError) as error:
            logger.warning("%s cannot use version %s: %s", lane.name, name, error)
            if lane.leads:
                self._make_current(lane, lane.seen)
            else:
                lane.seen = name
            # what was decided before this was looked into may not have been told
            self._use(lane, Use(lane.adapter.controller.wanted, "what was chosen cannot be used"))
            return
        lane.seen = name
        stopped = lane.adapter.versions.stopped()
        self._carry_out(lane, lane.adapter.controller.chosen(name, version, stopped=stopped))

    def _carry_out(self, lane: Lane, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Use):
                self._use(lane, decision)
            elif lane.leads:
                lane.lesson = decision
                self._work.notify_all()
            else:
                lane.adapter.controller.learned(None, time.monotonic())  # the leader does

    def _use(self, lane: Lane, use: Use) -> None:
        """Use a version, and as the leader have all use it.

        This server is told first: if this process dies in between, the next one finds what the frontend was told.
        """
        if lane.leads and lane.chosen() != lane.seen:
            return  # an operator has just chosen, which `_look` will find
        self._tell(UseVersion(lane.name, use.version, use.reason))
        if lane.leads and use.version != lane.seen:
            self._make_current(lane, use.version)

    def _make_current(self, lane: Lane, version: str) -> None:
        """Make all servers use a version. If that cannot be written, this server alone uses it."""
        try:
            lane.adapter.versions.make_current(version)
        except OSError as error:
            logger.error("%s: other servers are not told of version %s: %s", lane.name, version, error)
        else:
            lane.seen = version

    def _compare_on(self) -> None:
        """Root of the comparing thread."""
        while True:
            with self._work:
                self._work.wait_for(lambda: any(lane.to_compare or lane.to_teach for lane in self._lanes))
                lane = max(self._lanes, key=lambda lane: (len(lane.to_compare), len(lane.to_teach)))
                batch = lane.batch()
            try:
                self._see(lane, batch)
            except Exception:
                logger.exception("comparing answers of %s failed", lane.name)

    def _learn_on(self) -> None:
        """Root of the learning thread."""
        while True:
            with self._work:
                self._work.wait_for(lambda: any(lane.lesson for lane in self._lanes))
                lane, lesson = next((lane, lane.lesson) for lane in self._lanes if lane.lesson)
            try:
                self._teach(lane, lesson)
            except Exception as error:
                logger.error("adapting %s failed: %s", lane.name, error, exc_info=not isinstance(error, OSError))
                with self._work:
                    lane.lesson = None
                    lane.adapter.controller.learned(None, time.monotonic())

    def _see(self, lane: Lane, batch: Sequence[Sampled]) -> None:
        with yielding_often(self._config.yields):
            compared = lane.adapter.see(batch)
        with self._work:
            lane.sampled += len(compared)
            for one in compared:
                self._carry_out(lane, lane.adapter.controller.compared(**one._asdict()))

    def _teach(self, lane: Lane, lesson: Retrain) -> None:
        adapter, controller = lane.adapter, lane.adapter.controller
        with self._work:
            lane.lesson = None
            mix, heard = controller.shares(), controller.heard
        if lesson.moved:
            adapter.moved(SINCE_MOVED)
        if lesson.alarmed:
            adapter.alarmed(SINCE_ALARM)
        begun = time.thread_time()
        with yielding_often(self._config.yields):
            version = adapter.learn(mix, lesson.reason, heard=heard)
        logger.info(
            "%s: retrained (%s) in %.2f s of a core: %s",
            lane.name,
            lesson.reason,
            time.thread_time() - begun,
            f"version {version.name}" if version else "nothing could be shown",
        )
        with self._work:
            lane.retrained += 1
            lane.refused += version is None
            if lane.lesson is not None and lane.lesson.alarmed:
                return  # an alarm came meanwhile: what was made is out of date
            self._carry_out(lane, controller.learned(version, time.monotonic(), trusted=adapter.trusted))

    def _tell(self, message: FromService) -> None:
        try:
            self._frontend.send_bytes(encoded(message))
        except (BrokenPipeError, ConnectionResetError):
            logger.warning("the frontend has closed")


def main(arguments: Sequence[str]) -> None:
    """Serve until the frontend closes; the argument is the descriptor of the socket between them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the frontend hears it and closes
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Connection(int(arguments[0])) as frontend:
        try:
            order = to_service(frontend.recv_bytes())
        except (EOFError, OSError):  # the server died before it had said what to do
            return
        assert isinstance(order, AdaptationOrder)
        write_logs("adaptation", order.log_format)
        _give_way(order)
        AdaptationService(order, frontend).run()


def _give_way(order: AdaptationOrder) -> None:
    """Run when nothing else wants a core, and on cores that the engine has not, if there are any.

    A low priority is not enough: Linux lets even that finish its slice of milliseconds when a request comes. Nor is the
    class for idle cores alone, so what takes long is `yielding_often`.
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
    """Have this thread yield its core every `YIELD_SECONDS` within this context, if `wanted` and if the system can.

    Linux runs a thread of the class `SCHED_IDLE` when nobody else wants the core. But it decides so only where a thread
    wakes, sleeps or yields, and at its ticks, milliseconds apart; and between them it may well choose the idle one
    while others wait, because they have had more of the core (EEVDF). Who yields has it choose again: p99 of a call
    beside a service that learns is 1.15 ms with this and 3.06 without (ResNet-56; 1.11 with built caches).

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
    """Start a timer for this thread. Without one, where the user may have no more of them, it computes as before."""
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
