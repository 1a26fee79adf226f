"""The HTTP application: which path leads to which verb, and who may call. Decided once for each head."""

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from time import monotonic, time
from typing import Any
from urllib.parse import unquote_to_bytes

from msgspec import structs

from latebind.domain.config import FrontendConfig, is_loopback
from latebind.domain.errors import NotFound, UserError
from latebind.repository.directory import NAME
from latebind.server.access import Access, Guard
from latebind.server.dashboard import Dashboard
from latebind.server.limits import Foreign, Limits, MethodNotAllowed
from latebind.server.listening import BACKLOG, waiting_at
from latebind.server.rest.infer import Context
from latebind.server.rest.messages import OWN, ClientGone, Errors, Head, Headers, Reply, Verb, read_head, reply_to
from latebind.server.rest.openapi import Route
from latebind.server.rest.protocol import HttpProtocol, Request, head_too_large
from latebind.server.rest.routes import ROUTES
from latebind.server.service import Service
from latebind.server.tls import LATE_SECONDS, Certificates, TlsServer

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# What pages of other sites may read of a reply beside its body.
SHOWN = b"inference-header-content-length, retry-after, server-timing, x-request-id"
KEPT_SECONDS = 600  # for which a browser need not ask again whether a page may call
POLL_SECONDS = 0.05  # between two checks whether everything has ended
OF_THIS_SITE = (b"same-origin", b"none")  # `same-site` is another port of this host, or another name of its domain
SLASH = "'%2F' is not accepted in a path; send '/'"
FOREIGN_PAGE = "the request comes from a page of another site, which may not call this server"


class RequestFilter:
    """Decides which HTTP requests are let in, by Host and Origin.

    A page on any site can make a browser call a server on loopback, and can read the answers once it points a host name
    of its own there (DNS rebinding). So on loopback the Host must be a loopback name, the address listened on or one of
    `allow_hosts`. If `allow_hosts` are given, this applies to other addresses too. On all addresses an Origin must be
    the host that is called or one of `allow_hosts`, or be one of `allow_origins`; a call without one that may change
    something or use a model (no `GET`) must not come from another site according to the browser (`Sec-Fetch-Site`).
    Health checks are always let in.
    """

    def __init__(self, config: FrontendConfig) -> None:
        on_loopback = is_loopback(config.host) and not config.unix  # no page reaches a Unix socket, and proxies do
        self._any_host = not (on_loopback or config.allow_hosts)
        address = f"[{config.host}]" if ":" in config.host else config.host
        self._names = _lower((*LOOPBACK_NAMES, address, *config.allow_hosts))
        self._origins = _lower(config.allow_hosts)
        self._sites = _lower(config.allow_origins)

    def admit(self, access: Access, method: str, fields: Mapping[bytes, bytes]) -> None:
        """Return if a call of this kind may go on, else raise `Foreign`.

        Each header that is read here occurs at most once (`read_head`).
        """
        if access is Access.OPEN:
            return
        host, origin = fields.get(b"host"), fields.get(b"origin")
        if host is not None and not self._any_host:
            self._check_host(host.lower())
        if origin is not None:
            if self.is_allowed(origin):
                return
            # The scheme may differ, because a proxy may add TLS.
            authority = origin.lower().partition(b"://")[2]
            if not authority or (authority != (host or b"").lower() and authority not in self._origins):
                raise Foreign(FOREIGN_PAGE)
        elif method != "GET" and fields.get(b"sec-fetch-site", b"none").lower() not in OF_THIS_SITE:
            raise Foreign(FOREIGN_PAGE)

    def is_allowed(self, origin: bytes) -> bool:
        """Return whether pages of this origin are of a site whose pages may call this server."""
        return origin.lower() in self._sites

    def _check_host(self, host: bytes) -> None:
        name, _, port = host.rpartition(b":")
        if host not in self._names and not (port.isdigit() and name in self._names):
            raise Foreign("the Host of the request is not one of this server's names: allow it with --allow-host")


class RestApp:
    """Answers requests for the models behind `service` with the verbs of `routes`, on all connections to a socket.

    With `tls`, connections are behind TLS, each with the certificate current when it is opened.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits,
        config: FrontendConfig,
        guard: Guard,
        *,
        dashboard: Dashboard | None = None,
        routes: Sequence[Route] = ROUTES,
        tls: Certificates | None = None,
    ) -> None:
        self.context = Context(service, limits, dashboard, prefix=config.prefix)
        self._prefix = config.prefix.encode()
        self.connections: set[HttpProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # that answer
        self.date = b""  # a line of a head
        self.head = lru_cache(256)(self._head)  # clients send the same few; none is longer than `header_bytes`
        self._guard = guard
        self._filter = RequestFilter(config)
        self._routes = [(route.pattern(), route) for route in routes]
        self.behind_tls: TlsServer | None = None
        self.forced = False  # close without waiting
        self._tls = tls
        self._made = partial(HttpProtocol, self)
        self._server: asyncio.AbstractServer | None = None
        self._chores: list[asyncio.Task[None]] = []

    async def open(self, listening: socket.socket) -> None:
        """Listen there."""
        loop, limits = asyncio.get_running_loop(), self.context.limits
        self._listening = listening
        self._chores = [loop.create_task(self._keep_date()), loop.create_task(self._sweep(limits.idle_seconds))]
        if self.context.dashboard is not None:
            self._chores.append(loop.create_task(self.context.dashboard.follow(self.context.replies)))
        await asyncio.sleep(0)  # the first reply has a date
        if self._tls is None and listening.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(self._made, sock=listening, backlog=BACKLOG)
        elif self._tls is None:  # 71 us for a connection with one request, its client included; 109 by `TlsServer`
            self._server = await loop.create_server(self._made, sock=listening, backlog=BACKLOG)
        else:
            most, patience, tls = limits.connections, limits.idle_seconds, self._tls
            self.behind_tls = TlsServer(
                listening, lambda: tls.current().context, self._made, self.connections, most=most, patience=patience
            )

    async def close(self) -> None:
        """Close once everything that has arrived is answered, or the time to drain is over.

        First serve connections that the kernel has accepted and this process has not: they would be reset.
        """
        loop = asyncio.get_running_loop()
        waiting = list(waiting_at(self._listening))
        if self._server is not None:
            self._server.close()
        if self.behind_tls is None:
            taking = [loop.connect_accepted_socket(self._made, line) for line in waiting]
            await asyncio.gather(*taking, return_exceptions=True)
            self._listening.close()
        else:
            self.behind_tls.close()
            for line in waiting:
                self.behind_tls.take(line)
            await self.behind_tls.ended(seconds=LATE_SECONDS)
        for connection in list(self.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.context.limits.drain_seconds):
                while (self.connections or self.tasks) and not self.forced:
                    await asyncio.sleep(POLL_SECONDS)
        late = list(self.tasks)
        for task in late:
            task.cancel()
        if late and not self.forced:  # each still sends its error
            await asyncio.wait(late, timeout=1.0)
        for task in self._chores:
            task.cancel()

    async def _keep_date(self) -> None:
        """Keep the date until cancelled; replies of one second share the line."""
        while True:
            self.date = b"date: %b\r\n" % formatdate(time(), usegmt=True).encode()
            await asyncio.sleep(1.0)

    async def _sweep(self, patience: float) -> None:
        """Close connections whose client sends nothing and takes nothing for `patience` seconds, until cancelled.

        All are checked from outside at intervals, so no request needs a timer of its own; those under way are left
        alone.
        """
        still: dict[HttpProtocol, tuple[object, float]] = {}  # the state, and since when it is the same
        while True:
            now, before, still = monotonic(), still, {}
            for connection in tuple(self.connections):
                state = connection.idle_state()
                then, since = before.get(connection, (state, now))
                if state is None:
                    continue
                still[connection] = state, since if then == state else now
                if now - still[connection][1] >= patience:
                    connection.give_up()
            await asyncio.sleep(patience / 4)

    def _head(self, version: str, method: bytes, target: bytes, headers: Headers) -> Head:
        """Return the parsed head of a request, with its verb; `headers` are as received.

        Raises `HeadTooLarge` and what `read_head` raises.
        """
        if len(target) + sum([len(name) + len(value) for name, value in headers]) > self.context.limits.header_bytes:
            raise head_too_large(self.context.limits)
        lower = [(name.lower(), value.strip(b" \t")) for name, value in headers]
        path, fields = read_head(version, target, lower)
        http_method = "GET" if method == b"HEAD" else method.decode("ascii")
        names: Mapping[str, Any] = {}
        errors = OWN
        try:
            path = self._within(path)
            route, names = self._find(http_method, path)
            errors = route.errors
            if reason := _invalid_name(names):
                raise NotFound(reason)
            self._filter.admit(route.access, http_method, fields)
            verb = self._guarded(route)
        except UserError as error:
            verb = _refusing(error)
        origin = fields.get(b"origin")
        if origin is not None and self._filter.is_allowed(origin):
            verb = self._preflight(path, fields) if http_method == "OPTIONS" else verb
            verb = _with_cors(origin, verb, errors)
        length, encoding = fields.get(b"content-length"), fields.get(b"content-encoding", b"").strip().lower()
        return Head(
            http_method,
            path,
            lower,
            fields,
            names,
            verb,
            length=None if length is None else int(length),
            encoding=b"" if encoding == b"identity" else encoding,
            expects=version != "1.0" and fields.get(b"expect", b"").lower() == b"100-continue",
            chunked=version != "1.0",
            head_only=method == b"HEAD",
            errors=errors,
        )

    def _within(self, path: bytes) -> bytes:
        """Return a path without the server's prefix. Raises `NotFound` for one that does not begin with it."""
        prefix = self._prefix
        if prefix and not path.startswith(prefix + b"/"):
            raise NotFound(f"no such path: paths of this server begin with {prefix.decode()}/")
        return path[len(prefix) :]

    def _preflight(self, path: bytes, fields: Mapping[bytes, bytes]) -> Verb:
        """Return the verb that answers a browser's preflight request for this path (Fetch, 4.8)."""
        method = fields.get(b"access-control-request-method", b"").decode("ascii", "replace")
        try:
            self._find(method, path)
        except UserError as error:
            return _refusing(error)
        wanted = fields.get(b"access-control-request-headers", b"")
        lines = b"access-control-allow-methods: %b\r\naccess-control-max-age: %d\r\n" % (method.encode(), KEPT_SECONDS)
        if wanted:
            lines += b"access-control-allow-headers: %b\r\n" % wanted

        async def agree(context: Context, request: Request) -> Reply:
            return Reply(lines=lines)

        return agree

    def _guarded(self, route: Route) -> Verb:
        """Return the verb of a route; if it needs a token, the verb checks that of each call first."""
        if not self._guard.asks(route.access):
            return route.verb

        async def checked(context: Context, request: Request) -> Reply:
            self._guard.check(route.access, request.fields.get(b"authorization"))
            return await route.verb(context, request)

        return checked

    def _find(self, http_method: str, target: bytes) -> tuple[Route, Mapping[str, str | None]]:
        """Return the route for method and path, and the named parts of the path.

        Raises `NotFound` and `MethodNotAllowed`.
        """
        escaped = b"%2f" in target.lower()  # a proxy that guards paths would read this as another path
        path = (target if escaped else unquote_to_bytes(target)).decode("utf-8", "replace")
        others: list[str] = []
        for pattern, route in self._routes:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if http_method == route.method:
                return route, found.groupdict()
            if not _invalid_name(found.groupdict()):
                others.append(route.method)
        if others:
            raise MethodNotAllowed(others)
        raise NotFound(SLASH if escaped else "no such path: /v2/openapi.json lists all paths")


def _invalid_name(names: Mapping[str, str | None]) -> str:
    """Return why a part of a path cannot be the name of a model or a repository; "" if all can.

    It is checked after the search for the route, so that the error has the form of the API that was called.
    """
    for part in ("model", "repository"):
        name = names.get(part)
        if name is not None and not NAME.fullmatch(name):
            return SLASH if "%2f" in name.lower() else f"there is no {part} {name!r:.140}"
    return ""


def _with_cors(origin: bytes, verb: Verb, errors: Errors) -> Verb:
    """Return a verb whose replies, errors too, pages of this origin may read (Fetch, 3.2)."""
    lines = b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\nvary: Origin\r\n" % (
        origin,
        SHOWN,
    )

    async def readable(context: Context, request: Request) -> Reply:
        try:
            reply = await verb(context, request)
        except ClientGone:
            raise
        except Exception as error:  # as at the root of the request's task
            reply = reply_to(error, errors)
        return structs.replace(reply, lines=reply.lines + lines)

    return readable


def _refusing(error: UserError) -> Verb:
    async def refuse(context: Context, request: Request) -> Reply:
        raise error.with_traceback(None)  # it is raised for each request, and would keep all of their frames

    return refuse


def _lower(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)
