"""Calls that wait for slots, and what a claim makes of the engine's messages, whose engine here is the test."""

import asyncio
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest

from latebind.domain.actions import Outcome
from latebind.domain.errors import Expired, LatebindError, Refused, Unavailable
from latebind.domain.events import Arrived, Cancelled
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.engine.claim import Claim, Claims
from latebind.engine.messages import Ended, EventReader
from latebind.engine.slots import ModelSlots
from latebind.server.gateway import Answer

TOKENS = TensorSpec("tokens", "int64", (8,), padding=0)
SPEC = ModelSpec("net", "1", (TOKENS,), (TOKENS,), 2, 4, kinds=(StageKind.STATIC, StageKind.DECODER))
SOON = 1e9


class Pretended:
    """An engine that does what a test says; `heard` is what it was sent."""

    def __init__(self, slots: int = 2) -> None:
        self.sent: dict[int, Claim] = {}
        self.too_large: Mapping[str, str] = {}
        self.heard: list[Arrived | Cancelled] = []
        self.rows = np.zeros((slots, 8), np.int64)
        rows = ModelSlots((np.zeros((slots, 8), np.int64),), (self.rows,))
        self.claims = Claims(self, 0, SPEC, rows, count(1))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def require_engine(self) -> None:
        """It is always there."""

    def write(self, messages: bytes) -> None:
        self.heard += EventReader(["net"]).feed(messages)

    def watch(self, deadline: float) -> None:
        """Nobody is told at a deadline."""

    def say(self, *tokens: int) -> None:
        """Write so many tokens of the first request's answer, and tell so."""
        self.rows[0, : len(tokens)] = tokens
        self.sent[1].wrote(len(tokens))

    def end(self, *tokens: int, outcome: Outcome = Outcome.ANSWERED) -> None:
        self.rows[0, : len(tokens)] = tokens
        self.sent.pop(1).end(Ended(1, outcome, 1, 0.0, 0.0))


def lane(slots: int = 2) -> Claims:
    return Pretended(slots).claims


def soon() -> float:
    return time.monotonic() + 30.0


async def waiting(claims: Claims, *wanted: int) -> list[asyncio.Task[Claim]]:
    """Have calls wait for so many slots each, in this order."""
    calls = [asyncio.create_task(claims.claim(rows, deadline=soon())) for rows in wanted]
    await asyncio.sleep(0)
    assert not any(call.done() for call in calls)
    return calls


async def test_of_those_who_wait_the_first_priority_has_its_turn_first() -> None:
    subject, turns = lane(slots=5), list[int]()

    async def call(priority: int) -> None:
        places = await subject.claim(5, deadline=soon(), priority=priority)
        turns.append(priority)
        places.release()

    held = await subject.claim(5, deadline=soon())
    calls = [asyncio.create_task(call(priority)) for priority in (0, 3, 1, 255, 3)]
    await asyncio.sleep(0)
    held.release()
    await asyncio.gather(*calls)
    assert turns == [1, 3, 3, 255, 0]


async def test_who_came_first_has_its_turn_first_even_if_fewer_places_would_do_for_the_next() -> None:
    subject = lane()
    first, second = await subject.claim(1, deadline=soon()), await subject.claim(1, deadline=soon())
    large, small = await waiting(subject, 2, 1)
    first.release()
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done()
    second.release()
    places = await large
    assert places._slots == (0, 1)
    assert not small.done()
    places.release()
    assert (await small)._slots == (0,)
    subject.pool.check()


async def test_a_call_waits_until_its_deadline_and_no_longer() -> None:
    subject = lane()
    places = await subject.claim(2, deadline=soon())
    begun = time.monotonic()
    with pytest.raises(Expired, match="0 of 2 places are free"):
        await subject.claim(1, deadline=begun + 0.05)
    assert time.monotonic() - begun >= 0.049
    places.release()
    assert await subject.claim(2, deadline=soon())


async def test_only_so_many_calls_wait_and_none_for_what_will_never_be() -> None:
    subject = lane()
    with pytest.raises(Refused, match="3 more rows"):
        await subject.claim(3, deadline=soon())
    await subject.claim(2, deadline=soon())
    await waiting(subject, 1, 1)
    with pytest.raises(Refused):
        await subject.claim(1, deadline=soon())


async def test_whoever_stops_waiting_lets_those_behind_go_on() -> None:
    subject = lane()
    first = await subject.claim(1, deadline=soon())
    large, small = await waiting(subject, 2, 1)
    large.cancel()
    assert (await small)._slots == (1,)
    first.release()
    subject.pool.check()
    assert subject.pool.free == 1


async def test_what_a_call_was_given_as_it_was_cancelled_goes_to_the_next() -> None:
    subject = lane()
    places = await subject.claim(2, deadline=soon())
    first, second = await waiting(subject, 2, 2)
    places.release()  # the first has its places now, but has not run since
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (await second).release()
    assert subject.pool.free == 2


async def test_when_the_engine_has_gone_nobody_waits_for_it() -> None:
    subject = lane()
    await subject.claim(2, deadline=soon())
    (call,) = await waiting(subject, 1)
    subject.fail_waiting(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await call


def tokens(piece: Answer) -> list[int]:
    (row,) = piece.outputs["tokens"].tolist()
    return list(row)


async def filled(engine: Pretended) -> Claim:
    claim = await engine.claims.claim(1, deadline=SOON)
    claim.rows["tokens"][0][...] = 5
    return claim


async def begun(engine: Pretended) -> tuple[Any, "asyncio.Task[Answer]"]:
    """Return a stream that has been sent, and what waits for its first piece."""
    pieces = (await filled(engine)).stream(deadline=SOON)
    first = asyncio.create_task(anext(pieces))
    while not engine.heard:
        await asyncio.sleep(0)
    assert engine.heard == [Arrived("net", SOON, (1,), (0,), (8,), streams=True)]
    return pieces, first


async def test_a_claim_yields_tokens_when_it_hears_of_them() -> None:
    engine = Pretended()
    pieces, first = await begun(engine)
    engine.say(7)
    found = await first
    assert (tokens(found), found.complete) == ([7], False)
    engine.say(7, 3, 4)
    assert tokens(await anext(pieces)) == [3, 4]
    engine.end(7, 3, 4, 9)
    found = await anext(pieces)
    assert (tokens(found), found.complete, found.left_at) == ([9], True, (1,))
    with pytest.raises(StopAsyncIteration):
        await anext(pieces)


async def test_who_is_slow_gets_several_tokens_in_one_piece_and_at_last_the_rest() -> None:
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


async def test_pieces_stay_as_they_are_when_the_slot_is_used_again() -> None:
    engine = Pretended()
    pieces, first = await begun(engine)
    engine.say(7)
    found = await first
    engine.end(7, 3)
    last = await anext(pieces)
    engine.rows[:] = 0
    assert (tokens(found), tokens(last)) == ([7], [3])


async def test_an_answer_of_one_step_is_one_piece() -> None:
    engine = Pretended()
    _, first = await begun(engine)
    engine.end(9)
    found = await first
    assert (tokens(found), found.complete) == ([9], True)


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


async def test_an_engine_that_ends_ends_the_stream() -> None:
    engine = Pretended()
    _, first = await begun(engine)
    error: LatebindError = Unavailable("the engine ended")
    engine.sent[1].fail(error)
    with pytest.raises(Unavailable):
        await first


async def test_to_close_a_stream_cancels_its_request() -> None:
    engine = Pretended()
    pieces, first = await begun(engine)
    engine.say(7)
    await first
    await pieces.aclose()
    assert engine.heard[1:] == [Cancelled(1)]


async def test_to_cancel_who_waits_for_a_token_cancels_the_request() -> None:
    engine = Pretended()
    _, first = await begun(engine)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert engine.heard[1:] == [Cancelled(1)]


async def test_to_close_a_stream_that_has_ended_cancels_nothing() -> None:
    engine = Pretended()
    pieces, first = await begun(engine)
    engine.end(9)
    await first
    await pieces.aclose()
    assert not engine.heard[1:]
