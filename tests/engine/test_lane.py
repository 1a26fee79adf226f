"""Calls that wait for slots: in their order, so many and so long as is allowed, and nothing is lost on the way."""

import asyncio
import time
from collections.abc import Coroutine
from itertools import count
from typing import Any

import numpy as np
import pytest

from latebind.domain.errors import Expired, Refused, Unavailable
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.lane import Claimed, Lane
from latebind.engine.slots import ModelSlots, Move

SPEC = ModelSpec("m", "1", (TensorSpec("x", "float32", (2,)),), (TensorSpec("y", "float32", (2,)),), 1, 4)


def lane(slots: int = 2) -> Lane:
    rows = ModelSlots((np.zeros((slots, 2), np.float32),), (np.zeros((slots, 2), np.float32),))
    return Lane(0, SPEC, rows, count(1))


def soon() -> float:
    return time.monotonic() + 30.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 200))


def leave(lane: Lane, places: Claimed) -> None:
    for request, slot in zip(*places, strict=True):
        lane.move(slot, request, Move.RELEASE)


async def waiting(lane: Lane, *wanted: int) -> list[asyncio.Task[Claimed]]:
    """Have calls wait for so many slots each, in this order."""
    calls = [asyncio.create_task(lane.claim(rows, deadline=soon())) for rows in wanted]
    await asyncio.sleep(0)
    assert not any(call.done() for call in calls)
    return calls


def test_of_those_who_wait_the_first_priority_has_its_turn_first() -> None:
    async def test() -> None:
        subject, turns = lane(slots=5), list[int]()

        async def call(priority: int) -> None:
            places = await subject.claim(5, deadline=soon(), priority=priority)
            turns.append(priority)
            leave(subject, places)

        held = await subject.claim(5, deadline=soon())
        calls = [asyncio.create_task(call(priority)) for priority in (0, 3, 1, 255, 3)]
        await asyncio.sleep(0)
        leave(subject, held)
        await asyncio.gather(*calls)
        assert turns == [1, 3, 3, 255, 0]

    run(test())


def test_who_came_first_has_its_turn_first_even_if_fewer_places_would_do_for_the_next() -> None:
    async def test() -> None:
        subject = lane()
        first, second = await subject.claim(1, deadline=soon()), await subject.claim(1, deadline=soon())
        large, small = await waiting(subject, 2, 1)
        leave(subject, first)
        await asyncio.sleep(0)
        assert not large.done()
        assert not small.done()
        leave(subject, second)
        places = await large
        assert places[1] == (0, 1)
        assert not small.done()
        leave(subject, places)
        assert (await small)[1] == (0,)
        subject.pool.check()

    run(test())


def test_a_call_waits_until_its_deadline_and_no_longer() -> None:
    async def test() -> None:
        subject = lane()
        places = await subject.claim(2, deadline=soon())
        begun = time.monotonic()
        with pytest.raises(Expired, match="0 of 2 places are free"):
            await subject.claim(1, deadline=begun + 0.05)
        assert time.monotonic() - begun >= 0.049
        leave(subject, places)
        assert await subject.claim(2, deadline=soon())

    run(test())


def test_only_so_many_calls_wait_and_none_for_what_will_never_be() -> None:
    async def test() -> None:
        subject = lane()
        with pytest.raises(Refused, match="3 more rows"):
            await subject.claim(3, deadline=soon())
        await subject.claim(2, deadline=soon())
        await waiting(subject, 1, 1)
        with pytest.raises(Refused):
            await subject.claim(1, deadline=soon())

    run(test())


def test_whoever_stops_waiting_lets_those_behind_go_on() -> None:
    async def test() -> None:
        subject = lane()
        first = await subject.claim(1, deadline=soon())
        large, small = await waiting(subject, 2, 1)
        large.cancel()
        assert (await small)[1] == (1,)
        leave(subject, first)
        subject.pool.check()
        assert subject.pool.free == 1

    run(test())


def test_what_a_call_was_given_as_it_was_cancelled_goes_to_the_next() -> None:
    async def test() -> None:
        subject = lane()
        places = await subject.claim(2, deadline=soon())
        first, second = await waiting(subject, 2, 2)
        leave(subject, places)  # the first has its places now, but has not run since
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        leave(subject, await second)
        assert subject.pool.free == 2

    run(test())


def test_when_the_engine_has_gone_nobody_waits_for_it() -> None:
    async def test() -> None:
        subject = lane()
        await subject.claim(2, deadline=soon())
        (call,) = await waiting(subject, 1)
        subject.fail_waiting(Unavailable("gone"))
        with pytest.raises(Unavailable, match="gone"):
            await call

    run(test())
