"""The HTTP application: which path leads to which verb, who is let in, and exactly one reply to each request."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from latebind.domain.config import FrontendConfig, is_loopback
from latebind.domain.errors import NotFound, Unavailable
from latebind.repository.directory import NAME
from latebind.server.access import Access, Guard
from latebind.server.calls import CLIENT_HEADER
from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.limits import Foreign, Limits, MethodNotAllowed
from latebind.server.rest import about, openapi
from latebind.server.rest.infer import Context, generate, generate_stream, infer
from latebind.server.rest.request import ClientGone, Reply, Request, error_reply, reply_to
from latebind.server.service import Service

Verb = Callable[[Context, Request], Coroutine[Any, Any, Reply]]
Route = tuple[re.Pattern[str], str, Access, Verb]

NAMED = rf"(?P<model>{NAME.pattern})"
MODEL_ALONE = rf"/v2/models/{NAMED}"
MODEL = MODEL_ALONE + r"(?:/versions/(?P<version>[0-9]{1,18}))?"
REPOSITORY = rf"/v2/repository(?:/(?P<repository>{NAME.pattern}))?"
MEMORY = "/v2/(?P<kind>system|cuda)sharedmemory"
REGION = r"/region/(?P<region>[^/]+)"
ROUTES: tuple[Route, ...] = tuple(
    (re.compile(path), method, access, verb)
    for path, method, access, verb in (
        (MODEL + "/infer", "POST", Access.ORDINARY, infer),
        (MODEL + "/generate", "POST", Access.ORDINARY, generate),
        (MODEL + "/generate_stream", "POST", Access.ORDINARY, generate_stream),
        ("/v2/health/live", "GET", Access.OPEN, about.live),
        ("/v2/health/ready", "GET", Access.OPEN, about.ready),
        ("/v2", "GET", Access.ORDINARY, about.server_metadata),
        (r"/v2/openapi\.json", "GET", Access.ORDINARY, openapi.description),
        ("/v2/models", "GET", Access.ORDINARY, about.models),
        ("/v2/models/stats", "GET", Access.ORDINARY, about.statistics),  # before the model of this name
        (MODEL + "/stats", "GET", Access.ORDINARY, about.statistics),
        (MODEL + "/ready", "GET", Access.ORDINARY, about.model_ready),
        (MODEL + "/config", "GET", Access.ORDINARY, about.configuration),
        (MODEL, "GET", Access.ORDINARY, about.model_metadata),
        (REPOSITORY + "/index", "POST", Access.ORDINARY, about.index),
        (REPOSITORY + f"/models/{NAMED}/load", "POST", Access.MUTATING, about.load),
        (REPOSITORY + f"/models/{NAMED}/unload", "POST", Access.MUTATING, about.unload),
        ("/v2/traces", "GET", Access.ORDINARY, about.traces),
        ("/v2/trace/setting", "GET", Access.ORDINARY, about.trace_settings),
        ("/v2/trace/setting", "POST", Access.MUTATING, about.update_trace_settings),
        (MODEL_ALONE + "/trace/setting", "GET", Access.ORDINARY, about.trace_settings),
        (MODEL_ALONE + "/trace/setting", "POST", Access.MUTATING, about.update_trace_settings),
        ("/v2/logging", "GET", Access.ORDINARY, about.log_settings),
        ("/v2/logging", "POST", Access.MUTATING, about.update_log_settings),
        (MEMORY + f"(?:{REGION})?/status", "GET", Access.ORDINARY, about.regions),
        (MEMORY + f"{REGION}/register", "POST", Access.MUTATING, about.register),
        (MEMORY + f"(?:{REGION})?/unregister", "POST", Access.MUTATING, about.unregister),
        ("/metrics", "GET", Access.ORDINARY, about.metrics),
    )
)
# The page is no part of the protocol, and `rest/openapi` does not describe it. Its files tell nothing.
PAGE: tuple[Route, ...] = tuple(
    (re.compile(path), "GET", access, verb)
    for path, access, verb in (
        ("/dashboard", Access.OPEN, about.to_the_page),
        ("/dashboard/", Access.OPEN, about.page),
        ("/dashboard/data(?:/(?P<since>[0-9]{1,15}))?", Access.ORDINARY, about.figures),
        ("/dashboard/picture", Access.ORDINARY, about.picture),
        ("/dashboard/(?P<file>[a-z]+[.][a-z]+)", Access.OPEN, about.file),
    )
)

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
OF_THIS_SITE = (b"same-origin", b"none")  # `same-site` is another port of this host, or another name of its domain
FOREIGN_PAGE = "the request comes from a page of another site, which may not call this server"


class RequestFilter:
    """Decides which HTTP requests are let in, by token, Host and Origin.

    A page on any site can make a browser call a server on loopback, and can read the answers once it points a host name
    of its own there (DNS rebinding). So on loopback the Host must be a loopback name, the address listened on or one of
    `allow_hosts`. If `allow_hosts` are given, this applies to other addresses too. On all addresses an Origin must be
    the host that is called or one of `allow_hosts`; a call without one that may change something or use a model (no
    `GET`) must not come from another site by what the browser says of it (`Sec-Fetch-Site`). Health checks are always
    let in.
    """

    def __init__(self, config: FrontendConfig, guard: Guard) -> None:
        self._guard = guard
        self._asks = frozenset([access for access in Access if guard.asks(access)])
        self._any_host = not (is_loopback(config.host) or config.allow_hosts)
        address = f"[{config.host}]" if ":" in config.host else config.host
        self._names = _lower((*LOOPBACK_NAMES, address, *config.allow_hosts))
        self._origins = _lower(config.allow_hosts)

    def admit(self, access: Access, method: str, fields: Mapping[bytes, bytes]) -> None:
        """Return if a call of this kind may go on, else raise `Foreign` or `Denied`.

        Of what is read here, each header is there once at most (`rest/request.py`).
        """
        if access is Access.OPEN:
            return
        host, origin = fields.get(b"host"), fields.get(b"origin")
        if host is not None and not self._any_host and host not in self._names:
            self._check_host(host.lower())
        if origin is not None:
            # The scheme may differ, because a proxy may add TLS.
            authority = origin.lower().partition(b"://")[2]
            if not authority or (authority != (host or b"").lower() and authority not in self._origins):
                raise Foreign(FOREIGN_PAGE)
        elif method != "GET" and fields.get(b"sec-fetch-site", b"none").lower() not in OF_THIS_SITE:
            raise Foreign(FOREIGN_PAGE)
        if self._asks and access in self._asks:  # without tokens, the most usual, no hash of a member is asked for
            self._guard.check(access, fields.get(b"authorization"))

    def _check_host(self, host: bytes) -> None:
        name, _, port = host.rpartition(b":")
        if host not in self._names and not (port.isdigit() and name in self._names):
            raise Foreign("the Host of the request is none of this server's: name it with --allow-host")


class RestApp:
    """Answers requests for the models behind `service` with the verbs of `routes`.

    `behind_ingress`: an ingress sends the client's address in a header.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits,
        request_filter: RequestFilter,
        dashboard: Dashboard | None = None,
        *,
        routes: Sequence[Route] = (*ROUTES, *PAGE),
        behind_ingress: bool = False,
    ) -> None:
        self._context = Context(service, limits, dashboard)
        self._behind_ingress = behind_ingress
        self._request_filter = request_filter
        self._routes = routes
        self._route_of = lru_cache(256)(self._find)  # clients call the same few paths; none is longer than a head

    @property
    def replies(self) -> Counter[int]:
        """How many replies were made, by status."""
        return self._context.replies

    async def __call__(self, request: Request) -> Reply | None:
        """Return the reply to one request, whatever happens; None if its client has gone."""
        try:
            reply = await self._verb(request)(self._context, request)
        except ClientGone:
            return None
        except asyncio.CancelledError:
            if request.disconnected:
                return None
            # The time to drain is over; the task ends with this reply.
            reply = error_reply(Unavailable("the server shut down before it had the answer"))
        except Exception as error:  # the root of the request's task: report, answer, go on serving
            reply = reply_to(error)
        if not request.answered:  # the connection may have refused the rest of it meanwhile
            self._context.replies[reply.status] += 1
        return reply

    def _verb(self, request: Request) -> Verb:
        """Return the verb for path and method. Raises `NotFound` and, for who may not have it, what `admit` raises."""
        access, verb, names = self._route_of(request.method, request.target)
        self._request_filter.admit(access, request.method, request.fields)
        if self._behind_ingress:
            request.client = request.fields.get(CLIENT_HEADER, b"").decode("latin-1")
        request.names = names
        return verb

    def _find(self, asked: str, target: bytes) -> tuple[Access, Verb, Mapping[str, str | None]]:
        """Return who may have the verb for path and method, the verb, and the named parts of the path."""
        if b"%" in target:
            if b"%2f" in target.lower():  # a proxy that guards paths would read this as another path
                raise NotFound("'%2F' is not accepted in a path; send '/'")
            target = unquote_to_bytes(target)
        path = target.decode("utf-8", "replace")
        others: list[str] = []
        for pattern, method, access, verb in self._routes:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if asked == method:
                return access, verb, found.groupdict()
            others.append(method)
        if others:
            raise MethodNotAllowed(others)
        raise NotFound("no such path: /v2/openapi.json lists those that there are")


def _lower(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)
