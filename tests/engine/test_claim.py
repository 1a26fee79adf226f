"""The slots of a model at the frontend: who has which, who waits for some, and what a claim makes of messages.

The engine is the test.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.compiled import is_compiled
from latebind.domain.actions import Outcome
from latebind.domain.errors import Expired, IllegalEvent, InvalidRequest, Refused, TooLarge, Unavailable
from latebind.domain.events import Arrived, Cancelled
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.engine.claims import LATEST_SECONDS, Claim, Claims, EngineCalls
from latebind.engine.shared import NO_STEP, WROTE, EventReader, Notice
from latebind.engine.slots import Extents, ModelSlots, SlotMemory
from latebind.server.gateway import NO_DIMS, Answer
from tests.engine.lengths import WIDTH, mapped, spec_of

pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled code takes real engines alone, and these are pretended")

TOKENS = TensorSpec("tokens", "int64", (8,), padding=0)
SPEC = ModelSpec("net", "1", (TOKENS,), (TOKENS,), 2, 4, kinds=(StageKind.STATIC, StageKind.DECODER))
SOON = 1e9
LONGEST = 100


class Pretended:
    """An engine that does what a test says; `heard` is what it was sent."""

    def __init__(self, slots: int = 2) -> None:
        self.heard: list[Arrived | Cancelled] = []
        self.rows = np.zeros((slots, 8), np.int64)
        rows = ModelSlots(
            (np.zeros((slots, 8), np.int64),), (self.rows,), np.zeros(0, np.int32), np.zeros(0, np.float32)
        )
        self.sent: dict[int, Claim] = {}
        client = SimpleNamespace(
            sent=self.sent,
            too_large={},
            loop=asyncio.get_running_loop(),
            require_engine=lambda: None,
            write=lambda messages: self.heard.extend(EventReader(["net"]).feed(messages)),
        )
        self.claims = Claims(cast(EngineCalls, client), 0, SPEC, rows, slots, count(1))

    def say(self, *tokens: int) -> None:
        """Write so many tokens of the first request's answer, and tell so."""
        self.rows[0, : len(tokens)] = tokens
        self.sent[1].receive(Notice(0, 0, WROTE, len(tokens), 1, 0.0, 0.0))

    def end(self, *tokens: int, request: int = 1, outcome: Outcome = Outcome.ANSWERED) -> None:
        self.rows[0, : len(tokens)] = tokens
        self.sent.pop(request).receive(Notice(outcome, 1, NO_STEP, 0, request, 0.0, 0.0))


class Lengths:
    """Two models whose rows differ in size, in real slots that hold `slots` of their longest rows each."""

    def __init__(self, memory: SlotMemory, extents: Extents, slots: int) -> None:
        self.heard: list[Arrived | Cancelled] = []
        self.sent: dict[int, Claim] = {}
        self.memory, self.extents = memory, extents
        self.lacking_room: deque[Claims] = deque()
        self.too_large: dict[str, str] = {}
        self.loop = asyncio.get_running_loop()
        client, numbers = cast(EngineCalls, self), count(1)
        self.one, self.two = (
            Claims(client, place, spec_of(name, longest=LONGEST), rows, slots, numbers)
            for place, (name, rows) in enumerate(memory.by_name.items())
        )

    grant_room = EngineCalls.grant_room

    def require_engine(self) -> None:
        """It never ends."""

    def write(self, messages: bytes) -> None:
        self.heard += EventReader(list(self.memory.by_name)).feed(messages)


def soon() -> float:
    return time.monotonic() + 30.0


async def waiting(claims: Claims, *wanted: int, dims: Mapping[str, int] = NO_DIMS) -> list[asyncio.Task[Claim]]:
    """Have calls wait for so many slots each, in this order."""
    calls = [asyncio.create_task(claims.claim(rows, deadline=soon(), dims=dims)) for rows in wanted]
    await asyncio.sleep(0)
    assert not any(call.done() for call in calls)
    return calls


@pytest.mark.parametrize(
    ("slots", "held", "released", "wanted", "given"),
    [
        (8, [1, 2], [], 1, (3,)),  # they follow those given before
        (4, [1, 1, 1], [0, 1], 1, (3,)),
        (4, [1, 1, 1, 1], [0, 1], 2, (0, 1)),  # the ring goes on at its beginning
        (4, [1, 1, 1, 1], [1, 3], 2, (1, 3)),  # where nothing else is left
        (6, [1] * 6, [0, 2, 3, 4], 3, (2, 3, 4)),  # together, even if single slots come first
        (8, [1, 1], [1], 1, (1,)),  # nobody to be beside: what the processor's caches still hold
    ],
)
async def test_slots_of_a_batch_lie_together_where_they_can(
    slots: int, held: list[int], released: list[int], wanted: int, given: tuple[int, ...]
) -> None:
    claims = Pretended(slots).claims
    before = [await claims.claim(rows, deadline=soon()) for rows in held]
    for place in released:
        before[place].release()
    assert (await claims.claim(wanted, deadline=soon()))._slots == given


class Calls:
    """Any order of calls that claim, send, are answered, give up and release; `held` has what should be taken."""

    SLOTS = 6

    def __init__(self) -> None:
        self.engine = Pretended(self.SLOTS)
        self.filling: list[Claim] = []
        self.sent: dict[Claim, asyncio.Task[Answer]] = {}
        self.left: set[Claim] = set()  # released while the engine had their requests

    async def step(self, kind: str, draw: Callable[[int], int]) -> None:
        if kind == "claim":
            wanted = 1 + draw(self.SLOTS - 1)
            if wanted <= self.engine.claims.free:
                self.filling.append(await self.engine.claims.claim(wanted, deadline=SOON))
        elif kind == "drop" and self.filling:
            self.filling.pop(draw(len(self.filling) - 1)).release()
        elif kind == "send" and self.filling:
            claim = self.filling.pop(draw(len(self.filling) - 1))
            self.sent[claim] = asyncio.create_task(claim.send(deadline=SOON))
            await asyncio.sleep(0)
        elif kind == "cancel" and self.sent:
            claim = list(self.sent)[draw(len(self.sent) - 1)]
            task = self.sent.pop(claim)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            claim.release()
            self.left.add(claim)
        elif kind == "end" and self.engine.sent:
            self.engine.end(request=list(self.engine.sent)[draw(len(self.engine.sent) - 1)])
            for claim, task in list(self.sent.items()):
                if claim not in self.engine.sent.values():
                    assert len((await task).left_at) == len(claim._slots)
                    claim.release()
                    del self.sent[claim]

    def check(self) -> None:
        held = [slot for claim in (*self.filling, *self.sent) for slot in claim._slots]
        with_engine = {request for request, claim in self.engine.sent.items() if claim in self.left}
        for claim in self.left:
            held += [slot for one, slot in zip(claim._requests, claim._slots, strict=True) if one in with_engine]
        assert len(set(held)) == len(held), "a slot has two owners"
        assert self.engine.claims.free == self.SLOTS - len(held)
        assert [slot for slot in range(self.SLOTS) if self.engine.claims._taken[slot]] == sorted(held)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_slot_has_two_owners_and_all_come_back_in_any_order_of_events(data: st.DataObject) -> None:
    async def test() -> None:
        calls = Calls()
        for kind in data.draw(st.lists(st.sampled_from(("claim", "send", "end", "cancel", "drop")), max_size=60)):
            await calls.step(kind, lambda most: data.draw(st.integers(0, most)))
            calls.check()
        for task in calls.sent.values():
            task.cancel()
        await asyncio.gather(*calls.sent.values(), return_exceptions=True)

    asyncio.run(test())


async def test_a_claim_is_released_once_and_sent_once() -> None:
    engine = Pretended()
    claim = await engine.claims.claim(1, deadline=SOON)
    call = asyncio.create_task(claim.send(deadline=SOON))
    await asyncio.sleep(0)
    with pytest.raises(IllegalEvent):
        await claim.send(deadline=SOON)
    engine.end(9)
    await call
    claim.release()
    with pytest.raises(IllegalEvent):
        claim.release()
    assert engine.claims.free == 2


async def test_a_call_is_answered_at_its_deadline_whatever_the_engine_does() -> None:
    engine = Pretended()
    with await engine.claims.claim(2, deadline=SOON) as claim:
        begun = time.monotonic()
        with pytest.raises(Expired):
            await claim.send(deadline=begun + 0.02)
        assert time.monotonic() - begun >= 0.02 + LATEST_SECONDS - 0.001, "the engine may know more just after it"
    assert engine.claims.free == 0, "the engine may still write there"
    engine.end(request=1)
    engine.end(request=2)
    assert engine.claims.free == 2


async def test_of_calls_that_wait_the_first_priority_has_its_turn_first() -> None:
    claims, turns = Pretended(slots=5).claims, list[int]()

    async def call(priority: int) -> None:
        claim = await claims.claim(5, deadline=soon(), priority=priority)
        turns.append(priority)
        claim.release()

    held = await claims.claim(5, deadline=soon())
    calls = [asyncio.create_task(call(priority)) for priority in (0, 3, 1, 255, 3)]
    await asyncio.sleep(0)
    held.release()
    await asyncio.gather(*calls)
    assert turns == [1, 3, 3, 255, 0]


async def test_the_first_to_come_has_its_turn_first_even_if_fewer_slots_would_do_for_the_next() -> None:
    claims = Pretended().claims
    first, second = await claims.claim(1, deadline=soon()), await claims.claim(1, deadline=soon())
    large, small = await waiting(claims, 2, 1)
    first.release()
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done()
    second.release()
    (await large).release()
    assert (await small)._slots == (0,)


async def test_a_call_waits_until_its_deadline_and_no_longer() -> None:
    claims = Pretended().claims
    held = await claims.claim(2, deadline=soon())
    begun = time.monotonic()
    with pytest.raises(Expired, match="0 of 2 places are free"):
        await claims.claim(1, deadline=begun + 0.05)
    assert time.monotonic() - begun >= 0.049
    held.release()
    assert await claims.claim(2, deadline=soon())


async def test_only_so_many_calls_wait_and_none_for_what_will_never_be() -> None:
    claims = Pretended().claims
    with pytest.raises(TooLarge, match="at most that many rows in a call, not 3"):
        await claims.claim(3, deadline=soon())
    await claims.claim(2, deadline=soon())
    await waiting(claims, 1, 1)
    with pytest.raises(Refused):
        await claims.claim(1, deadline=soon())


async def test_a_call_that_stops_waiting_lets_those_behind_it_go_on() -> None:
    claims = Pretended().claims
    first = await claims.claim(1, deadline=soon())
    large, small = await waiting(claims, 2, 1)
    large.cancel()
    assert (await small)._slots == (1,)
    first.release()
    assert claims.free == 1


async def test_what_a_call_was_given_as_it_was_cancelled_goes_to_the_next() -> None:
    claims = Pretended().claims
    held = await claims.claim(2, deadline=soon())
    first, second = await waiting(claims, 2, 2)
    held.release()  # the first has its slots now, but has not run since
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (await second).release()
    assert claims.free == 2


async def test_no_call_waits_for_an_engine_that_has_gone() -> None:
    claims = Pretended().claims
    await claims.claim(2, deadline=soon())
    (call,) = await waiting(claims, 1)
    claims.fail_waiting(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await call


def tokens(piece: Answer) -> list[int]:
    (row,) = piece.outputs["tokens"].tolist()
    return list(row)


async def begun(engine: Pretended) -> tuple[Any, "asyncio.Task[Answer]"]:
    """Return a stream that has been sent, and what waits for its first piece."""
    claim = await engine.claims.claim(1, deadline=SOON)
    claim.rows["tokens"][0][...] = 5
    pieces = claim.stream(deadline=SOON)
    first = asyncio.create_task(anext(pieces))
    while not engine.heard:
        await asyncio.sleep(0)
    assert engine.heard == [Arrived("net", SOON, (1,), (0,), (1,), streams=True)]
    return pieces, first


async def test_a_stream_yields_tokens_when_it_hears_of_them_and_they_stay_when_the_slot_is_used_again() -> None:
    engine = Pretended()
    pieces, first = await begun(engine)
    engine.say(7)
    found = [await first]
    engine.say(7, 3, 4)
    found.append(await anext(pieces))
    engine.end(7, 3, 4, 9)
    found.append(await anext(pieces))
    with pytest.raises(StopAsyncIteration):
        await anext(pieces)
    engine.rows[:] = 0
    assert [(tokens(one), one.complete) for one in found] == [([7], False), ([3, 4], False), ([9], True)]
    assert found[-1].left_at == (1,)
    assert not engine.heard[1:], "to end it cancels nothing"


async def test_a_slow_reader_gets_several_tokens_in_one_piece_and_at_last_the_rest() -> None:
    engine = Pretended()
    pieces, first = await begun(engine)
    engine.say(7)
    engine.say(7, 3)
    assert tokens(await first) == [7, 3]
    engine.say(7, 3, 4)
    engine.end(7, 3, 4, 9)
    rest = [piece async for piece in pieces]
    assert [token for piece in rest for token in tokens(piece)] == [4, 9]
    assert [piece.complete for piece in rest].index(True) == len(rest) - 1


@pytest.mark.parametrize("written", [0, 2])
async def test_an_end_without_an_answer_is_raised_behind_the_tokens(written: int) -> None:
    engine = Pretended()
    pieces, waits = await begun(engine)
    if written:
        engine.say(*range(1, written + 1))
        await waits
        waits = asyncio.create_task(anext(pieces))
    engine.end(outcome=Outcome.EXPIRED)
    with pytest.raises(Expired):
        await waits


@pytest.mark.parametrize("closes", [True, False])
async def test_to_close_a_stream_or_to_cancel_what_waits_for_a_token_cancels_the_request(closes: bool) -> None:
    engine = Pretended()
    pieces, first = await begun(engine)
    if closes:
        engine.say(7)
        await first
        await pieces.aclose()
    else:
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    assert engine.heard[1:] == [Cancelled(1)]


@contextmanager
def lengths(slots: int) -> Iterator[Lengths]:
    with mapped(*(spec_of(name, longest=LONGEST) for name in ("one", "two")), slots=slots) as (memory, extents, _):
        yield Lengths(memory, extents, slots)
        extents.check()
        assert extents.taken == 0, "an extent was never freed"


async def test_rows_have_the_shape_of_their_sizes_and_so_have_answers() -> None:
    with lengths(4) as at, await at.one.claim(2, deadline=SOON, dims={"L": 3}) as claim:
        for place in range(2):
            claim.rows["ids"][place][...] = place + 1
            assert claim.rows["mask"][place].shape == (3,)
        call = asyncio.create_task(claim.send(deadline=SOON))
        await asyncio.sleep(0)
        (event,) = at.heard
        assert isinstance(event, Arrived)
        assert event.inputs == (3, 3)
        sized = at.memory.models[0].sized
        assert sized is not None
        for request, slot in zip(event.requests, event.slots, strict=True):
            assert sized.row(slot, 0).tolist() == [request] * 3
            sized.write(slot, [np.full((8, WIDTH), request), np.full(WIDTH, -request)])
            at.sent.pop(request).receive(Notice(Outcome.ANSWERED, 1, NO_STEP, 0, request, 0.0, 0.0))
        outputs = (await call).outputs
        assert outputs["words"].tolist() == [[[place] * WIDTH] * 6 for place in (1, 2)]
        assert outputs["text"].tolist() == [[-1.0] * WIDTH, [-2.0] * WIDTH]


async def test_only_calls_of_equal_sizes_are_told_with_one_number() -> None:
    with lengths(4) as at:
        for length in (1, 2, 100, 2):
            with await at.one.claim(1, deadline=SOON, dims={"L": length}) as claim:
                call = asyncio.create_task(claim.send(deadline=SOON))
                await asyncio.sleep(0)
                (request,) = at.sent
                at.sent.pop(request).receive(Notice(Outcome.ANSWERED, 1, NO_STEP, 0, request, 0.0, 0.0))
                await call
        numbers = [event.sizes for event in at.heard if isinstance(event, Arrived)]
        assert len(set(numbers)) == 3
        assert numbers[1] == numbers[3]
        assert min(numbers) > 0


@pytest.mark.parametrize("dims", [{}, {"L": 0}, {"L": LONGEST + 1}, {"M": 3}])
async def test_sizes_that_the_model_does_not_allow_are_refused(dims: dict[str, int]) -> None:
    with lengths(1) as at:
        with pytest.raises(InvalidRequest, match=f"for L: it must be 1 to {LONGEST}"):
            await at.one.claim(1, deadline=SOON, dims=dims)
        assert at.one.free == 1


async def in_pieces(at: Lengths) -> tuple[list[Claim], asyncio.Task[Claim], asyncio.Task[Claim]]:
    """Have room for rows, but not for two together; return who has the rest, who wants two, and who waits behind."""
    turns = (at.two, at.one, at.two, at.one, at.one)
    held = [await claims.claim(1, deadline=SOON, dims={"L": LONGEST}) for claims in turns]
    held.pop(3).release()
    held.pop(1).release()
    (whole,) = await waiting(at.one, 2, dims={"L": LONGEST})
    (behind,) = await waiting(at.two, 1, dims={"L": 1})
    return held, whole, behind


async def test_a_call_waits_for_room_in_one_piece_and_those_of_other_models_do_not_pass_it() -> None:
    with lengths(3) as at:
        held, whole, behind = await in_pieces(at)
        held.pop(0).release()
        held += [await whole, await behind]
        for claim in held:
            claim.release()


async def test_a_call_that_gives_up_for_lack_of_room_lets_those_go_on_that_need_less() -> None:
    with lengths(3) as at:
        held, whole, behind = await in_pieces(at)
        whole.cancel()
        held.append(await behind)
        assert not at.lacking_room
        for claim in held:
            claim.release()
