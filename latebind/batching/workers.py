"""Workers as the scheduler has them: what each has started, what of that is set aside, and what runs now. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from latebind.batching.policy import ANY_SIZE, BatchPolicy, Models, WorkView
from latebind.batching.table import BatchTable, SubBatch
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import IllegalEvent


class WorkerState:
    """One worker: its batch table, and `aside` the sub-batches whose next stage is not in memory.

    A sub-batch whose stage raised is run again by halves: the halves not run yet are aside too, and in `halves`.
    """

    def __init__(self, number: int, view: WorkView, table: BatchTable) -> None:
        self.number = number
        self.table = table
        self.view = view
        self.running: SubBatch | None = None
        self.launched = 0, 0.0  # the rows of the current launch, and its time
        self.aside: list[SubBatch] = view.aside
        self.halves: list[SubBatch] = []
        self.refills: Counter[str] = Counter()  # by model, requests that joined while the worker had started others

    @property
    def started(self) -> Sequence[SubBatch]:
        """All started sub-batches, those aside too."""
        return [*self.table.entries, *self.aside] if self.aside else self.table.entries

    @property
    def rests(self) -> bool:
        """Whether it is idle though it could go on."""
        return self.running is None and bool(self.table.entries)

    def put_aside(self, batch: SubBatch, now: float) -> None:
        """Set a sub-batch aside until its next stage is in memory; the worker goes on with others."""
        self.table.take_out(batch, now)
        self.aside.append(batch)

    def resume(self, batch: SubBatch, now: float) -> None:
        """Put a sub-batch that was set aside back into the table."""
        self.aside.remove(batch)
        self.table.push(batch, now)

    def halve(self, batch: SubBatch) -> None:
        """Set half of a sub-batch that raised aside, to be run once the other half has."""
        members = tuple(batch.members)
        half = batch.split(members[(len(members) + 1) // 2 :])
        self.aside.append(half)
        self.halves.append(half)

    def next_half(self) -> SubBatch | None:
        """Return the next half to run, which is in the table now; None if there is none.

        It joins nobody before it has run: others at its stage are not to run with what may raise again.
        """
        while self.halves:
            half = self.halves.pop()
            if half.members:  # else all have left meanwhile
                self.aside.remove(half)
                self.table.entries.append(half)
                return half
        return None

    def late(self, now: float) -> Sequence[SubBatch]:
        """Return the resting sub-batches with a member whose deadline has passed."""
        if len(self.table.entries) < 2 and not self.aside:
            return ()
        return [entry for entry in self.started if entry.due < now and entry is not self.running]

    def drop_empty(self) -> None:
        """Drop sub-batches without members, except the one that runs, which goes on to its end."""
        for entry in list(self.table.entries):
            if not entry.members and entry is not self.running:
                self.table.entries.remove(entry)
        self.aside[:] = [entry for entry in self.aside if entry.members]


class Crew:
    """All workers. At most `at_once` of them run at a time."""

    def __init__(self, config: SchedulerConfig, policy: BatchPolicy, models: Models) -> None:
        views: list[WorkView] = []
        self.workers: list[WorkerState] = []
        for granularity in config.granularities or (ANY_SIZE,) * config.workers:
            table = policy.table()
            views.append(WorkView(models, table.entries, granularity, views))
            self.workers.append(WorkerState(len(self.workers), views[-1], table))
        self.at_once = min(config.at_once or config.workers, config.workers)
        self._estimates = {name: model.estimate for name, model in models.by_name.items()}
        self._largest_first = sorted(self.workers, key=lambda worker: -worker.view.granularity)

    @property
    def largest(self) -> int:
        """The largest batch that any worker takes."""
        return self._largest_first[0].view.granularity

    def started(self) -> Iterator[SubBatch]:
        """Yield the sub-batches that all workers have started."""
        for worker in self.workers:
            yield from worker.started

    def holder(self, request: int) -> tuple[WorkerState, SubBatch]:
        """Return the worker that has started a request, and the request's sub-batch; one must have."""
        return next((one, entry) for one in self.workers for entry in one.started if request in entry.members)

    def in_order(self) -> Sequence[WorkerState]:
        """Return the workers that have started something, then the others; among each, the largest batches first."""
        if len(self.workers) == 1:
            return self._largest_first
        return sorted(self._largest_first, key=lambda worker: not worker.table.entries)

    @property
    def rests(self) -> bool:
        """Whether any worker is idle though it could go on: as many run as may."""
        return len(self.workers) > 1 and any(worker.rests for worker in self.workers)

    def may_run(self) -> bool:
        """Return whether one more worker may run."""
        return len(self.workers) == 1 or self.running < self.at_once

    @property
    def running(self) -> int:
        """How many workers run."""
        return sum([worker.running is not None for worker in self.workers])

    def learn(self, worker: WorkerState, batch: SubBatch, now: float) -> None:
        """Learn from the time of a launch that has ended, of one step of a stage for the members of a batch."""
        size, launched_at = worker.launched
        inputs = batch.inputs if batch.spec.kinds else 1
        self._estimates[batch.spec.name].observe(now - launched_at, size, batch.stage, inputs)

    def busy(self, number: int) -> tuple[WorkerState, SubBatch]:
        """Return a worker and the sub-batch that it runs; raises `IllegalEvent` where it runs none."""
        worker = self.workers[number] if 0 <= number < len(self.workers) else None
        if worker is None or worker.running is None:
            raise IllegalEvent(f"worker {number} reports a stage but runs none")
        return worker, worker.running

    def wait(self, backlog: float) -> float:
        """Return the seconds until a request that arrives now may start, behind `backlog` seconds of waiting work.

        Started sub-batches are taken to run to the end of the network.
        """
        if self.running < self.at_once:
            return 0.0
        rests = [
            self._estimates[entry.spec.name].rest(len(entry.members), entry.stage, entry.step, entry.inputs)
            for entry in self.started()
            if entry.members
        ]
        return (backlog + sum(rests)) / self.at_once

    def tally(self, model: str) -> dict[str, int]:
        """Return how often sub-batches of a model merged, were preempted, and were joined by new requests."""
        return {
            "merges": sum([worker.table.merges[model] for worker in self.workers]),
            "preemptions": sum([worker.table.preemptions[model] for worker in self.workers]),
            "refills": sum([worker.refills[model] for worker in self.workers]),
        }

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        started = list(self.started())
        members = {i for entry in started for i in entry.members}
        assert sum([len(entry.members) for entry in started]) == len(members), "a request runs twice"
        assert self.running <= self.at_once, "too many run at once"
        for worker in self.workers:
            assert worker.running is None or worker.running in worker.table.entries, (
                "a worker runs what it has not started"
            )
            assert not (worker.rests and self.may_run()), "a worker has started something and is idle"
            assert all(entry.members or entry is worker.running for entry in worker.started), "an empty batch waits"
