"""The live driver: tells the scheduler what happened and performs what it answers, under one lock.

One thread more than there are workers: one listens for events, the others run stages (lookups aside have one of their
own beside each worker, and one loads models where memory is limited). The thread that hears of a request goes and runs
it itself while another takes over listening, so no request waits for a thread to wake up; the thread that ends a stage
takes its next `Run` back at once (leader and followers, Schmidt et al. 2000). What takes less than another thread takes
to wake up is done without one. What looks into tensors of queries is
performed by whoever heard that it is to be done, outside the lock and before its next `Run`: others wait for it. What
is to be looked into at once is told of together, so that steps that may begin at once are one batch.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from threading import Lock, Thread, get_ident

import torch

from latebind.domain.actions import Action, Branch, Evict, Load, Map, Reply, Run, StepEnded, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Arrived, Event, StageDone, StageFailed, Woke
from latebind.domain.metrics import Metrics
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace, Tracer
from latebind.engine.loader import Loader
from latebind.engine.messages import pack_ended, pack_stepped
from latebind.engine.noting import Noting
from latebind.engine.running import IDLE, Running
from latebind.engine.staging import Staging
from latebind.engine.steps import Look, NoTensors, Steps, Tensors
from latebind.engine.worker import Worker
from latebind.queries.scheduler import make_scheduler

logger = logging.getLogger(__name__)

SHORT = 1e-4  # seconds of a run during which nobody else needs to listen
NO_THREAD = 0
MOST_TRACES = 1024
MOST_UNCOUNTED = 64  # events


class Driver:
    """Owns the scheduler and its workers.

    `listen(seconds)` waits at most so long (None: for ever) and returns events, or None when there will be no more;
    `wake()` makes it return early. `send` takes packed replies. `tensors` are those of queries, if any are served.
    Workers note in `running` which model they run (`engine.running`).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        workers: Sequence[Worker],
        *,
        listen: Callable[[float | None], list[Event] | None],
        wake: Callable[[], None],
        send: Callable[[bytes], None],
        staging: Staging,
        tensors: Tensors | None = None,
        loader: Loader | None = None,
        log: EventLog | Noting | None = None,
        running: Running | None = None,
    ) -> None:
        self._config = config
        self._scheduler = make_scheduler(config)
        self._metrics = Metrics(config)
        self._tracer = Tracer(config)
        self._traces: deque[Trace] = deque(maxlen=MOST_TRACES)  # that nobody has taken yet
        self._workers = workers
        self._running: Running = [IDLE] * len(workers) if running is None else running
        self._numbers = {served.spec.name: number for number, served in enumerate(config.models, 1)}
        self._listen = listen
        self._wake = wake
        self._send = send
        self._steps = Steps(config, tensors or NoTensors(), staging)
        self._uncounted: list[tuple[float, Event, Sequence[Action]]] = []  # since somebody had an answer
        self._told: list[bytes] = []  # steps that have ended: they go with the next replies
        self._loader = loader
        self._log = log
        self._deciding = Lock()  # guards the scheduler, the metrics, the log, the order of replies and the timer
        self._wake_time = inf
        self._short = _short_runs(config)
        self._listening = Lock()  # held by the one thread that listens, the `_listener`
        self._listener = NO_THREAD
        self._ready: deque[Run | list[Look]] = deque()
        self._closed = False
        self._failure: Exception | None = None
        for worker in workers:
            worker.tell(self._overhear)

    def run(self) -> None:
        """Serve with this thread and one for each worker until `listen` has no more.

        Raises what a thread failed with (no model's error): without it calls would go unanswered, so all of them end.
        """
        if self._loader is not None:
            self._loader.start(self._overhear)
        threads = [Thread(target=self._take_part_or_end, name=f"stages-{i}") for i, _ in enumerate(self._workers)]
        for thread in threads:
            thread.start()
        self._take_part_or_end()
        for thread in threads:
            thread.join()
        for worker in self._workers:
            worker.close()
        if self._loader is not None:
            self._loader.close()
        if self._failure is not None:
            raise self._failure

    def snapshot(self) -> dict[str, object]:
        """Return the metrics and counts of this moment as plain types."""
        with self._deciding:
            self._count()
            counts = {"scheduler": self._scheduler.stats(), "batching": self._scheduler.tallies()}
            return {**self._metrics.snapshot(), **counts, "now": time.monotonic()}

    def traces(self) -> list[Trace]:
        """Return the traces of requests that have ended since this was asked last."""
        with self._deciding:
            self._count()
            found = list(self._traces)
            self._traces.clear()
        return found

    def forget(self) -> None:
        """Count from the beginning: what ran until now was not asked for by clients."""
        with self._deciding:
            self._count()
            self._metrics = Metrics(self._config)

    def picture(self) -> Picture:
        """Return what is under way at this moment."""
        with self._deciding:
            return self._scheduler.picture(time.monotonic())

    def _take_part_or_end(self) -> None:
        try:
            self._take_part()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Have all threads end, and `run` raise this."""
        self._failure, self._closed = error, True
        self._wake()

    def _take_part(self) -> None:
        """Root of every thread: listen until there is something to do, do it and what follows, listen again."""
        with torch.inference_mode():
            while (run := self._hear()) is not None:
                self._do(run)

    def _hear(self) -> Run | None:
        """Take the listener's place and return the first run that comes of what is heard; None at the end.

        Short runs are done at once, by the listener, and so is what looks into tensors. What comes of it may be long,
        and then somebody else listens meanwhile.
        """
        with self._listening:
            self._listener = get_ident()
            try:
                while True:
                    if self._ready:
                        work = self._ready.popleft()
                        if not isinstance(work, Run):
                            self._ready.extend(self._look(work)[0])
                        elif self._is_short(work):
                            looks, runs, _ = self._handle((self._run(work),))
                            self._ready.extend((looks, *runs) if looks else runs)
                            if self._ready:
                                self._attend(0.0)  # who comes between two short runs is heard
                        else:
                            return work
                    elif self._closed:
                        return None
                    else:
                        self._attend(self._patience())
            finally:
                self._listener = NO_THREAD

    def _attend(self, seconds: float | None) -> None:
        """Wait for what comes, for so long at most, and have the scheduler decide on it."""
        events = self._listen(seconds)
        if events is None:
            self._closed = True
            return
        for event in events:
            if isinstance(event, Arrived):
                self._steps.arrived(event)
        with self._deciding:
            if time.monotonic() >= self._wake_time:
                self._wake_time = inf
                events.append(Woke())
        looks, runs, _ = self._handle(events)
        self._ready.extend((looks, *runs) if looks else runs)

    def _is_short(self, run: Run) -> bool:
        return len(run.requests) <= self._short.get((run.model, run.stage), 0)

    def _call_listener(self) -> None:
        """Have the listener see what is ready and when the timer rings, unless that is this thread, which will."""
        if self._listener != get_ident():
            self._wake()

    def _overhear(self, event: Event) -> None:
        """Take in what a thread beside the workers tells; what is to be done because of it goes to whoever listens."""
        try:
            looks, runs, sooner = self._handle((event,))
        except Exception as error:
            self._fail(error)
            return
        if looks or runs or sooner:
            self._ready.extend((looks, *runs) if looks else runs)
            self._call_listener()

    def _do(self, run: Run) -> None:
        """Do this and report it, then what comes of it, one run at a time."""
        mine: Run | None = run
        while mine is not None:
            looks, runs, sooner = self._handle((self._run(mine),))
            mine = self._keep(None, runs, sooner=sooner)
            if looks:
                runs, sooner = self._look(looks)
                mine = self._keep(mine, runs, sooner=sooner)

    def _keep(self, mine: Run | None, runs: list[Run], *, sooner: bool) -> Run | None:
        """Return the run that this thread does next; the others go to whoever listens."""
        if mine is None and runs:
            mine = runs.pop(0)
        if runs or sooner:
            self._ready.extend(runs)
            self._call_listener()
        return mine

    def _look(self, looks: list[Look]) -> tuple[list[Run], bool]:
        """Look into tensors; return the runs that come of it, and whether the timer is now to ring sooner."""
        runs, sooner = list[Run](), False
        while looks:
            looks, more, rings = self._handle(self._steps.perform_all(looks))
            runs += more
            sooner = sooner or rings
        return runs, sooner

    def _run(self, run: Run) -> StageDone | StageFailed:
        """Run a stage, with a note of whose it is for the case that this process does not survive it."""
        self._running[run.worker] = self._numbers[run.model]
        event = _report(self._workers[run.worker], run)
        self._running[run.worker] = IDLE
        return event

    def _patience(self) -> float | None:
        """Seconds until the timer, None if none runs."""
        return None if self._wake_time == inf else max(0.0, self._wake_time - time.monotonic())

    def _handle(self, events: Iterable[Event]) -> tuple[list[Look], list[Run], bool]:
        """Decide and send the replies; return what is to be done and whether the timer is now to ring sooner."""
        looks: list[Look] = []
        runs: list[Run] = []
        replies: list[bytes] = []
        with self._deciding:
            now, before, first = time.monotonic(), self._wake_time, len(self._uncounted)
            for event in events:
                actions = self._scheduler.handle(event, now)
                self._uncounted.append((now, event, actions))
                for action in actions:
                    match action:
                        case Run():
                            runs.append(action)
                        case Reply():
                            self._steps.ended(action)
                            replies.append(pack_ended(action))
                        case WakeAt(wake_at):
                            self._wake_time = wake_at
                        case Map() | Branch():
                            looks.append(action)
                        case StepEnded():
                            self._steps.step_ended(action)
                            self._told.append(pack_stepped(action))
                        case Load() | Evict():
                            assert self._loader is not None, "memory is limited and nobody loads"
                            self._loader.perform(action)
            if replies:
                self._send(b"".join((*self._told, *replies)))
                self._told.clear()
            if self._log:
                for happened in self._uncounted[first:]:
                    self._log.write(*happened)
            if replies or len(self._uncounted) >= MOST_UNCOUNTED:
                self._count()
            return looks, runs, self._wake_time < before

    def _count(self) -> None:
        """Count what has happened, and keep what is traced, once somebody has an answer: nobody waits for it then.

        Together it takes a fraction of what it does between two stages, where nothing of it is in the core's caches.
        """
        for now, event, actions in self._uncounted:
            self._metrics.observe(event, actions, now=now)
        self._traces.extend(self._tracer.observe_all(self._uncounted))
        self._uncounted.clear()


def _short_runs(config: SchedulerConfig) -> dict[tuple[str, int], int]:
    """Return the largest batch whose run of a stage is short, by model and stage, where there is one."""
    found = {}
    for served in config.models:
        costs = served.costs
        for stage in set(range(served.spec.stages)) - costs.slopes.keys():
            short = [size for size in range(1, served.spec.max_batch + 1) if costs.step(stage, size) <= SHORT]
            if short:
                found[served.spec.name, stage] = short[-1]
    return found


def _report(worker: Worker, run: Run) -> StageDone | StageFailed:
    """Run a stage; whatever it raises fails the requests of this batch and no others."""
    try:
        return worker.run(run)
    except Exception:
        logger.exception("stage %d of %s failed for requests %s", run.stage, run.model, run.requests)
        return StageFailed(run.worker)
