"""The ASGI application: finds a request's verb, lets it answer, and sees to it that every request gets one reply."""

import asyncio
from typing import Any

import orjson

from latebind.domain.errors import NotFound, Unavailable
from latebind.server.faults import FOR_CLIENTS, report
from latebind.server.limits import Limits, MethodNotAllowed
from latebind.server.rest.asgi import Receive, Scope, Send
from latebind.server.rest.body import ClientGone
from latebind.server.rest.bounded import CONNECTION
from latebind.server.rest.desk import Desk
from latebind.server.rest.doorkeeper import Doorkeeper
from latebind.server.rest.request import JSON, Reply, Request, error_reply
from latebind.server.rest.routes import ROUTES
from latebind.server.service import Service


class RestApp:
    """The ASGI application."""

    def __init__(self, service: Service, limits: Limits, doorkeeper: Doorkeeper) -> None:
        self._desk = Desk(service, limits)
        self._doorkeeper = doorkeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, whatever happens; nothing is sent to a client that has gone."""
        try:
            reply = await self._reply(scope, receive)
        except ClientGone:
            return
        except asyncio.CancelledError:  # the time to drain is over; the task ends with this reply
            reply = error_reply(Unavailable("the server shut down before it had the answer"))
        except FOR_CLIENTS as error:
            reply = error_reply(error)
        except Exception as error:  # the root of the request's task: report, answer, go on serving
            reply = Reply(orjson.dumps({"error": report(error)}), JSON, 500)
        self._desk.replies[reply.status] += 1
        length = (b"content-length", b"%d" % len(reply.body))
        await send({"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, length]})
        await send({"type": "http.response.body", "body": reply.body})

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        """Find the verb for path and method and let it answer."""
        path: str = scope["path"]
        raw_path: bytes = scope.get("raw_path") or b""
        if b"%2" in raw_path and b"%2f" in raw_path.lower():  # else a proxy that guards paths would see another one
            raise NotFound("there is no such path: a slash in it is written as a slash")
        for pattern, method, access, verb in ROUTES:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if scope["method"] != method:
                raise MethodNotAllowed(f"this path takes {method}")
            self._doorkeeper.admit(access, scope["headers"])
            return await verb(self._desk, _request(scope, receive, found.groupdict()))
        raise NotFound("there is no such path")


def _request(scope: Scope, receive: Receive, names: dict[str, Any]) -> Request:
    address: tuple[str, int] | None = scope.get("client")
    connection = scope.get("extensions", {}).get(CONNECTION)
    return Request(scope["headers"], receive, names, address[0] if address else "", connection)
