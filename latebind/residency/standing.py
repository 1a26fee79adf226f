"""What is known of models at a decision: who waits for them, what is on its way, and what of them may not go. Pure.

Events change it as they come. `settle` brings a model up to date before anything is decided of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from latebind.batching.lane import Lane
from latebind.batching.table import SubBatch
from latebind.batching.view import Models
from latebind.batching.worker import Crew
from latebind.residency.held import Held
from latebind.residency.memory import Memory


class Standing:
    """Shared by those who decide; only they and `Residency` change it.

    `waiting` are the models that somebody waits for, `touched` those that somebody came for, began, went on with or
    ended since they were settled. `target` is being loaded until it is complete; of those that `streams` not all fits.
    While it `drains` nobody begins, for one who has waited too long needs room.
    """

    def __init__(self, memory: Memory, lanes: Mapping[str, Lane], queues: Models, crew: Crew) -> None:
        self.memory = memory
        self.lanes = lanes
        self.waiting: dict[str, Held] = {}
        self.touched: set[str] = set()
        self.target: Held | None = None
        self.streams: set[str] = set()
        self.drains = False
        self._queues = queues
        self._crew = crew
        self._newest = -1  # the request that came last
        self._guards: dict[str, int] = {}  # of a loaded model, the last request that must have begun before it may go

    # What has happened ----------------------------------------------------------------------------------------------

    def arrived(self, name: str, requests: Sequence[int]) -> None:
        """Hear that requests have been accepted."""
        self._newest = max(self._newest, *requests)
        self.touched.add(name)

    def loaded(self, model: Held) -> None:
        """Hear that pieces have come."""
        self._guards[model.name] = self._newest
        if model.complete:
            self.target = None
            self.streams.discard(model.name)
        self.touched.add(model.name)

    def failed(self, model: Held) -> None:
        """Hear that pieces could not be loaded."""
        self.target = None
        self.streams.discard(model.name)
        self.touched.add(model.name)

    def aim_at(self, model: Held) -> bool:
        """Have a model be the one that is loaded; returns whether it was another one before."""
        begins = model is not self.target
        if begins and self.target is not None:
            self.touched.add(self.target.name)
        self.target = model
        return begins

    def settle(self, name: str) -> Held:
        """Bring up to date who waits for a model and what of it is needed; returns it."""
        model, lane = self.memory.models[name], self.lanes[name]
        model.waiting = len(lane)
        if model.waiting:
            self.waiting[name] = model
        else:
            self.waiting.pop(name, None)
        model.needed = min([batch.stage for batch in self.begun() if batch.spec is lane.spec], default=inf)
        self.keep(model, self.keeps(model))
        return model

    def keep(self, model: Held, kept: bool) -> None:
        """Have nothing of a model go, or what nobody needs who has begun."""
        model.kept = kept
        self.memory.settle(model)

    # What is so -----------------------------------------------------------------------------------------------------

    def keeps(self, model: Held) -> bool:
        """Tell whether nothing of a model may go: somebody waits for it who has not begun."""
        if model.name in self.streams and model.needed < inf:
            return False
        return model.waiting > 0 and (not self.drains or model is self.target or self.is_guarded(model))

    def is_guarded(self, model: Held) -> bool:
        """Tell whether somebody waits who already did when the model was loaded."""
        lane = self.lanes[model.name]
        return len(lane) > 0 and model.complete and lane.oldest.id <= self._guards.get(model.name, -1)

    @property
    def is_loading(self) -> bool:
        """Whether anything is on its way."""
        return self.target is not None and bool(self.target.loading)

    def begun(self) -> Iterable[SubBatch]:
        """Return those who have begun and not ended."""
        return self._crew.begun()

    def progresses(self) -> bool:
        """Tell whether something runs, or could."""
        runs = any(worker.running is not None or worker.table.entries for worker in self._crew.workers)
        return runs or self._queues.requests > 0

    def busy(self) -> bool:
        """Tell whether anybody has begun, or may."""
        return any(True for _ in self._crew.begun()) or self._queues.requests > 0

    def present(self, batch: SubBatch) -> bool:
        """Tell whether the stage that a sub-batch is before is in memory."""
        return batch.stage in self.memory.models[batch.spec.name].resident

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self.memory.check()
        for worker in self._crew.workers:
            for entry in worker.table.entries:
                assert self.present(entry), f"stage {entry.stage} of {entry.spec.name} is about to run and not there"
            assert worker.running or not any(map(self.present, worker.aside)), "who could go on is left aside"
        loading = any(model.loading for model in self.memory.models.values())
        goes_on = loading or self.progresses() or not any(lane.held for lane in self.lanes.values())
        assert goes_on, "who waits for a model is forgotten"
