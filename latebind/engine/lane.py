"""One model or query at the door: its number in messages, its slots, their owners, and the calls waiting for slots."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from latebind.batching.queue import LAST
from latebind.domain.errors import Expired, LatebindError, Refused
from latebind.domain.model import ModelSpec
from latebind.engine.query_steps import QuerySteps
from latebind.engine.slots import FREE, ModelSlots, Move, Pool, Rows

Claimed = tuple[tuple[int, ...], tuple[int, ...]]  # request numbers, and the slot of each


class WaitingClaim:
    """A call that waits for slots."""

    __slots__ = ("claimed", "rank", "wanted")

    def __init__(self, wanted: int, priority: int) -> None:
        self.wanted = wanted
        self.rank = priority or LAST
        self.claimed: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()


class Lane:
    """The slots of one model or query. Lanes share the iterator `numbers`, which numbers all requests of an engine.

    A request of a query also owns the numbers that follow its own, one for each of the query's `steps`.
    """

    def __init__(
        self, number: int, spec: ModelSpec, rows: ModelSlots, numbers: Iterator[int], steps: QuerySteps | None = None
    ) -> None:
        self.number = number
        self.spec = spec
        self.steps = steps
        self.outputs = tuple(zip(spec.outputs, rows.outputs, strict=True))
        self.reads_sequences = any(tensor.padding is not None for tensor in spec.inputs)
        self.writes_sequences = any(tensor.padding is not None for tensor in spec.outputs)
        self.versions = rows.versions
        self.pool = Pool(len(rows.inputs[0]))
        self._numbers = numbers
        self.is_query = bool(spec.steps)
        self._stride = 1 + len(spec.steps)
        self._waiting: deque[WaitingClaim] = deque()
        self._inputs = {
            tensor.name: [array[slot, ...] for slot in range(len(array))]
            for tensor, array in zip(spec.inputs, rows.inputs, strict=True)
        }
        self._alone = [self._rows_of((slot,)) for slot in range(len(self.pool))]  # most calls have one row
        self._raw: list[Mapping[str, list[memoryview]] | None] = [None] * len(self.pool)
        self._answers: list[dict[str, Rows] | None] = [None] * len(self.pool)

    @property
    def busy(self) -> bool:
        """Whether any call holds slots or waits for some."""
        return self.pool.free < len(self.pool) or bool(self._waiting)

    def inputs(self, slots: tuple[int, ...]) -> Mapping[str, list[Rows]]:
        """Return the rows of these slots by input, each writable and of the tensor's shape."""
        return self._alone[slots[0]] if len(slots) == 1 else self._rows_of(slots)

    def raw(self, slots: tuple[int, ...]) -> Mapping[str, list[memoryview]]:
        """Return the same rows as bytes.

        Views of single slots are cached: making them takes longer than filling them.
        """
        if len(slots) > 1:
            return _as_bytes(self._rows_of(slots))
        raw = self._raw[slots[0]]
        if raw is None:
            raw = self._raw[slots[0]] = _as_bytes(self._alone[slots[0]])
        return raw

    def answers(self, slots: tuple[int, ...]) -> dict[str, Rows]:
        """Return the outputs of these slots, each `(N, *shape)`: a view if the slots are contiguous, else a copy."""
        if len(slots) > 1:
            return self._answers_of(slots)
        found = self._answers[slots[0]]
        if found is None:
            found = self._answers[slots[0]] = self._answers_of(slots)
        return found

    def caches(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Return the version of the learned caches that each of these slots was answered by; empty without any."""
        return tuple([int(self.versions[slot]) for slot in slots]) if len(self.versions) else ()

    def claim_now(self, wanted: int) -> Claimed | None:
        """Return `wanted` new requests with a slot for each, or None if calls are waiting or too few slots are free."""
        return None if self._waiting else self._try_claim(wanted)

    async def claim(self, wanted: int, *, deadline: float, priority: int = 0) -> Claimed:
        """Return `wanted` new requests with a slot for each, waiting in line if too few slots are free.

        The line is ordered by priority (1 first, 0 last), then by arrival, and holds at most as many calls as there are
        slots. Raises `Expired` at the `deadline` (`time.monotonic()` seconds), and `Refused` at once if the line is
        full or `wanted` exceeds the number of slots.
        """
        if (claimed := self.claim_now(wanted)) is not None:
            return claimed
        if wanted > len(self.pool) or len(self._waiting) >= len(self.pool):
            raise self._refused(wanted)
        waiting = WaitingClaim(wanted, priority)
        self._waiting.insert(self._insertion_index(waiting.rank), waiting)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await waiting.claimed
        except TimeoutError:
            self._withdraw(waiting)
            raise self._expired(wanted) from None
        except asyncio.CancelledError:
            self._withdraw(waiting)
            raise
        finally:
            del waiting  # its exception refers to this frame: the cycle would keep the slots mapped

    def move(self, slot: int, request: int, move: Move) -> None:
        """Record a move of a request; if that frees its slot, waiting calls are served."""
        if self.pool.move(slot, request, move) is FREE and self._waiting:
            self._grant_waiting()

    def fail_waiting(self, error: LatebindError) -> None:
        """Fail all waiting calls with this error."""
        for waiting in self._waiting:
            if not waiting.claimed.done():
                waiting.claimed.set_exception(error)
        self._waiting.clear()

    def _insertion_index(self, rank: int) -> int:
        """Return the index behind all waiting calls that go before a newcomer of this rank."""
        if rank == LAST:
            return len(self._waiting)
        return sum([waiting.rank <= rank for waiting in self._waiting])

    def _rows_of(self, slots: tuple[int, ...]) -> dict[str, list[Rows]]:
        return {name: [rows[slot] for slot in slots] for name, rows in self._inputs.items()}

    def _answers_of(self, slots: tuple[int, ...]) -> dict[str, Rows]:
        first, last = slots[0], slots[-1]
        if last - first + 1 == len(slots):
            return {spec.name: rows[first : last + 1] for spec, rows in self.outputs}
        return {spec.name: rows[list(slots)] for spec, rows in self.outputs}

    def _try_claim(self, wanted: int) -> Claimed | None:
        if wanted > self.pool.free:
            return None
        if wanted == 1 and self._stride == 1:  # most calls
            requests: tuple[int, ...] = (next(self._numbers),)
        else:
            requests = tuple(islice(self._numbers, wanted * self._stride))[:: self._stride]
        slots = self.pool.claim(requests)
        assert slots is not None
        return requests, slots

    def _grant_waiting(self) -> None:
        """Give slots to waiting calls in order, until there are too few for the first of them."""
        while self._waiting:
            waiting = self._waiting[0]
            if not waiting.claimed.done():
                claimed = self._try_claim(waiting.wanted)
                if claimed is None:
                    return
                waiting.claimed.set_result(claimed)
            self._waiting.popleft()

    def _withdraw(self, waiting: WaitingClaim) -> None:
        """Remove a waiting call; slots that it was given in the meantime go to the next."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        elif waiting.claimed.done() and not waiting.claimed.cancelled() and waiting.claimed.exception() is None:
            for request, slot in zip(*waiting.claimed.result(), strict=True):
                self.pool.move(slot, request, Move.RELEASE)
        self._grant_waiting()

    def _refused(self, wanted: int) -> Refused:
        return Refused(f"{self._no_room(wanted)}: try again later")

    def _expired(self, wanted: int) -> Expired:
        return Expired(f"{self._no_room(wanted)}, and had none by the deadline: allow more time (`timeout`)")

    def _no_room(self, wanted: int) -> str:
        free = f"{self.pool.free} of {len(self.pool)} places are free"
        return f"{self.spec.name} has no room for {wanted} more rows ({free})"


def _as_bytes(rows: Mapping[str, list[Rows]]) -> dict[str, list[memoryview]]:
    return {name: [row.reshape(-1).view(np.uint8).data for row in each] for name, each in rows.items()}
