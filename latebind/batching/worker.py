"""Streams of execution as the scheduler has them: what each has begun, what of that rests aside, and what runs now."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from latebind.batching.lane import Lane
from latebind.batching.table import BatchTable, SubBatch
from latebind.batching.view import ANY_SIZE, BatchPolicy, Models, WorkView
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import IllegalEvent


class Worker:
    """The batch table of a worker, and beside it those whose next stage is not in memory."""

    def __init__(self, number: int, view: WorkView, table: BatchTable) -> None:
        self.number = number
        self.table = table
        self.view = view
        self.running: SubBatch | None = None
        self.launched = 0, 0.0  # how many are in what runs, and since when
        self.alone = False  # whether it is one request, and nobody else was there when it was launched
        self.wide = False  # whether what runs has the cores of all workers
        self.aside: list[SubBatch] = view.aside
        self.refills: Counter[str] = Counter()  # by model, requests that it began while it had begun others

    @property
    def begun(self) -> Sequence[SubBatch]:
        """All sub-batches, those aside too."""
        return [*self.table.entries, *self.aside] if self.aside else self.table.entries

    @property
    def rests(self) -> bool:
        """Whether it does nothing, though it could go on."""
        return self.running is None and bool(self.table.entries)

    def put_aside(self, batch: SubBatch, now: float) -> None:
        """Have a sub-batch rest until its next stage is in memory; the worker goes on with others."""
        self.table.take_out(batch, now)
        self.aside.append(batch)

    def take_up(self, batch: SubBatch, now: float) -> None:
        """Have a sub-batch go on."""
        self.aside.remove(batch)
        self.table.push(batch, now)

    def late(self, now: float) -> Sequence[SubBatch]:
        """Return the sub-batches that rest while another runs, and in which the deadline of somebody has passed."""
        if len(self.table.entries) < 2 and not self.aside:
            return ()
        return [entry for entry in self.begun if entry.due < now and entry is not self.running]

    def drop_empty(self) -> None:
        """Forget those in which nobody is left; what runs goes on to its end for nobody."""
        for entry in list(self.table.entries):
            if not entry.members and entry is not self.running:
                self.table.entries.remove(entry)
        self.aside[:] = [entry for entry in self.aside if entry.members]


class Crew:
    """All workers. At most `at_once` of them run at a time."""

    def __init__(self, config: SchedulerConfig, policy: BatchPolicy, models: Models) -> None:
        views: list[WorkView] = []
        self.workers: list[Worker] = []
        for granularity in config.granularities or (ANY_SIZE,) * config.workers:
            table = policy.table(granularity)
            views.append(WorkView(models, table.entries, granularity, views))
            self.workers.append(Worker(len(self.workers), views[-1], table))
        self.at_once = min(config.at_once or config.workers, config.workers)
        self._models = models
        self._estimates = {model.name: model.estimate for model in models}
        self._widens = policy.widens and self.at_once > 1
        self._largest_first = sorted(self.workers, key=lambda worker: -worker.view.granularity)

    @property
    def largest(self) -> int:
        """The largest batch that any worker takes."""
        return self._largest_first[0].view.granularity

    def begun(self) -> Iterator[SubBatch]:
        """Yield what all workers have begun."""
        for worker in self.workers:
            yield from worker.begun

    def holder(self, request: int) -> tuple[Worker, SubBatch]:
        """Return the worker that has begun a request, and the sub-batch that it is in; somebody must have."""
        return next((one, entry) for one in self.workers for entry in one.begun if request in entry.members)

    def in_order(self) -> Sequence[Worker]:
        """Return the workers that have begun something, then the others, those with the largest batches first."""
        if len(self.workers) == 1:
            return self._largest_first
        return sorted(self._largest_first, key=lambda worker: not worker.table.entries)

    def may_run(self) -> bool:
        """Tell whether one more may run."""
        return len(self.workers) == 1 or self.running < self.at_once

    @property
    def running(self) -> int:
        """How many run; one that has all cores counts for as many as could."""
        return sum([self.at_once if worker.wide else 1 for worker in self.workers if worker.running is not None])

    def begin(self, worker: Worker, rows: int, now: float) -> bool:
        """Note that a worker begins to run so many rows; tell whether it has all cores for them.

        Only one request may, where nobody waits and nobody else has begun anything.
        """
        worker.launched = rows, now
        worker.alone = self._widens and rows == 1 and not self._models.requests and self._only(worker)
        worker.wide = worker.alone and self._pays(worker, now)
        return worker.wide

    def _only(self, worker: Worker) -> bool:
        """Tell whether nobody has begun anything besides what a worker runs."""
        return worker.running is not None and sum([len(one.begun) for one in self.workers]) == 1

    def _pays(self, worker: Worker, now: float) -> bool:
        batch = worker.running
        assert batch is not None, "nothing runs"
        inputs = batch.inputs if batch.spec.kinds else 1
        coming = sum([model.queue.rate(now) for model in self._models])
        return self._estimates[batch.spec.name].widens(batch.stage, inputs, coming)

    def learn(self, worker: Worker, batch: SubBatch, now: float) -> None:
        """Hear that a worker has run a stage for all who are in a batch."""
        size, begun = worker.launched
        inputs = batch.inputs if batch.spec.kinds else 1
        estimate = self._estimates[batch.spec.name]
        estimate.observe(now - begun, size, batch.stage, inputs, wide=worker.wide)
        if worker.alone and (worker.wide or self._only(worker)):
            estimate.observe_alone(now - begun, batch.stage, inputs, wide=worker.wide)

    def busy(self, number: int) -> tuple[Worker, SubBatch]:
        """Return a worker that runs, and what; raises `IllegalEvent` where it does not."""
        worker = self.workers[number] if 0 <= number < len(self.workers) else None
        if worker is None or worker.running is None:
            raise IllegalEvent(f"worker {number} reports a stage but runs none")
        return worker, worker.running

    def wait(self, lanes: Mapping[str, Lane], backlog: float) -> float:
        """Return the seconds until somebody who comes now may begin, behind `backlog` seconds of those who wait.

        What has begun is taken to go through to its end.
        """
        if self.running < self.at_once:
            return 0.0
        begun = [
            lanes[entry.spec.name].estimate.rest(len(entry.members), entry.stage, entry.step, entry.inputs)
            for entry in self.begun()
            if entry.members
        ]
        return (backlog + sum(begun)) / self.at_once

    def tally(self, model: str) -> dict[str, int]:
        """Return how often sub-batches of a model became one or were made to rest, and newcomers joined at work."""
        return {
            "merges": sum([worker.table.merges[model] for worker in self.workers]),
            "preemptions": sum([worker.table.preemptions[model] for worker in self.workers]),
            "refills": sum([worker.refills[model] for worker in self.workers]),
        }

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        begun = list(self.begun())
        members = {i for entry in begun for i in entry.members}
        assert sum([len(entry.members) for entry in begun]) == len(members), "a request runs twice"
        assert all(entry.complete.keys() <= entry.members.keys() for entry in begun), "who has left is held back"
        assert self.running <= self.at_once, "too many run at once"
        for worker in self.workers:
            assert worker.running is None or worker.running in worker.table.entries, (
                "a worker runs what it has not begun"
            )
            assert not worker.rests, "a worker has begun something and rests"
            assert all(entry.members or entry is worker.running for entry in worker.begun), "an empty batch waits"
