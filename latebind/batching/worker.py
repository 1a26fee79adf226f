"""One stream of execution as the scheduler has it: what it has begun, what of that rests aside, and what runs now."""

from collections.abc import Iterator, Sequence

from latebind.batching.table import BatchTable, SubBatch
from latebind.batching.view import WorkView


class Worker:
    """The batch table of a worker, and beside it those whose next stage is not in memory."""

    def __init__(self, view: WorkView, table: BatchTable) -> None:
        self.table = table
        self.view = view
        self.running: SubBatch | None = None
        self.launched = 0, 0.0  # how many are in what runs, and since when
        self.aside: list[SubBatch] = view.aside

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

    def drop_empty(self) -> None:
        """Forget those in which nobody is left; what runs goes on to its end for nobody."""
        for entry in list(self.table.entries):
            if not entry.members and entry is not self.running:
                self.table.entries.remove(entry)
        self.aside[:] = [entry for entry in self.aside if entry.members]


def begun(workers: Sequence[Worker]) -> Iterator[SubBatch]:
    """Yield what all workers have begun."""
    for worker in workers:
        yield from worker.begun
