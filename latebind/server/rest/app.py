"""The HTTP application: finds the verb for a request, lets it answer, and makes sure of exactly one reply."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from latebind.domain.errors import NotFound, Unavailable
from latebind.server.calls import CLIENT_HEADER
from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.limits import Limits, MethodNotAllowed
from latebind.server.rest.body import ClientGone
from latebind.server.rest.context import Context
from latebind.server.rest.doorkeeper import Doorkeeper
from latebind.server.rest.exchange import Exchange
from latebind.server.rest.request import Reply, Request, error_reply, reply_to
from latebind.server.rest.routes import PAGE, ROUTES, Route
from latebind.server.service import Service

KNOWN = (*ROUTES, *PAGE)


class RestApp:
    """Answers requests for the models behind `service` with the verbs of `routes`.

    `behind_ingress`: an ingress sends the client's address in a header.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits,
        doorkeeper: Doorkeeper,
        dashboard: Dashboard | None = None,
        *,
        routes: Sequence[Route] = KNOWN,
        behind_ingress: bool = False,
    ) -> None:
        self._context = Context(service, limits, dashboard)
        self._behind_ingress = behind_ingress
        self._doorkeeper = doorkeeper
        self._routes = routes

    @property
    def replies(self) -> Counter[int]:
        """How many replies were made, by status."""
        return self._context.replies

    async def __call__(self, exchange: Exchange) -> Reply | None:
        """Return the reply to one request, whatever happens; None if its client has gone."""
        try:
            reply = await self._reply(exchange)
        except ClientGone:
            return None
        except asyncio.CancelledError:  # the time to drain is over; the task ends with this reply
            reply = error_reply(Unavailable("the server shut down before it had the answer"))
        except Exception as error:  # the root of the request's task: report, answer, go on serving
            reply = reply_to(error)
        if not exchange.answered:  # the connection may have refused the rest of it meanwhile
            self._context.replies[reply.status] += 1
        return reply

    async def _reply(self, exchange: Exchange) -> Reply:
        """Find the verb for path and method, and let it answer."""
        path = _path(exchange.target)
        others: list[str] = []
        for pattern, method, access, verb in self._routes:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if exchange.method != method:
                others.append(method)
                continue
            self._doorkeeper.admit(access, method, exchange.headers)
            if self._behind_ingress:
                exchange.client = dict(exchange.headers).get(CLIENT_HEADER, b"").decode("latin-1")
            request = Request(exchange, found.groupdict())
            return await verb(self._context, request)
        if others:
            raise MethodNotAllowed(others)
        raise NotFound("no such path: /v2/openapi.json lists those that there are")


def _path(target: bytes) -> str:
    """Return the decoded path of a target. Raises `NotFound`."""
    if b"%" in target:
        if b"%2f" in target.lower():  # a proxy that guards paths would read this as another path
            raise NotFound("'%2F' is not accepted in a path; send '/'")
        target = unquote_to_bytes(target)
    return target.decode("utf-8", "replace")
