"""`GET /dashboard/...`: the page, its files and its figures."""

from latebind.domain.errors import TurnedOff
from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.rest.desk import Desk
from latebind.server.rest.request import Reply, Request


async def to_the_page(desk: Desk, request: Request) -> Reply:
    """`GET /dashboard`: the paths in the page are relative to its folder, so that a proxy may put it anywhere."""
    del request
    _turned_on(desk)
    return Reply(headers=((b"location", b"dashboard/"),), status=307)


async def page(desk: Desk, request: Request) -> Reply:
    """`GET /dashboard/`."""
    del request
    return await _turned_on(desk).file()


async def file(desk: Desk, request: Request) -> Reply:
    """`GET /dashboard/NAME`."""
    return await _turned_on(desk).file(request.names["file"])


async def figures(desk: Desk, request: Request) -> Reply:
    """`GET /dashboard/data[/NUMBER]`: figures, and the history behind the row of this number."""
    return await _turned_on(desk).figures(int(request.names["since"] or 0), desk.replies)


async def picture(desk: Desk, request: Request) -> Reply:
    """`GET /dashboard/picture`: what is under way."""
    del request
    return await _turned_on(desk).picture()


def _turned_on(desk: Desk) -> Dashboard:
    if desk.dashboard is None:
        raise TurnedOff("the dashboard is off: start the server with --dashboard")
    return desk.dashboard
