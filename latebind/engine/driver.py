"""The live driver: passes events to the scheduler and performs the actions that it returns, under one lock.

It has one thread more than there are workers: one thread listens for events while the others run stages (leader and
followers, Schmidt et al. 2000). The thread that reads a request runs it itself while another takes over listening, so
no request waits for a thread to wake up. The thread that ends a stage takes its next `Run` at once. Runs shorter than
waking a thread takes are done by the listener. The main thread compiles what was left until now, and then only waits
for the others to end: it is never stuck in a stage.

There are further threads: lookups aside have one per worker, and the loader has one if memory is limited.

`Map` and `Branch`, which read and write tensors of queries, are performed outside the lock, by the thread that gets
them and before its next `Run`, because other requests wait for them. Those of one batch of events are reported
together, so that steps that become ready together share a batch.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf, prod
from threading import Event as Signal
from threading import Lock, Thread, get_ident
from typing import TypeAlias

import numpy as np

from latebind.domain.actions import Action, Branch, Evict, Load, Map, Reply, Run, StepEnded, WakeAt
from latebind.domain.config import SchedulerConfig, ServedModel
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Arrived, Event, Limited, StageDone, StageFailed, Woke
from latebind.domain.metrics import Metrics
from latebind.domain.model import StageKind
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace, Tracer
from latebind.engine.mapping import Steps, TensorAction
from latebind.engine.on_demand import Loader
from latebind.engine.shared import (
    COMPILES,
    LOAD_SECONDS,
    LOADER,
    WORKERS,
    Owners,
    Running,
    pack_ended,
    pack_stepped,
    pack_wrote,
)
from latebind.engine.staging import Staging
from latebind.engine.worker import Failures, Worker
from latebind.program.arrays import computing
from latebind.program.pieces import trim_heap
from latebind.queries.scheduler import make_scheduler

logger = logging.getLogger(__name__)

SHORT_SECONDS = 1e-4  # a run of at most this may be done by the listener: nobody listens meanwhile
END_SECONDS = 10.0  # that stages have to end once the frontend closes
NO_THREAD = 0
MOST_TRACES = 1024  # kept until they are collected
MOST_UNCOUNTED = 64  # events that may wait to be counted
LATE_SECONDS = 2.0  # that a stage may take at least, because others may need the cores
TIMES = 20  # how many times longer than in its profile a stage may take, for the same reason
COMPILE_SECONDS = 120.0  # for a stage that is compiled when it first meets a batch size
SLOWEST_DISK = 10e6  # bytes a second, at which weights may be read when a stage runs for the first time

Work: TypeAlias = Run | list[TensorAction]
Left: TypeAlias = tuple[int, Callable[[], None]]  # what is done while an engine serves, for which model, from 1 on


class Driver:
    """Owns the scheduler and its workers.

    `listen(seconds)` waits at most so long (None: without limit) and returns events, or None when no more will come;
    `wake()` makes it return early. `send` takes packed replies. `steps` perform the actions of queries, if any are
    served. `owners` learn of every end before the frontend does. Workers note in `running` which stage they run, and
    until when it should be done. Stages of `recompiled` models may be compiled whenever they meet a new batch size.
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
        owners: Owners,
        steps: Steps | None = None,
        loader: Loader | None = None,
        log: EventLog | None = None,
        running: Running | None = None,
        recompiled: Collection[str] = (),
    ) -> None:
        self._config = config
        self._scheduler = make_scheduler(config)
        self._metrics = Metrics(config)
        self._tracer = Tracer(config)
        self._traces: deque[Trace] = deque(maxlen=MOST_TRACES)  # not yet collected
        self._workers = workers
        self._running = Running(len(workers)) if running is None else running
        self._longest = {served.spec.name: longest_seconds(served) for served in config.models}
        self._reading = {served.spec.name: served.costs.weight_bytes / SLOWEST_DISK for served in config.models}
        self._recompiled = recompiled
        self._ran: set[tuple[int, str, int, int]] = set()  # worker, model and stage, and batch if that may be compiled
        self._numbers = {served.spec.name: number for number, served in enumerate(config.models, 1)}
        self._listen = listen
        self._wake = wake
        self._send = send
        self._staging = staging
        self._owners = owners
        self._steps = steps
        self._nodes = {query.name: range(len(query.nodes)) for query in config.queries}
        last = {served.spec.name: (served.spec, served.spec.stages - 1) for served in config.models}
        self._decoders = {name: stage for name, (spec, stage) in last.items() if spec.kind(stage) is StageKind.DECODER}
        self._tokens: dict[int, int] = {}  # how many are written, by request, of requests that stream
        self._failures = Failures(logger)
        self._uncounted: list[tuple[float, Event, Sequence[Action]]] = []  # not yet in the metrics
        self._ended_steps: list[bytes] = []  # packed; they are sent with the next replies
        self._loader = loader
        self._log = log
        self._deciding = Lock()  # guards the scheduler, the metrics, the log, the order of replies and the timer
        self._wake_time = inf
        self._short_batches: dict[tuple[str, int], int] = {}  # the largest that takes `SHORT_SECONDS`, by stage
        for served in config.models:
            for stage, grid in enumerate(served.costs.stages):
                if len(grid.lengths) > 1:
                    continue
                sizes = range(1, served.spec.max_batch + 1)
                short = [size for size in sizes if served.costs.step(stage, size) <= SHORT_SECONDS]
                self._short_batches[served.spec.name, stage] = max(short, default=0)
        self._listening = Lock()  # held by the thread that listens, the `_listener`
        self._listener = NO_THREAD
        self._ready: deque[Work] = deque()  # for the listener
        self._closed = False
        self._row_by_row = False  # whether rows of a batch may run one by one, because a stage is not compiled for it
        self._ended = Signal()  # set by the first thread that ends
        self._failure: Exception | None = None
        for worker in workers:
            worker.report_exits_to(self._handle_report)

    def run(self, later: Sequence[Left] = ()) -> None:
        """Serve with a thread for each worker and one more, until `listen` returns None.

        Meanwhile this thread does what was left for `later`, in order, until it is to end.

        If a thread fails (which errors of models do not cause), calls would stay unanswered. So all threads end, and
        this raises the error. A thread that is stuck in a stage is left behind, so that the process ends anyway.
        """
        if self._loader is not None:
            self._loader.start(self._handle_report)
        names = [f"stages-{i}" for i in range(len(self._workers) + 1)]
        threads = [Thread(target=self._serve_thread, name=name, daemon=True) for name in names]
        self._row_by_row = bool(later)
        for thread in threads:
            thread.start()
        if later:
            self._do(later)
        self._ended.wait()
        until = time.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            logger.error("a stage has not ended for %g s: the process ends without it", END_SECONDS)
            return
        for worker in self._workers:
            worker.close()
        if self._loader is not None:
            self._loader.close()
        if self._failure is not None:
            raise self._failure

    def _do(self, later: Sequence[Left]) -> None:
        """Compile for batches what could be left until models serve; until then, stages are compiled for one row.

        So the demo's model is ready after 1.6 s instead of 2.1 (medians of 15 pairs, two cores). A further thread would
        keep 3 MB in an arena of its own.

        `running` names the model meanwhile, in case this process does not survive it. Any error is only logged, because
        answers are correct without this.
        """
        names, failed = {number: name for name, number in self._numbers.items()}, False
        for number, work in later:
            if self._ended.is_set():
                return
            self._running.begin(LOADER, number, COMPILES, LOAD_SECONDS)
            try:
                work()
            except Exception as error:
                failed = True
                logger.warning(
                    "%s: a stage is not compiled for batches, so rows run one by one: %s",
                    *(names[number], error),
                    exc_info=not isinstance(error, RuntimeError | MemoryError),
                )
            self._running.rest(LOADER)
        self._row_by_row = failed
        trim_heap()

    def snapshot(self) -> dict[str, object]:
        """Return the current metrics and counts as plain types."""
        with self._deciding:
            self._count()
            counts = {"scheduler": self._scheduler.stats(), "batching": self._scheduler.tallies()}
            return {**self._metrics.snapshot(), **counts, "now": time.monotonic()}

    def traces(self) -> list[Trace]:
        """Return the traces of requests that have ended since the last call."""
        with self._deciding:
            self._count()
            found = list(self._traces)
            self._traces.clear()
        return found

    def forget(self) -> None:
        """Reset the metrics: the requests so far did not come from clients."""
        with self._deciding:
            self._count()
            self._metrics = Metrics(self._config)

    def picture(self) -> Picture:
        """Return what is queued and running at this moment."""
        with self._deciding:
            return self._scheduler.picture(time.monotonic())

    def limit(self, model: str, levels: int) -> None:
        """Let requests of a model start only at the first `levels` levels of its operating curve. Thread-safe."""
        self._handle_report(Limited(model, levels))

    def _serve_thread(self) -> None:
        """Root of every thread: listen until there is a run, perform it and those that follow, listen again.

        An error ends all threads.
        """
        try:
            # Expressions of queries take any values; setting this for each of them takes longer than most of them.
            with computing(), np.errstate(all="ignore"):
                while (run := self._next_run()) is not None:
                    self._run_and_follow(run)
        except Exception as error:
            self._fail(error)
        finally:
            self._ended.set()

    def _fail(self, error: Exception) -> None:
        """Make all threads end, and `run` raise `error`."""
        self._failure, self._closed = error, True
        self._wake()

    def _next_run(self) -> Run | None:
        """Become the listener and return the first run for this thread to perform; None once the driver is closed.

        The listener performs short runs and tensor actions itself. It hands any longer run that results to its caller,
        while another thread takes over listening.
        """
        with self._listening:
            self._listener = get_ident()
            try:
                while True:
                    if not self._ready:
                        if self._closed:
                            return None
                        self._listen_once(None if self._wake_time == inf else self._wake_time - time.monotonic())
                        continue
                    work = self._ready.popleft()
                    if not isinstance(work, Run):
                        self._ready.extend(self._perform(work))
                    elif len(work.requests) > self._short_batches.get((work.model, work.stage), 0):
                        return work
                    else:
                        self._ready.extend(self._perform(work))
                        if self._ready:
                            self._listen_once(0.0)  # also read what arrived during the short run
            finally:
                self._listener = NO_THREAD

    def _listen_once(self, seconds: float | None) -> None:
        """Wait for events, at most `seconds`, and let the scheduler handle them."""
        events = self._listen(seconds if seconds is None else max(0.0, seconds))
        if events is None:
            self._closed = True
            return
        for event in events:
            if isinstance(event, Arrived):
                if self._staging.copies and event.model not in self._nodes:  # not for queries: the host reads theirs
                    self._staging.copy_in(event.model, event.slots)
                if event.streams and event.model in self._decoders:
                    self._tokens.update(dict.fromkeys(event.requests, 0))
        with self._deciding:
            if time.monotonic() >= self._wake_time:
                self._wake_time = inf
                events.append(Woke())
        self._ready.extend(self._handle(events))

    def _hand_over(self, work: Sequence[Work]) -> None:
        """Leave work to the listener, and wake it unless it is this thread."""
        self._ready.extend(work)
        if self._listener != get_ident():
            self._wake()

    def _handle_report(self, event: Event) -> None:
        """Handle an event reported by another thread (lookups aside, the loader); what results goes to the listener."""
        try:
            if work := self._handle((event,)):
                self._hand_over(work)
        except Exception as error:
            self._fail(error)

    def _run_and_follow(self, run: Run) -> None:
        """Perform a run and what results from it, one after another; leave all runs but the first to the listener."""
        mine: list[Work] = [run]
        while mine:
            found = self._perform(mine.pop(0))
            runs: list[Work] = [*mine, *[work for work in found if isinstance(work, Run)]]
            mine = [*[work for work in found if not isinstance(work, Run)], *runs[:1]]
            if runs[1:]:
                self._hand_over(runs[1:])

    def _perform(self, work: Work) -> list[Work]:
        """Perform a run or tensor actions and report it; return what results."""
        if isinstance(work, Run):
            return self._handle((self._run(work),))
        assert self._steps is not None, "an action of a query, but none is served"
        return self._handle(self._steps.perform_all(work))

    def _run(self, run: Run) -> StageDone | StageFailed:
        """Run a stage and return the event. If it raised for several requests, the scheduler lets them try again.

        `running` names the stage meanwhile, in case this process does not survive it, or it never ends.
        """
        model, stage, place = run.model, run.stage, WORKERS + run.worker
        seconds, recompiled = self._longest[model][stage], model in self._recompiled
        what = run.worker, model, stage, len(run.requests) if recompiled else 0
        if what not in self._ran:
            self._ran.add(what)
            seconds += self._reading[model] + (COMPILE_SECONDS if recompiled else 0.0)
        if self._row_by_row:
            seconds *= len(run.requests)
        self._running.begin(place, self._numbers[model], stage, seconds)
        event: StageDone | StageFailed
        try:
            event = self._workers[run.worker].run(run)
        except Exception as error:
            event = StageFailed(run.worker)
            if len(run.requests) == 1:
                self._failures.log(f"stage {stage} of {model}", error, f" for request {run.requests[0]}")
        self._running.rest(place)
        if self._tokens and stage == self._decoders.get(model) and isinstance(event, StageDone):
            self._send_token_counts(run, event)
        return event

    def _send_token_counts(self, run: Run, done: StageDone) -> None:
        """Send the frontend the number of tokens of each request that streams; its end implies the last one.

        The tokens lie in the request's slot, where the worker writes them. A request is run by one thread at a time.
        """
        messages = list[bytes]()
        for request in run.requests:
            tokens = self._tokens.get(request)
            if tokens is not None and request not in done.exited:
                self._tokens[request] = tokens + 1
                messages.append(pack_wrote(request, tokens + 1))
        if messages:
            with self._deciding:
                self._send_messages(messages)

    def _send_messages(self, messages: Sequence[bytes]) -> None:
        """Send messages to the frontend, if it is there."""
        try:
            self._send(b"".join(messages))
        except (BrokenPipeError, ConnectionResetError):
            logger.warning("the frontend has closed; %d messages are lost", len(messages))

    def _end(self, reply: Reply) -> bytes:
        """Forget a request, or all steps of a query; return the message that reports its end to the frontend."""
        request, nodes = reply.request, self._nodes.get(reply.model)
        for number in [request] if nodes is None else [step_request(request, node) for node in nodes]:
            self._owners.end(number)
        self._tokens.pop(request, None)
        return pack_ended(reply)

    def _handle(self, events: Iterable[Event]) -> list[Work]:
        """Let the scheduler decide and send its replies; return the tensor actions, then the runs, to be performed.

        If the timer is due earlier than before, the listener is woken.
        """
        tensor_actions: list[TensorAction] = []
        work: list[Work] = []
        replies: list[bytes] = []
        with self._deciding:
            now, before, first = time.monotonic(), self._wake_time, len(self._uncounted)
            for event in events:
                actions = self._scheduler.handle(event, now)
                self._uncounted.append((now, event, actions))
                for action in actions:
                    match action:
                        case Run():
                            work.append(action)
                        case Reply():
                            replies.append(self._end(action))
                        case WakeAt(wake_at):
                            self._wake_time = wake_at
                        case Map() | Branch():
                            tensor_actions.append(action)
                        case StepEnded():
                            self._owners.end(step_request(action.request, action.node))
                            self._ended_steps.append(pack_stepped(action))
                        case Load() | Evict():
                            assert self._loader is not None, "memory is limited and there is no loader"
                            self._loader.perform(action)
            if replies:
                self._send_messages((*self._ended_steps, *replies))
                self._ended_steps.clear()
            self._write_log(first)
            if replies or len(self._uncounted) >= MOST_UNCOUNTED:
                self._count()
            sooner = self._wake_time < before
        if sooner:
            self._hand_over(())
        return [tensor_actions, *work] if tensor_actions else work

    def _write_log(self, first: int) -> None:
        if self._log is not None:
            for happened in self._uncounted[first:]:
                self._log.write(*happened)

    def _count(self) -> None:
        """Add the events so far to the metrics and traces, if possible after replies were sent, when no request waits.

        Counting many events at once takes a fraction of counting each between two stages, with cold processor caches.
        """
        for now, event, actions in self._uncounted:
            self._metrics.observe(event, actions, now=now)
        self._traces.extend(self._tracer.observe_all(self._uncounted))
        self._uncounted.clear()


def step_request(request: int, node: int) -> int:
    """Return the request number of a step of a query: it owns the numbers that follow its own."""
    return request + 1 + node


def longest_seconds(served: ServedModel) -> list[float]:
    """Return how long each stage of a model may take before it is late: its largest batch, on busy cores."""
    spec, costs = served.spec, served.costs
    longest = prod([dim.most for dim in spec.dims])
    steps = [costs.step(stage, spec.max_batch, longest) for stage in range(spec.stages)]
    return [max(LATE_SECONDS, TIMES * seconds) for seconds in steps]
