"""Workers as the scheduler sees them: what each has started, in its batch table (LazyBatching, section IV-B). Pure."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf

from mypy_extensions import mypyc_attr

from latebind.batching.depth import NO_LEVEL
from latebind.batching.requests import Groups, Lane, Models, Request, Turn
from latebind.domain.costs import batch_length
from latebind.domain.model import ModelSpec, StageKind

ANY_SIZE = sys.maxsize  # the granularity of a worker whose batches only the policy and the model limit


class SubBatch:
    """Requests of one model that run together; they are before step `step` of `stage`.

    Each member counts its own decoder steps. Members that are answered by a lookup beside the worker leave at once; if
    all have, the stage still runs to its end.
    """

    def __init__(self, spec: ModelSpec, members: dict[int, Request], stage: int = 0, step: int = 0) -> None:
        self.spec = spec
        self.members = members
        self.stage = stage
        self.step = step
        self.preempted: float | None = None  # when another sub-batch was let past this one
        self.ran = 0  # members in the last launch
        self._rows: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = ((), (), ())
        self._due: tuple[int, float] = (0, inf)  # the earliest deadline, and the number of members it was taken from
        self._kept: tuple[int, int, float] = (0, 0, inf)  # with the number of members
        self._groups: tuple[int, Groups, list[Turn]] | None = None  # likewise
        self._longest: tuple[int, int] = (0, 1)  # the steps of the longest input, likewise
        self._length: tuple[int, int] = (0, 1)  # see `length`, likewise

    @property
    def kind(self) -> StageKind:
        """Whether the stage runs once, for each step of the input or for each step of the answer."""
        kinds = self.spec.kinds
        return kinds[self.stage] if kinds else StageKind.STATIC

    @property
    def done(self) -> int:
        """The fewest steps of the stage that any member has completed."""
        if not self.spec.kinds:
            return self.step
        return min([request.steps for request in self.members.values()]) or self.step

    @property
    def inputs(self) -> int:
        """The steps, or the length, of the longest input."""
        if self._longest[0] != len(self.members):
            self._longest = len(self.members), max([request.inputs for request in self.members.values()])
        return self._longest[1]

    @property
    def length(self) -> int:
        """The length that the time of its runs depends on (`batch_length`), or the steps of the longest input."""
        if not self.spec.packs:
            return self.inputs
        if self._length[0] != len(self.members):
            lengths = [request.inputs for request in self.members.values()]
            self._length = len(self.members), batch_length(lengths, True)
        return self._length[1]

    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return ids, slots and levels of the members; cached while their number is the same.

        There are no levels if the model has no operating curve.
        """
        if len(self._rows[0]) != len(self.members):
            members = self.members.values()
            levels = [request.level for request in members if request.level != NO_LEVEL]
            self._rows = tuple(self.members), tuple([request.slot for request in members]), tuple(levels)
        return self._rows

    @property
    def due(self) -> float:
        """The earliest deadline of its members."""
        if self._due[0] != len(self.members):
            self._due = len(self.members), min([r.deadline for r in self.members.values()], default=inf)
        return self._due[1]

    def kept(self) -> tuple[int, float]:
        """Return how many members may not be dropped, and the earliest deadline of these; cached as above."""
        if self._kept[0] != len(self.members):
            due = [request.deadline for request in self.members.values() if not request.droppable]
            self._kept = len(self.members), len(due), min(due, default=inf)
        return self._kept[1:]

    def groups(self) -> tuple[Groups, list[Turn]]:
        """Return its members in groups of about one length, and the turns of all; cached as above."""
        found = self._groups
        if found is None or found[0] != len(self.members):
            members = self.members.values()
            turns = sorted([request.turn for request in members])
            found = self._groups = len(self.members), Groups(self.spec, members), turns
        return found[1:]

    def advance(self) -> None:
        """Move on from the step that has run. An encoder stage ends with the longest input."""
        if self.spec.kinds:
            kind = self.kind
            if kind is StageKind.DECODER:
                for request in self.members.values():
                    request.steps += 1
                return
            if kind is StageKind.ENCODER and self.step + 1 < self.inputs:
                self.step += 1
                return
        self.stage += 1
        self.step = 0

    def split(self, requests: Sequence[int]) -> "SubBatch":
        """Return these members, which leave this sub-batch, as one of their own."""
        return SubBatch(self.spec, {i: self.members.pop(i) for i in requests}, self.stage, self.step)

    def can_merge(self, other: "SubBatch") -> bool:
        """Return whether both run the same weights next, and their rows may share a batch.

        A decoder has the same weights at all steps.
        """
        if self.stage != other.stage or self.spec is not other.spec:
            return False
        if not self.takes(next(iter(other.members.values()))):
            return False
        return self.step == other.step or self.kind is StageKind.DECODER

    def takes(self, request: Request) -> bool:
        """Return whether a request of its model may run in one batch with it."""
        return not self.spec.one_size or next(iter(self.members.values())).sizes == request.sizes

    def absorb(self, other: "SubBatch") -> None:
        """Take over the members of another sub-batch that it can merge with."""
        self.members |= other.members
        self._rows, self._due, self._groups = ((), (), ()), (0, inf), None
        self._kept = 0, 0, inf
        self._longest = self._length = 0, 1


def joined_length(batch: SubBatch, rows: int, length: int) -> int:
    """Return the length of a sub-batch once `rows` rows join, themselves a batch of this length."""
    if not batch.spec.packs:
        return max(batch.length, length)
    members = len(batch.members)
    return -(-(members * batch.length + rows * length) // (members + rows))


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchTable:
    """The sub-batches that a worker has started, the newest last, which is on top.

    Requests that reach a stage join those that rest there, and any number of them may go on together. Where every entry
    always goes on as a whole and the top goes first, as with `lazy+`, it is the stack of LazyBatching: the newest
    sub-batch runs until it has caught up with the one below it, and the two merge. `merges` and `preemptions` count, by
    model, how often two sub-batches merged and how often one was let past another.
    """

    def __init__(self, entries: Iterable[SubBatch] = ()) -> None:
        self.entries = [*entries]
        self.merges: Counter[str] = Counter()
        self.preemptions: Counter[str] = Counter()
        self.models: Models | None = None  # set by its worker
        self._moved: SubBatch | None = None  # the sub-batch that ran last, if no member could leave there

    @property
    def only_choice(self) -> SubBatch | None:
        """The sub-batch to run next if no request waits to start; None if there is a choice.

        It is the one that was chosen before, a request alone, or the only sub-batch if it is at a decoder's step. No
        other would be chosen now: behind a stage without a lookup no member has left, so its expected answers a second
        have risen, those of the resting ones not. A decision there was half of what a boundary costs.
        """
        moved, entries = self._moved, self.entries
        if moved is not None and len(moved.members) == moved.ran:
            return moved
        if len(entries) == 1 and (len(entries[0].members) == 1 or entries[0].kind is StageKind.DECODER):
            return entries[0]
        return None

    def push(self, batch: SubBatch, now: float) -> None:
        """Put a new sub-batch ahead of those in the table."""
        if self.entries:
            top = self.entries[-1]
            top.preempted = now
            self.preemptions[top.spec.name] += 1
            for request in top.members.values():
                request.preempted += 1
        self.entries.append(batch)
        self.settle(batch, now)

    def pick(self, place: int, requests: Sequence[int] = ()) -> SubBatch:
        """Return the entry at `place`, or a new sub-batch of these members of it."""
        pool = self.entries[place]
        return self.part(pool, requests) if requests and len(requests) < len(pool.members) else pool

    def part(self, batch: SubBatch, requests: Sequence[int]) -> SubBatch:
        """Return a new sub-batch, on top, of these members of a sub-batch."""
        self.entries.append(batch.split(requests))
        return self.entries[-1]

    def leaving(self, batch: SubBatch, answered: Sequence[int], stage: int) -> Sequence[tuple[int, int]]:
        """Return the members that leave now, each with the stage that answered it: all that are `answered`.

        A baseline whose members wait for each other overrides it.
        """
        del batch
        return [(request, stage) for request in answered]

    def settle(self, moved: SubBatch, now: float) -> None:
        """Drop `moved` if it is empty; else let it join the members that rest at the stage it has reached."""
        self._moved = None
        if not moved.members:
            self.take_out(moved, now)
            return
        for other in self.entries:
            if other is not moved and moved.can_merge(other) and self.merges_with(moved, other):
                self.take_out(moved, now)
                other.absorb(moved)
                self.merges[moved.spec.name] += 1
                return
        if moved.stage - 1 not in moved.spec.lookups:
            self._moved = moved

    def merges_with(self, moved: SubBatch, other: SubBatch) -> bool:
        """Return whether two that could merge do.

        If requests leave early they do, because they need not go on together; else if that costs less time.
        """
        return self.models is None or self.models.exit or self.merging_pays(moved, other)

    def merging_pays(self, moved: SubBatch, other: SubBatch) -> bool:
        """Return whether less time is lost than if `other` goes on behind the one that has moved, each on its own."""
        lane = None if self.models is None else self.models.by_name[moved.spec.name]
        if lane is None or not lane.estimate.by_length:
            return True

        def rest(rows: int, length: int) -> float:
            return lane.estimate.rest(rows, moved.stage, 0, length)

        first, second = len(moved.members), len(other.members)
        one, another = rest(first, moved.length), rest(second, other.length)
        both = rest(first + second, joined_length(moved, second, other.length))
        return both * (first + second) < one * (first + second) + another * second

    def take_out(self, batch: SubBatch, now: float) -> None:
        """Remove a sub-batch; the one that is on top then resumes."""
        self._moved = None
        self.entries.remove(batch)
        top = self.entries[-1] if self.entries else None
        if top is not None and top.preempted is not None:
            for request in top.members.values():
                request.delayed += now - top.preempted
            top.preempted = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Stack(BatchTable):
    """The table of policies for which the top always goes on, as a whole: none is asked while no request waits."""

    @property
    def only_choice(self) -> SubBatch | None:
        """The newest sub-batch."""
        return self.entries[-1] if self.entries else None

    def merges_with(self, moved: SubBatch, other: SubBatch) -> bool:
        """Return whether two that could merge do: they go on together to the end."""
        return self.merging_pays(moved, other)


class Worker:
    """One worker: what it may run next, waiting requests by model and its started sub-batches. Policies only read.

    Its batches are no larger than its `granularity` (Ebird, section VI). `workers` are all of them. The sub-batches
    that are `aside` cannot go on, because their next stage is not in memory. One whose stage raised is run again by
    halves: the halves not run yet are aside too, and in `halves`.
    """

    def __init__(
        self,
        models: Models,
        table: BatchTable,
        *,
        number: int = 0,
        granularity: int = ANY_SIZE,
        workers: Sequence["Worker"] = (),
    ) -> None:
        self.models = models
        self.table = table
        table.models = models
        self.entries: Sequence[SubBatch] = table.entries  # the newest last
        self.number = number
        self.granularity = granularity
        self.workers = workers
        self.aside: list[SubBatch] = []
        self.halves: list[SubBatch] = []
        self.running: SubBatch | None = None
        self.launched = 0, 0.0  # the rows of the current launch, and its time
        self.refills: Counter[str] = Counter()  # by model, requests that joined while the worker had started others

    @property
    def resting(self) -> int:
        """The number of requests that the worker has started, without those aside."""
        return sum([len(entry.members) for entry in self.entries])

    def started(self, model: Lane) -> int:
        """Return how many requests of a model the worker has started, which will be one batch, within its limit."""
        return sum([len(entry.members) for entry in self.entries if entry.spec is model.spec])

    def model_of(self, batch: SubBatch) -> Lane:
        """Return the model of a sub-batch."""
        return self.models.by_name[batch.spec.name]

    @property
    def begun(self) -> Sequence[SubBatch]:
        """All started sub-batches, those aside too."""
        return [*self.table.entries, *self.aside] if self.aside else self.table.entries

    @property
    def rests(self) -> bool:
        """Whether it is idle although it could go on."""
        return self.running is None and bool(self.table.entries)

    def halve(self, batch: SubBatch) -> None:
        """Set half of a sub-batch that raised aside, to run after the other half."""
        members = tuple(batch.members)
        half = batch.split(members[(len(members) + 1) // 2 :])
        self.aside.append(half)
        self.halves.append(half)

    def next_half(self) -> SubBatch | None:
        """Return the next half to run, which is in the table now; None if there is none.

        It joins no others before it has run, because it may raise again.
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
        return [entry for entry in self.begun if entry.due < now and entry is not self.running]

    def drop_empty(self) -> None:
        """Drop sub-batches without members, except the one that runs, which goes on to its end."""
        for entry in list(self.table.entries):
            if not entry.members and entry is not self.running:
                self.table.entries.remove(entry)
        self.aside[:] = [entry for entry in self.aside if entry.members]
