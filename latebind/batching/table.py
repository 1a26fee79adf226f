"""The batch table of a worker: the sub-batches that it has started and not finished (LazyBatching, section IV-B)."""

from collections import Counter
from collections.abc import Sequence
from math import inf

from latebind.batching.queue import Request
from latebind.domain.model import ModelSpec, StageKind


class SubBatch:
    """Requests of one model that run together; they are before step `step` of `stage`.

    Each member counts its own decoder steps. Members that are answered by a lookup beside the worker leave at once; if
    all have, the stage still runs to its end.
    """

    __slots__ = (
        "_due",
        "_ids_and_slots",
        "members",
        "preempted",
        "ran",
        "spec",
        "stage",
        "step",
    )

    def __init__(self, spec: ModelSpec, members: dict[int, Request], stage: int = 0, step: int = 0) -> None:
        self.spec = spec
        self.members = members
        self.stage = stage
        self.step = step
        self.preempted: float | None = None  # when another sub-batch was let past this one
        self.ran = 0  # members in the last launch
        self._ids_and_slots: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._due: tuple[int, float] = (0, inf)  # the earliest deadline, and the number of members it was taken from

    @property
    def kind(self) -> StageKind:
        """Whether the stage runs once, for each step of the input or for each step of the answer."""
        kinds = self.spec.kinds
        return kinds[self.stage] if kinds else StageKind.STATIC

    @property
    def inputs(self) -> int:
        """The steps of the longest input."""
        return max(request.inputs for request in self.members.values())

    def ids_and_slots(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids of the members and their slots; cached while the number of members is the same."""
        if len(self._ids_and_slots[0]) != len(self.members):
            self._ids_and_slots = tuple(self.members), tuple([request.slot for request in self.members.values()])
        return self._ids_and_slots

    @property
    def due(self) -> float:
        """The earliest deadline of its members."""
        if self._due[0] != len(self.members):
            self._due = len(self.members), min([r.deadline for r in self.members.values()], default=inf)
        return self._due[1]

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
        """Return whether both run the same weights next; a decoder has the same weights at all steps."""
        return (
            self.stage == other.stage
            and self.spec is other.spec
            and (self.step == other.step or self.kind is StageKind.DECODER)
        )

    def absorb(self, other: "SubBatch") -> None:
        """Take over the members of another sub-batch that it can merge with."""
        self.members |= other.members
        self._ids_and_slots, self._due = ((), ()), (0, inf)


class BatchTable:
    """The sub-batches that a worker has started, the newest last, which is on top.

    Requests that reach a stage join those that rest there, and any number of them may go on together. Where every entry
    always goes on as a whole and the top goes first, as with `lazy+`, it is the stack of LazyBatching: the newest
    sub-batch runs until it has caught up with the one below it, and the two merge. `merges` and `preemptions` count, by
    model, how often two sub-batches merged and how often one was let past another.
    """

    def __init__(self) -> None:
        self.entries: list[SubBatch] = []
        self.merges: Counter[str] = Counter()
        self.preemptions: Counter[str] = Counter()
        self._moved: SubBatch | None = None  # the sub-batch that ran last, if no member could leave there

    @property
    def top(self) -> SubBatch:
        """The newest sub-batch; the table must not be empty."""
        return self.entries[-1]

    @property
    def going(self) -> SubBatch | None:
        """The sub-batch to run next if no request waits to start; None where there is a choice.

        It is the one that was chosen before, a request alone, or the only sub-batch if it is at a decoder's step. No
        other would be chosen now: behind a stage without a lookup no member has left, so the expected answers a second
        of the chosen one have risen, and those of the resting ones have not changed. A decision there was half of what
        a boundary costs.
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
            self.top.preempted = now
            self.preemptions[self.top.spec.name] += 1
            for request in self.top.members.values():
                request.preempted += 1
        self.entries.append(batch)
        self.settle(batch, now)

    def pick(self, place: int, requests: Sequence[int] = ()) -> SubBatch:
        """Return the entry at `place`, or a new sub-batch of these members of it."""
        pool = self.entries[place]
        if not requests or len(requests) == len(pool.members):
            return pool
        chosen = pool.split(requests)
        self.entries.append(chosen)
        return chosen

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
            self.entries.remove(moved)
            self._resume(now)
            return
        for other in self.entries:
            if other is not moved and moved.can_merge(other):
                self.entries.remove(moved)
                if other is self.top:
                    self._resume(now)
                other.absorb(moved)
                self.merges[moved.spec.name] += 1
                return
        if moved.stage - 1 not in moved.spec.lookups:
            self._moved = moved

    def take_out(self, batch: SubBatch, now: float) -> None:
        """Remove a sub-batch that cannot go on; the one below it resumes."""
        self._moved, last = None, batch is self.top
        self.entries.remove(batch)
        if last:
            self._resume(now)

    def _resume(self, now: float) -> None:
        if self.entries and self.top.preempted is not None:
            for request in self.top.members.values():
                request.delayed += now - self.top.preempted
            self.top.preempted = None


class Stack(BatchTable):
    """The table of policies for which the top always goes on, as a whole: nobody is asked while no request waits."""

    @property
    def going(self) -> SubBatch | None:
        """The newest sub-batch."""
        return self.entries[-1] if self.entries else None
