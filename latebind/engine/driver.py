"""The live driver: tells the scheduler what happened and performs what it answers, under one lock.

A worker's thread reports a stage and takes its next `Run` back at once, with no hand-over between threads.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from queue import SimpleQueue
from threading import Lock, Thread

import torch

from latebind.domain.actions import Reply, Run, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Event, StageDone, StageFailed, Woke
from latebind.domain.metrics import Metrics
from latebind.engine.messages import pack_ended
from latebind.engine.worker import Worker
from latebind.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Driver:
    """Owns the scheduler and one thread per worker. `send` gets packed replies; `wake` is called as a timer moves."""

    def __init__(
        self,
        config: SchedulerConfig,
        workers: Sequence[Worker],
        *,
        send: Callable[[bytes], None],
        wake: Callable[[], None],
        log: EventLog | None = None,
    ) -> None:
        self.metrics = Metrics(config)
        self.wake_time = inf
        self._scheduler = Scheduler(config)
        self._send = send
        self._wake = wake
        self._log = log
        self._lock = Lock()
        self._mailboxes: list[SimpleQueue[Run | None]] = [SimpleQueue() for _ in workers]
        self._threads = [
            Thread(target=self._work, args=(number, worker), name=f"worker-{number}")
            for number, worker in enumerate(workers)
        ]

    def start(self) -> None:
        """Start the threads of the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every worker end its stage and its thread; what still waits is not answered."""
        for mailbox in self._mailboxes:
            mailbox.put(None)
        for thread in self._threads:
            thread.join()

    def deliver(self, events: Iterable[Event]) -> None:
        """Tell the scheduler of events and perform all it answers."""
        for run in self._handle(events):
            self._mailboxes[run.worker].put(run)

    def tick(self) -> None:
        """Tell the scheduler that the time it asked for has come, if it has."""
        with self._lock:
            if time.monotonic() < self.wake_time:
                return
            self.wake_time = inf
        self.deliver((Woke(),))

    def snapshot(self) -> dict[str, object]:
        """Return the metrics and counts of this moment as plain types."""
        with self._lock:
            return {**self.metrics.snapshot(), "scheduler": self._scheduler.stats()}

    def _handle(self, events: Iterable[Event]) -> list[Run]:
        """Decide under the lock; send replies, move the timer and return what is to run."""
        runs: list[Run] = []
        replies: list[bytes] = []
        with self._lock:
            wake_time = self.wake_time
            for event in events:
                now = time.monotonic()
                actions = self._scheduler.handle(event, now)
                self.metrics.observe(event, actions)
                if self._log:
                    self._log.write(now, event, actions)
                for action in actions:
                    match action:
                        case Run():
                            runs.append(action)
                        case Reply(request, _, outcome, stage, waited, ran):
                            replies.append(pack_ended(request, outcome, stage, waited, ran))
                        case WakeAt(wake_at):
                            self.wake_time = wake_at
            woken = self.wake_time < wake_time
            if replies:
                self._send(b"".join(replies))
        if woken:
            self._wake()
        return runs

    def _work(self, number: int, worker: Worker) -> None:
        """Root of a worker's thread: run what comes, report, go on with what the report brings."""
        mailbox = self._mailboxes[number]
        with torch.inference_mode():
            while (run := mailbox.get()) is not None:
                following: Run | None = run
                while following is not None:
                    runs = self._handle((_report(worker, following),))
                    following = None
                    for run in runs:
                        if run.worker == number:
                            following = run
                        else:
                            self._mailboxes[run.worker].put(run)


def _report(worker: Worker, run: Run) -> StageDone | StageFailed:
    """Run a stage; whatever it raises fails the requests of this batch and no others."""
    try:
        return worker.run(run)
    except Exception:
        logger.exception("stage %d of %s failed for requests %s", run.stage, run.model, run.requests)
        return StageFailed(run.worker)
