"""One model or query at the door: its number in messages, its slots, who has them and who waits for some."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from latebind.batching.queue import LAST
from latebind.domain.errors import LatebindError, Refused
from latebind.domain.model import ModelSpec
from latebind.engine.pool import FREE, Pool, Step
from latebind.engine.query_steps import QuerySteps
from latebind.engine.slots import ModelSlots, Rows

Places = tuple[tuple[int, ...], tuple[int, ...]]  # requests and their slots


class Turn:
    """A call that waits for slots."""

    __slots__ = ("places", "rank", "wanted")

    def __init__(self, wanted: int, priority: int) -> None:
        self.wanted = wanted
        self.rank = priority or LAST
        self.places: asyncio.Future[Places] = asyncio.get_running_loop().create_future()


class Lane:
    """The slots of one model or query. `numbers` gives each request its own; other lanes draw from the same.

    A request of a query owns as many more, behind its own, as the query has `steps`.
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
        self.pool = Pool(len(rows.inputs[0]))
        self._numbers = numbers
        self.is_query = bool(spec.steps)
        self._stride = 1 + len(spec.steps)
        self._waiting: deque[Turn] = deque()
        self._inputs = {
            tensor.name: [array[slot, ...] for slot in range(len(array))]
            for tensor, array in zip(spec.inputs, rows.inputs, strict=True)
        }
        self._alone = [self._rows_of((slot,)) for slot in range(len(self.pool))]  # most calls have one row
        self._raw: list[Mapping[str, list[memoryview]] | None] = [None] * len(self.pool)
        self._answers: list[dict[str, Rows] | None] = [None] * len(self.pool)

    @property
    def busy(self) -> bool:
        """Whether anybody has slots or waits for some."""
        return self.pool.free < len(self.pool) or bool(self._waiting)

    def inputs(self, slots: tuple[int, ...]) -> Mapping[str, list[Rows]]:
        """Return the rows of these slots by input, each writable and of the tensor's shape."""
        return self._alone[slots[0]] if len(slots) == 1 else self._rows_of(slots)

    def raw(self, slots: tuple[int, ...]) -> Mapping[str, list[memoryview]]:
        """Return the same as bytes. Views of single slots are kept, for making them takes longer than filling them."""
        if len(slots) > 1:
            return _as_bytes(self._rows_of(slots))
        raw = self._raw[slots[0]]
        if raw is None:
            raw = self._raw[slots[0]] = _as_bytes(self._alone[slots[0]])
        return raw

    def answers(self, slots: tuple[int, ...]) -> dict[str, Rows]:
        """Return what lies in the outputs of these slots `(N, *shape)`, a view where they follow each other."""
        if len(slots) > 1:
            return self._answers_of(slots)
        found = self._answers[slots[0]]
        if found is None:
            found = self._answers[slots[0]] = self._answers_of(slots)
        return found

    def claim_now(self, wanted: int) -> Places | None:
        """Return `wanted` requests, new ones, and a slot for each; None where others wait or too few are free."""
        return None if self._waiting else self._taken(wanted)

    async def claim(self, wanted: int, *, deadline: float, priority: int = 0) -> Places:
        """Return `wanted` requests, new ones, and a slot for each; waits behind those who came before.

        Of those who wait, `priority` 1 goes first and 0 last.
        As many calls may wait as there are slots. Raises `Refused` at the `deadline` (`time.monotonic()` seconds), and
        at once where too many wait or there will never be so many slots.
        """
        if (places := self.claim_now(wanted)) is not None:
            return places
        if wanted > len(self.pool) or len(self._waiting) >= len(self.pool):
            raise self._refused(wanted)
        turn = Turn(wanted, priority)
        self._waiting.insert(self._place(turn.rank), turn)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await turn.places
        except TimeoutError:
            self._give_up(turn)
            raise self._refused(wanted) from None
        except asyncio.CancelledError:
            self._give_up(turn)
            raise
        finally:
            del turn  # an error in it refers to this frame: in a cycle they would keep the slots

    def move(self, slot: int, request: int, step: Step) -> None:
        """Note what has become of a request; a slot that is free by that goes to whoever waits."""
        if self.pool.move(slot, request, step) is FREE and self._waiting:
            self._serve()

    def lose(self, error: LatebindError) -> None:
        """Nobody's turn will come."""
        for turn in self._waiting:
            if not turn.places.done():
                turn.places.set_exception(error)
        self._waiting.clear()

    def _place(self, rank: int) -> int:
        """Return the place behind all who wait and go before a newcomer of this rank."""
        if rank == LAST:
            return len(self._waiting)
        return sum([turn.rank <= rank for turn in self._waiting])

    def _rows_of(self, slots: tuple[int, ...]) -> dict[str, list[Rows]]:
        return {name: [rows[slot] for slot in slots] for name, rows in self._inputs.items()}

    def _answers_of(self, slots: tuple[int, ...]) -> dict[str, Rows]:
        first, last = slots[0], slots[-1]
        if last - first + 1 == len(slots):
            return {spec.name: rows[first : last + 1] for spec, rows in self.outputs}
        return {spec.name: rows[list(slots)] for spec, rows in self.outputs}

    def _taken(self, wanted: int) -> Places | None:
        if wanted > self.pool.free:
            return None
        if wanted == 1 and self._stride == 1:  # most calls
            requests: tuple[int, ...] = (next(self._numbers),)
        else:
            requests = tuple(islice(self._numbers, wanted * self._stride))[:: self._stride]
        slots = self.pool.claim(requests)
        assert slots is not None
        return requests, slots

    def _serve(self) -> None:
        """Give slots to those who wait, in their order, as far as there are enough for the first."""
        while self._waiting:
            turn = self._waiting[0]
            if not turn.places.done():
                places = self._taken(turn.wanted)
                if places is None:
                    return
                turn.places.set_result(places)
            self._waiting.popleft()

    def _give_up(self, turn: Turn) -> None:
        """Forget a turn; what it was given in the meantime goes on to the next."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        elif turn.places.done() and not turn.places.cancelled() and turn.places.exception() is None:
            for request, slot in zip(*turn.places.result(), strict=True):
                self.pool.move(slot, request, Step.LEAVE)
        self._serve()

    def _refused(self, wanted: int) -> Refused:
        places = f"{self.pool.free} of {len(self.pool)} places are free"
        return Refused(f"{self.spec.name} has no room for {wanted} more rows ({places}): try again later")


def _as_bytes(rows: Mapping[str, list[Rows]]) -> dict[str, list[memoryview]]:
    return {name: [row.reshape(-1).view(np.uint8).data for row in each] for name, each in rows.items()}
