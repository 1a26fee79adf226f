"""The batch table of a worker: the sub-batches that it has begun (LazyBatching, section IV-B).

A stack: the newest runs until it has caught up with the one below it, and both become one. `StageQueues` organises the
same work otherwise: whoever is at a stage waits there for others, and any stage may run next.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from math import inf

from latebind.batching.request import Request
from latebind.domain.model import ModelSpec, StageKind


class SubBatch:
    """Requests of one model that run together, before step `step` of `stage`; those `complete` wait for the others.

    With those stands the stage that has answered them.

    Steps of a decoder are each request's own. Those answered aside leave at once; where all have, the stage runs to its
    end for nobody.
    """

    __slots__ = ("_due", "_told", "complete", "members", "padded", "preempted", "ran", "rows", "spec", "stage", "step")

    def __init__(
        self, spec: ModelSpec, members: dict[int, Request], stage: int = 0, step: int = 0, *, padded: int = 0
    ) -> None:
        self.spec = spec
        self.members = members
        self.stage = stage
        self.step = step
        self.complete: dict[int, int] = {}
        self.preempted: float | None = None  # when another was let past
        self.rows = len(members)  # that a worker computes where it does not get rid of those who have left
        self.padded = padded  # rows that it computes whoever is in it
        self.ran = 0  # how many of its members ran together last
        self._told: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._due: tuple[int, float] = (0, inf)  # of how many members the first is due, and when

    @property
    def kind(self) -> StageKind:
        """How often the stage runs."""
        kinds = self.spec.kinds
        return kinds[self.stage] if kinds else StageKind.STATIC

    @property
    def inputs(self) -> int:
        """The steps of the longest input."""
        return max(request.inputs for request in self.members.values())

    def told(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the numbers of the members and their slots, made anew only when somebody has come or gone."""
        if len(self._told[0]) != len(self.members):
            self._told = tuple(self.members), tuple([request.slot for request in self.members.values()])
        return self._told

    @property
    def due(self) -> float:
        """When the first of its members is due."""
        if self._due[0] != len(self.members):
            self._due = len(self.members), min([r.deadline for r in self.members.values()], default=inf)
        return self._due[1]

    def advance(self) -> None:
        """Go past the step that has run; the longest input says when the encoder is through."""
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

    def know(self, answered: Sequence[int], stage: int) -> None:
        """Note whose answer is known, where they wait for the others; the first time counts."""
        for i in answered:
            if i in self.members:
                self.complete.setdefault(i, stage)

    def leave(self, request: int) -> Request:
        """Take out a member, which must be there, and return it."""
        self.complete.pop(request, None)
        return self.members.pop(request)

    def meets(self, other: "SubBatch") -> bool:
        """Tell whether both are about to run the same: a decoder shares its weights between all steps."""
        return (
            self.stage == other.stage
            and self.spec is other.spec
            and (self.step == other.step or self.kind is StageKind.DECODER)
        )

    def absorb(self, other: "SubBatch") -> None:
        """Take in the members of another that it meets."""
        self.members |= other.members
        self._told, self._due = ((), ()), (0, inf)
        self.complete |= other.complete
        self.rows += other.rows


class BatchTable:
    """A stack of sub-batches, the newest on top; it alone runs. None grows past `most` or what its model allows.

    `merges` and `preemptions` are, by model, how often two became one, and one was made to rest for newcomers.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self.entries: list[SubBatch] = []
        self.merges: Counter[str] = Counter()
        self.preemptions: Counter[str] = Counter()

    @property
    def top(self) -> SubBatch:
        """The newest; the table must not be empty."""
        return self.entries[-1]

    def push(self, batch: SubBatch, now: float) -> None:
        """Let a new one past those that are there."""
        if self.entries:
            self.top.preempted = now
            self.preemptions[self.top.spec.name] += 1
            for request in self.top.members.values():
                request.preempted += 1
        self.entries.append(batch)
        self.settle(batch, now)

    @property
    def going(self) -> SubBatch | None:
        """Who goes on where nobody waits to begin; None where there is nobody, or a choice."""
        return self.entries[-1] if self.entries else None

    def pick(self, place: int, requests: Sequence[int] = ()) -> SubBatch:
        """Return what runs next: the top, whichever place is named."""
        del place, requests
        return self.top

    def settle(self, moved: SubBatch, now: float) -> None:
        """Drop one that is empty and make one of the two on top while they are about to run the same."""
        del moved
        while self.entries and not self.top.members:
            self.entries.pop()
            self._resume(now)
        while len(self.entries) > 1 and self.top.meets(self.entries[-2]) and self._fit(self.top, self.entries[-2]):
            newer = self.entries.pop()
            self._resume(now)
            self._join(newer, self.top)

    def take_out(self, batch: SubBatch, now: float) -> None:
        """Take out one that cannot go on; whoever was let wait for it goes on."""
        last = batch is self.top
        self.entries.remove(batch)
        if last:
            self._resume(now)

    def _join(self, one: SubBatch, other: SubBatch) -> None:
        """Make one of two that are about to run the same."""
        other.absorb(one)
        self.merges[one.spec.name] += 1

    def _fit(self, one: SubBatch, other: SubBatch) -> bool:
        """Tell whether both together are no larger than a batch may be."""
        return len(one.members) + len(other.members) <= min(self._most, one.spec.max_batch)

    def _resume(self, now: float) -> None:
        if self.entries and self.top.preempted is not None:
            for request in self.top.members.values():
                request.delayed += now - self.top.preempted
            self.top.preempted = None


class StageQueues(BatchTable):
    """Sub-batches that wait for each other at their stages; any may run next, and each may be as large as a batch."""

    def push(self, batch: SubBatch, now: float) -> None:
        """Begin another."""
        self.entries.append(batch)
        self.settle(batch, now)

    def pick(self, place: int, requests: Sequence[int] = ()) -> SubBatch:
        """Return the one at `place` of the entries."""
        del requests
        return self.entries[place]

    def settle(self, moved: SubBatch, now: float) -> None:
        """Drop one that is empty; have one that has moved join those who wait where it has come to."""
        del now
        if not moved.members:
            self.entries.remove(moved)
            return
        for other in self.entries:
            if other is not moved and moved.meets(other) and self._fit(moved, other):
                self._join(moved, other)
                self.entries.remove(moved)
                return


class StagePools(BatchTable):
    """Whoever comes to a stage joins those who rest there, and any of them may go on from it together.

    The last entry is the newest, as in a stack; where all of it goes on each time, this is one.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        super().__init__(most)
        self._moved: SubBatch | None = None  # who has gone on, of whom nobody could leave

    @property
    def going(self) -> SubBatch | None:
        """Who goes on where nobody waits to begin: one alone, those at a decoder's step, or who was to go on before.

        To them nothing has come that would have others go on: behind a stage without a lookup all are still there, the
        answers to be hoped for a second have risen, and those of who rests have not changed.
        """
        moved, entries = self._moved, self.entries
        if moved is not None and len(moved.members) == moved.ran:
            return moved
        if len(entries) == 1 and (len(entries[0].members) == 1 or entries[0].kind is StageKind.DECODER):
            return entries[0]
        return None

    def pick(self, place: int, requests: Sequence[int] = ()) -> SubBatch:
        """Return the one at `place` of the entries, or these members of it as one of their own."""
        pool = self.entries[place]
        if not requests or len(requests) == len(pool.members):
            return pool
        chosen = SubBatch(pool.spec, {i: pool.members.pop(i) for i in requests}, pool.stage, pool.step)
        if pool.complete:
            chosen.complete = {i: pool.complete.pop(i) for i in requests if i in pool.complete}
        self.entries.append(chosen)
        return chosen

    def settle(self, moved: SubBatch, now: float) -> None:
        """Drop one that is empty; have one that has moved join those who rest where it has come to."""
        self._moved = None
        if not moved.members:
            self.entries.remove(moved)
            if self.entries:
                self._resume(now)
            return
        for other in self.entries:
            if other is not moved and moved.meets(other):
                self.entries.remove(moved)
                if other is self.top:
                    self._resume(now)
                self._join(moved, other)
                return
        if moved.stage - 1 not in moved.spec.lookups:
            self._moved = moved

    def take_out(self, batch: SubBatch, now: float) -> None:
        """Take out one that cannot go on."""
        self._moved = None
        super().take_out(batch, now)
