"""Tokens on their way to a client: the pieces that a claim makes of them."""

import asyncio
from collections.abc import Coroutine, Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest

from latebind.domain.actions import Outcome
from latebind.domain.errors import Expired, LatebindError, Unavailable
from latebind.domain.events import Arrived, Cancelled
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.engine.claim import Claim
from latebind.engine.lane import Lane
from latebind.engine.messages import Ended, EventReader
from latebind.engine.slots import ModelSlots
from latebind.server.gateway import Answer

KINDS = (StageKind.STATIC, StageKind.DECODER)
TOKENS = TensorSpec("tokens", "int64", (8,), padding=0)
SPEC = ModelSpec("net", "1", (TOKENS,), (TOKENS,), 2, 4, kinds=KINDS)
SOON = 1e9


class Pretended:
    """An engine that does what a test says; `heard` is what it was sent."""

    def __init__(self) -> None:
        self.sent: dict[int, Claim] = {}
        self.too_large: Mapping[str, str] = {}
        self.heard: list[Arrived | Cancelled] = []
        self.rows = np.zeros((2, 8), np.int64)
        self.lane = Lane(0, SPEC, ModelSlots((np.zeros((2, 8), np.int64),), (self.rows,)), count(1))

    def require_engine(self) -> None:
        """It is always there."""

    def write(self, messages: bytes) -> None:
        self.heard += EventReader(["net"]).feed(messages)

    def watch(self, deadline: float) -> None:
        """Nobody is told at a deadline."""

    def claim(self) -> Claim:
        places = self.lane.claim_now(1)
        assert places is not None
        claim = Claim(self, self.lane, *places)
        claim.rows["tokens"][0][...] = 5
        return claim

    def say(self, *tokens: int) -> None:
        """Write so many tokens of the first request's answer, and tell so."""
        self.rows[0, : len(tokens)] = tokens
        self.sent[1].wrote(len(tokens))

    def end(self, *tokens: int, outcome: Outcome = Outcome.ANSWERED) -> None:
        self.rows[0, : len(tokens)] = tokens
        self.sent.pop(1).end(Ended(1, outcome, 1, 0.0, 0.0))


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 200))


def tokens(piece: Answer) -> list[int]:
    (row,) = piece.outputs["tokens"].tolist()
    return list(row)


async def begun(engine: Pretended) -> tuple[Any, "asyncio.Task[Answer]"]:
    """Return a stream that has been sent, and what waits for its first piece."""
    pieces = engine.claim().stream(deadline=SOON)
    first = asyncio.create_task(anext(pieces))
    while not engine.heard:
        await asyncio.sleep(0)
    assert engine.heard == [Arrived("net", SOON, (1,), (0,), (8,), streams=True)]
    return pieces, first


def test_a_claim_yields_tokens_when_it_hears_of_them() -> None:
    async def test() -> None:
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

    run(test())


def test_who_is_slow_gets_several_tokens_in_one_piece_and_at_last_the_rest() -> None:
    async def test() -> None:
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

    run(test())


def test_pieces_stay_as_they_are_when_the_slot_is_used_again() -> None:
    async def test() -> None:
        engine = Pretended()
        pieces, first = await begun(engine)
        engine.say(7)
        found = await first
        engine.end(7, 3)
        last = await anext(pieces)
        engine.rows[:] = 0
        assert (tokens(found), tokens(last)) == ([7], [3])

    run(test())


def test_an_answer_of_one_step_is_one_piece() -> None:
    async def test() -> None:
        engine = Pretended()
        _, first = await begun(engine)
        engine.end(9)
        found = await first
        assert (tokens(found), found.complete) == ([9], True)

    run(test())


@pytest.mark.parametrize("written", [0, 2])
def test_an_end_without_an_answer_is_raised_behind_the_tokens(written: int) -> None:
    async def test() -> None:
        engine = Pretended()
        pieces, waits = await begun(engine)
        if written:
            engine.say(*range(1, written + 1))
            await waits
            waits = asyncio.create_task(anext(pieces))
        engine.end(outcome=Outcome.EXPIRED)
        with pytest.raises(Expired):
            await waits

    run(test())


def test_an_engine_that_ends_ends_the_stream() -> None:
    async def test() -> None:
        engine = Pretended()
        _, first = await begun(engine)
        error: LatebindError = Unavailable("the engine ended")
        engine.sent[1].fail(error)
        with pytest.raises(Unavailable):
            await first

    run(test())


def test_to_close_a_stream_cancels_its_request() -> None:
    async def test() -> None:
        engine = Pretended()
        pieces, first = await begun(engine)
        engine.say(7)
        await first
        await pieces.aclose()
        assert engine.heard[1:] == [Cancelled(1)]

    run(test())


def test_to_cancel_who_waits_for_a_token_cancels_the_request() -> None:
    async def test() -> None:
        engine = Pretended()
        _, first = await begun(engine)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert engine.heard[1:] == [Cancelled(1)]

    run(test())


def test_to_close_a_stream_that_has_ended_cancels_nothing() -> None:
    async def test() -> None:
        engine = Pretended()
        pieces, first = await begun(engine)
        engine.end(9)
        await first
        await pieces.aclose()
        assert not engine.heard[1:]

    run(test())
