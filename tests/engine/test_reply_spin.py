"""How long the door's loop stays awake for a lone call, on a clock of its own."""

import asyncio

from latebind.engine.reply_spin import ReplySpin
from latebind.engine.spin_wait import SPIN_SECONDS


class Calls:
    """Requests under way, and a clock that goes on with each look."""

    def __init__(self, *under_way: int) -> None:
        self.under_way = set(under_way)
        self.now = 0.0
        self.expecting = ReplySpin(self.under_way, clock=self.clock)

    def clock(self) -> float:
        self.now += SPIN_SECONDS / 16
        return self.now

    def answered_after(self, seconds: float) -> None:
        self.expecting.sent()
        self.now += seconds
        self.expecting.replied()


def test_the_loop_looks_while_a_lone_call_will_be_answered_soon() -> None:
    async def looks() -> None:
        calls = Calls(1)
        calls.answered_after(0.0)
        calls.expecting.sent()
        assert calls.expecting.spinning
        calls.under_way.clear()
        await asyncio.sleep(0)
        assert not calls.expecting.spinning

    asyncio.run(looks())


def test_it_sleeps_where_an_answer_takes_longer_than_the_last() -> None:
    async def looks() -> None:
        calls = Calls(1)
        calls.answered_after(0.0)
        calls.expecting.sent()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not calls.expecting.spinning
        assert SPIN_SECONDS < calls.now < 2 * SPIN_SECONDS

    asyncio.run(looks())


def test_it_sleeps_at_once_where_the_last_answer_took_long() -> None:
    async def looks() -> None:
        calls = Calls(1)
        calls.answered_after(0.0)
        calls.answered_after(SPIN_SECONDS)
        calls.expecting.sent()
        await asyncio.sleep(0)
        calls.expecting.sent()
        assert not calls.expecting.spinning

    asyncio.run(looks())


def test_it_sleeps_where_several_are_under_way() -> None:
    async def looks() -> None:
        calls = Calls(1)
        calls.answered_after(0.0)
        calls.under_way.add(2)
        calls.expecting.sent()
        assert not calls.expecting.spinning

    asyncio.run(looks())
