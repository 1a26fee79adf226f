"""A request on its connection: whether that is read while somebody waits for the answer."""

import asyncio

from latebind.server.rest.request import HIGH_WATER, Request


class Line:
    """A connection that knows only whether it is read."""

    def __init__(self) -> None:
        self.held = False

    def hold(self) -> None:
        self.held = True

    def read_on(self) -> None:
        self.held = False

    def go_on(self) -> None:
        self.read_on()


def test_a_connection_is_read_on_behind_a_large_body_so_that_a_hang_up_is_heard() -> None:
    async def scenario() -> None:
        line = Line()
        request = Request(line, asyncio.get_running_loop(), "POST", b"/", [])
        request.feed(b"x" * (HIGH_WATER + 1))
        request.complete()
        assert line.held
        await request.receive()
        assert not line.held

    asyncio.run(scenario())
