"""The adaptation service, a process that `client` has forked.

Of several services that share a folder of versions one leads, for each model: it retrains, and the others follow what
it chooses (`lease`). Each watches its own traffic, and may stop its own exits.

One thread listens and decides, one compares sampled requests with the base model, one retrains: a lesson takes a
third of a second, in which a version that errs would go unnoticed. All give way to serving.
"""

import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread

import msgspec
import torch

from latebind.adaptation.adapter import Adapter, Sampled, open_adapter
from latebind.adaptation.controller import BUILT, Decision, Retrain, Use, name_of
from latebind.adaptation.lease import Lease
from latebind.adaptation.messages import (
    AdaptationOrder,
    Answered,
    AnsweredReader,
    FromService,
    Started,
    Status,
    Unusable,
    UseVersion,
)
from latebind.adaptation.yielding import yielding_often
from latebind.domain.errors import ConfigError, LatebindError, NotFound, RepositoryError
from latebind.learned.promise import upper_bound
from latebind.logs import write_logs

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 18
WAITING = 512  # sampled requests that may wait to show, and as many to teach; newer ones are not taken
AT_ONCE = 8  # of them run as one batch
LOOK_SECONDS = 0.5
SAVE_SECONDS = 60.0
SINCE_ALARM = 40  # samples that are kept when fidelity fell: the newest show what came
SINCE_MOVED = 5  # samples that came between a change of classes and its being noticed
CONFIDENCE = 0.975  # of each bound of the fidelity that is told


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
        self.lease = Lease(adapter.folder)
        self.sampled = self.retrained = self.refused = 0

    def wait(self, sampled: Sampled) -> bool:
        """Have a sampled request wait for its turn; False where too many do."""
        waiting = self.to_compare if sampled.draw.shows else self.to_teach
        if len(waiting) >= WAITING:
            return False
        waiting.append(sampled)
        return True

    def batch(self) -> list[Sampled]:
        """Return those whose turn it is; first those that are compared, for a version in use may err."""
        waiting = self.to_compare or self.to_teach
        return [waiting.popleft() for _ in range(min(AT_ONCE, len(waiting)))]

    def status(self) -> Status:
        """Return the figures of now."""
        controller = self.adapter.controller
        last, fidelity, lower, upper = list(controller.last), None, 0.0, 1.0
        if last:
            same = sum(last)
            fidelity = same / len(last)
            lower = 1.0 - upper_bound(len(last) - same, len(last), CONFIDENCE)
            upper = upper_bound(same, len(last), CONFIDENCE)
        return Status(
            self.name,
            self.sampled,
            self.retrained,
            self.refused,
            controller.watch.alarms + controller.looks.alarms,
            fidelity,
            lower,
            upper,
            controller.target,
        )


class AdaptationService:
    """Passes answers to the controllers and carries out what they decide."""

    def __init__(self, order: AdaptationOrder, messages: socket.socket, control: socket.socket) -> None:
        self._messages, self._control = messages, control
        self._config = order.config
        with yielding_often(order.config.yields):
            self._lanes, self._left_out = _lanes_of(order)
        self._reader = AnsweredReader([lane.adapter.spec for lane in self._lanes])
        self._work = Condition()  # guards the lanes
        self._closed = False
        self._looked = self._saved = time.monotonic()

    def run(self) -> None:
        """Listen until the door closes its end, then save what was seen; so too where this service fails."""
        self._tell(Started(left_out=self._left_out))
        if not self._lanes:
            return
        for lane in self._lanes:
            self._lead(lane)
            wanted = lane.adapter.controller.wanted
            self._use(lane, Use(wanted, "as built" if wanted == BUILT else "it was in use before"))
        threads = [Thread(target=self._compare_on, name="comparing"), Thread(target=self._learn_on, name="learning")]
        for thread in threads:
            thread.start()
        self._messages.settimeout(LOOK_SECONDS)
        try:
            while self._listen():
                if time.monotonic() - self._looked >= LOOK_SECONDS:
                    self._look()
        finally:
            self._end(threads)

    def _end(self, threads: Sequence[Thread]) -> None:
        """Let the other threads end, without which the process does not; others may lead then."""
        with self._work:
            self._closed = True
            self._work.notify_all()
        for thread in threads:
            _give_way_no_longer(thread)
            thread.join()
        self._save()
        for lane in self._lanes:
            with suppress(OSError):  # then others wait, as if this one had been killed
                lane.lease.release()

    def _listen(self) -> bool:
        """Take in what the door sends; False once it has closed."""
        try:
            data = self._messages.recv(READ_BYTES)
        except TimeoutError:
            return True
        if not data:
            return False
        with self._work:
            for told in self._reader.feed(data):
                lane = self._lanes[told.model]
                if isinstance(told, Unusable):
                    self._carry_out(lane, lane.adapter.controller.unusable(name_of(told.version)))
                else:
                    self._answered(lane, told)
        return True

    def _answered(self, lane: Lane, told: Answered) -> None:
        self._carry_out(lane, lane.adapter.controller.answered(told.answer))
        if told.draw is not None and told.row:
            at, used = lane.adapter.controller.total, name_of(told.version)
            if lane.wait(Sampled(told.row, told.answer, told.client, told.draw, told.end, at, used)):
                self._work.notify_all()

    def _look(self) -> None:
        """Now and then: is a retraining due, has an operator chosen a version, what is there to tell."""
        self._looked = time.monotonic()
        with self._work:
            for lane in self._lanes:
                self._lead(lane)
                controller = lane.adapter.controller
                self._carry_out(lane, controller.waited(self._looked, self._config.interval))
                chosen = _chosen(lane)
                if chosen != lane.seen:
                    self._choose(lane, chosen)
                status = lane.status()
                if status != lane.told:
                    lane.told = status
                    self._tell(status)

    def _lead(self, lane: Lane) -> None:
        """See who leads: one service of those that share the folder. What it uses, all use."""
        led = lane.lease.leads
        try:
            leads = lane.lease.beat(time.monotonic())
        except OSError as error:
            logger.error("%s: who leads cannot be seen: %s", lane.name, error)
            return
        if leads and not led:
            logger.info(
                "%s: this server retrains its learned caches for all that share %s", lane.name, lane.adapter.folder
            )
            self._use(lane, Use(lane.adapter.controller.wanted, "it is what the new leader uses"))
        elif led and not leads:
            logger.warning("%s: another server retrains its learned caches from now on", lane.name)

    def _choose(self, lane: Lane, name: str) -> None:
        """Take over what an operator, or the leader, has chosen."""
        try:
            version = lane.adapter.version(name)
        except (NotFound, RepositoryError) as error:
            logger.warning("%s cannot use version %s: %s", lane.name, name, error)
            if lane.lease.leads:
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
            elif lane.lease.leads:
                lane.lesson = decision
                self._work.notify_all()
            else:
                lane.adapter.controller.learned(None, time.monotonic())  # the leader does

    def _use(self, lane: Lane, use: Use) -> None:
        """Use a version, and as the leader have all use it.

        This server is told first: if this process dies in between, the next one finds what the door was told.
        """
        if lane.lease.leads and _chosen(lane) != lane.seen:
            return  # an operator has just chosen, which `_look` will find
        self._tell(UseVersion(lane.name, use.version, use.reason))
        if lane.lease.leads and use.version != lane.seen:
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
                self._work.wait_for(
                    lambda: self._closed or any(lane.to_compare or lane.to_teach for lane in self._lanes)
                )
                if self._closed:
                    return
                lane = max(self._lanes, key=lambda lane: (len(lane.to_compare), len(lane.to_teach)))
                batch = lane.batch()
            try:
                self._see(lane, batch)
            except Exception:
                logger.exception("comparing answers of %s failed", lane.name)

    def _learn_on(self) -> None:
        """Root of the learning thread."""
        for lane in self._lanes:
            if not self._closed:
                with yielding_often(self._config.yields):
                    lane.adapter.rehearse()
        while True:
            with self._work:
                self._work.wait_for(lambda: self._closed or any(lane.lesson for lane in self._lanes))
                if self._closed:
                    return
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
                decisions = lane.adapter.controller.compared(one.same, at=one.at, strange=one.strange, used=one.used)
                self._carry_out(lane, decisions)

    def _teach(self, lane: Lane, lesson: Retrain) -> None:
        with self._work:
            lane.lesson = None
            mix, heard = lane.adapter.controller.shares(), lane.adapter.controller.heard
        if lesson.moved:
            lane.adapter.moved(SINCE_MOVED)
        if lesson.alarmed:
            lane.adapter.alarmed(SINCE_ALARM)
        begun = time.thread_time()
        with yielding_often(self._config.yields):
            version = lane.adapter.learn(mix, lesson.reason, heard=heard)
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
            self._lead(lane)  # it may have taken long
            if not lane.lease.leads:
                version = None  # another took over meanwhile, who makes his own
            adapter, now = lane.adapter, time.monotonic()
            decisions = adapter.controller.learned(version, now, trusted=adapter.trusted, stands=adapter.stands)
            self._carry_out(lane, decisions)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        self._saved = time.monotonic()
        for lane in self._lanes:
            if lane.lease.leads:
                try:
                    lane.adapter.save()
                except OSError as error:
                    logger.error("%s: the newest samples are not kept: %s", lane.name, error)

    def _tell(self, message: FromService) -> None:
        try:
            self._control.sendall(msgspec.json.encode(message) + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            logger.warning("the door has closed")


def _chosen(lane: Lane) -> str:
    """Return what the folder says; while it cannot be read, what it said last."""
    try:
        return lane.adapter.versions.current()
    except OSError as error:
        logger.error("%s: what is chosen cannot be seen: %s", lane.name, error)
        return lane.seen


def _lanes_of(order: AdaptationOrder) -> tuple[list[Lane], dict[int, str]]:
    """Return the models that can be followed, in order, and why others cannot."""
    lanes, left_out = [], {}
    for number, path in enumerate(order.directories):
        try:
            wanted = order.wanted.get(path, "")
            adapter = open_adapter(
                Path(path), order.config, threads=order.threads, backend=order.backend, wanted=wanted
            )
            lanes.append(Lane(adapter))
        except (ConfigError, RepositoryError, OSError) as error:
            left_out[number] = str(error)
    return lanes, left_out


def main(arguments: Sequence[str]) -> None:
    """Serve until the door closes; the arguments are the descriptors of messages and control."""
    messages, control = (int(argument) for argument in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the door hears it and closes
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=messages) as message_socket, socket.socket(fileno=control) as control_socket:
        with control_socket.makefile("rb") as lines:
            line = lines.readline()
        if not line.endswith(b"\n"):  # the server died before it had said what to do
            return
        order = msgspec.json.decode(line, type=AdaptationOrder)
        write_logs("adaptation", order.log_format)
        _give_way(order)
        try:
            service = AdaptationService(order, message_socket, control_socket)
        except LatebindError as error:
            control_socket.sendall(msgspec.json.encode(Started(str(error))) + b"\n")
            return
        service.run()


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


def _give_way_no_longer(thread: Thread) -> None:
    """Have what a thread has begun done soon, once nobody is served; where that is not allowed, it takes longer."""
    if hasattr(os, "SCHED_IDLE") and thread.native_id is not None:
        with suppress(OSError):  # it has ended, or would need a right to it
            for one in (0, thread.native_id):
                os.sched_setscheduler(one, os.SCHED_OTHER, os.sched_param(0))
