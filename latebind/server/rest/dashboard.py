"""`GET /dashboard/...`: the page, its files and its figures."""

from latebind.domain.errors import TurnedOff
from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.rest.context import Context
from latebind.server.rest.request import Reply, Request


async def to_the_page(context: Context, request: Request) -> Reply:
    """`GET /dashboard`: redirects, since paths in the page are relative, so that a proxy may put it anywhere."""
    del request
    _turned_on(context)
    return Reply(headers=((b"location", b"dashboard/"),), status=307)


async def page(context: Context, request: Request) -> Reply:
    """`GET /dashboard/`."""
    del request
    return await _turned_on(context).file()


async def file(context: Context, request: Request) -> Reply:
    """`GET /dashboard/NAME`."""
    return await _turned_on(context).file(request.names["file"])


async def figures(context: Context, request: Request) -> Reply:
    """`GET /dashboard/data[/NUMBER]`: the figures, and the rows of the history after that number."""
    return await _turned_on(context).figures(int(request.names["since"] or 0), context.replies)


async def picture(context: Context, request: Request) -> Reply:
    """`GET /dashboard/picture`: what the engine is doing."""
    del request
    return await _turned_on(context).picture()


def _turned_on(context: Context) -> Dashboard:
    if context.dashboard is None:
        raise TurnedOff("the dashboard is off: start the server with --dashboard")
    return context.dashboard
