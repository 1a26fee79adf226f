"""The protocol's HTTP face: an ASGI application that finds the verb, reads the body, and writes reply or error.

A request's way: `__call__` -> `_reply` (route) -> a verb of `Verbs` -> `Codec` -> `Service`, which has `fill` take the
body's tensors to their slots -> `Codec` -> the reply.
"""

import asyncio
import logging
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from typing import Any, TypeVar

import msgspec
import orjson

from latebind.domain.errors import (
    Expired,
    InvalidRequest,
    LatebindError,
    NotFound,
    Refused,
    StepFailed,
    TooLarge,
    Unavailable,
    UserError,
)
from latebind.domain.model import ModelSpec
from latebind.server.body import Body, ClientGone, Message, Receive
from latebind.server.bounded import CONNECTION, Connection
from latebind.server.codec import Codec
from latebind.server.description import model_config
from latebind.server.filling import fill, read_call
from latebind.server.limits import Limits, MethodNotAllowed
from latebind.server.metrics import prometheus_text
from latebind.server.service import Service

Scope = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]
T = TypeVar("T")

log = logging.getLogger(__name__)

JSON: Headers = ((b"content-type", b"application/json"),)
BINARY: Headers = ((b"content-type", b"application/octet-stream"),)
TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
RETRY: Headers = ((b"retry-after", b"1"),)
JSON_LENGTH = b"inference-header-content-length"
TIMING = b"server-timing"  # W3C Server Timing: how long the request waited and ran in the engine
NUMBER = re.compile(rb"[0-9]{1,18}")
# Errors whose message was written for clients; of all others only a request id leaves the house.
FOR_CLIENTS = (UserError, Refused, Expired, StepFailed, Unavailable)


class Request(msgspec.Struct, frozen=True):
    """What a verb may look at. A `Struct`, like `Reply`, because it is made three times as fast as a dataclass."""

    scope: Scope
    receive: Receive
    model: str = ""
    version: str | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers, names in lower case."""
        headers: list[tuple[bytes, bytes]] = self.scope["headers"]
        return headers

    @property
    def client(self) -> str:
        """The address that the call came from."""
        address: tuple[str, int] | None = self.scope.get("client")
        return address[0] if address else ""

    @property
    def connection(self) -> Connection | None:
        """The connection, where the server tells of it."""
        connection: Connection | None = self.scope.get("extensions", {}).get(CONNECTION)
        return connection


class Reply(msgspec.Struct, frozen=True):
    """What goes back."""

    body: bytes = b""
    headers: Headers = ()
    status: int = 200


class IndexRequest(msgspec.Struct):
    """The JSON of a repository index call. All models that are served are ready, so `ready` selects nothing."""

    ready: bool = False


class Verbs:
    """One method for each route: HTTP in, the service's verb, HTTP out."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self._service = service
        self._limits = limits
        self._codecs: dict[str, Codec] = {}
        self.replies: Counter[int] = Counter()

    async def infer(self, request: Request) -> Reply:
        """`POST /v2/models/NAME[/versions/N]/infer`."""
        spec = self._service.model(request.model, request.version)
        codec = self._codec(spec)
        json_bytes = self._json_bytes(request)
        body = Body(request.headers, request.receive, self._limits)
        call = await read_call(codec, body, json_bytes)
        into_slots = partial(fill, call, body)
        work = self._service.infer(spec, call.rows, into_slots, timeout=call.timeout, client=request.client)
        answer = await while_connected(work, request.connection)
        encoded = codec.encode(answer, call, self._service.told(spec, answer))
        timing = (TIMING, b"queue;dur=%.3f, compute;dur=%.3f" % self._service.milliseconds(answer))
        if encoded.json_bytes is None:
            return Reply(encoded.body, (*JSON, timing))
        return Reply(encoded.body, (*BINARY, timing, (JSON_LENGTH, b"%d" % encoded.json_bytes)))

    async def server_metadata(self, request: Request) -> Reply:
        """`GET /v2`."""
        return _json(self._service.server_metadata())

    async def live(self, request: Request) -> Reply:
        """`GET /v2/health/live`."""
        return _health(self._service.live())

    async def ready(self, request: Request) -> Reply:
        """`GET /v2/health/ready`."""
        return _health(self._service.ready())

    async def model_ready(self, request: Request) -> Reply:
        """`GET /v2/models/NAME[/versions/N]/ready`."""
        return _health(self._service.model_ready(request.model, request.version))

    async def model_metadata(self, request: Request) -> Reply:
        """`GET /v2/models/NAME[/versions/N]`."""
        return _json(self._codec(self._service.model(request.model, request.version)).metadata())

    async def model_config(self, request: Request) -> Reply:
        """`GET /v2/models/NAME[/versions/N]/config`."""
        return _json(model_config(self._service.model(request.model, request.version), self._service.models()))

    async def models(self, request: Request) -> Reply:
        """`GET /v2/models`, as KServe has it."""
        return _json({"models": [spec.name for spec in self._service.models()]})

    async def index(self, request: Request) -> Reply:
        """`POST /v2/repository/index`, with an empty body or an object."""
        body = await Body(request.headers, request.receive, self._limits).read()
        if len(body) > self._limits.header_bytes:
            raise TooLarge(f"the body of an index call has {len(body)} bytes: {{}} is enough")
        try:
            msgspec.json.decode(body or b"{}", type=IndexRequest)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the JSON is not an index request: {error}") from None
        return _json(self._service.index())

    async def metrics(self, request: Request) -> Reply:
        """`GET /metrics`, for Prometheus."""
        snapshot = await self._service.metrics()
        versions, adaptation = self._service.versions(), self._service.adaptation()
        return Reply(prometheus_text(snapshot, versions=versions, replies=self.replies, adaptation=adaptation), TEXT)

    def _codec(self, spec: ModelSpec) -> Codec:
        codec = self._codecs.get(spec.name)
        if codec is None or codec.spec is not spec:
            codec = self._codecs[spec.name] = Codec(spec, self._limits)
        return codec

    def _json_bytes(self, request: Request) -> int | None:
        """Return what `Inference-Header-Content-Length` says, None without it."""
        given = [value for name, value in request.headers if name == JSON_LENGTH]
        if not given:
            return None
        if len(given) > 1 or not NUMBER.fullmatch(given[0]):
            raise InvalidRequest("the header Inference-Header-Content-Length is not one number of bytes")
        return int(given[0])


Verb = Callable[[Verbs, Request], Coroutine[Any, Any, Reply]]
MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
ROUTES: tuple[tuple[re.Pattern[str], str, Verb], ...] = tuple(
    (re.compile(path), method, verb)
    for path, method, verb in (
        (MODEL + "/infer", "POST", Verbs.infer),
        ("/v2/health/live", "GET", Verbs.live),
        ("/v2/health/ready", "GET", Verbs.ready),
        ("/v2", "GET", Verbs.server_metadata),
        ("/v2/models", "GET", Verbs.models),
        (MODEL + "/ready", "GET", Verbs.model_ready),
        (MODEL + "/config", "GET", Verbs.model_config),
        (MODEL, "GET", Verbs.model_metadata),
        ("/v2/repository/index", "POST", Verbs.index),
        ("/metrics", "GET", Verbs.metrics),
    )
)


class RestApp:
    """The ASGI application."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self._verbs = Verbs(service, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, whatever happens; nothing is sent to a client that has gone."""
        try:
            reply = await self._reply(scope, receive)
        except ClientGone:
            return
        except asyncio.CancelledError:  # the time to drain is over; the task ends with this reply
            reply = _error(Unavailable("the server shut down before it had the answer"))
        except FOR_CLIENTS as error:
            reply = _error(error)
        except Exception as error:  # the root of the request's task: report, answer, go on serving
            reply = _internal(error)
        self._verbs.replies[reply.status] += 1
        length = (b"content-length", b"%d" % len(reply.body))
        await send({"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, length]})
        await send({"type": "http.response.body", "body": reply.body})

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        """Find the verb for path and method and let it answer."""
        path: str = scope["path"]
        for pattern, method, verb in ROUTES:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if scope["method"] != method:
                raise MethodNotAllowed(f"this path takes {method}")
            return await verb(self._verbs, Request(scope, receive, **found.groupdict()))
        raise NotFound("there is no such path")


async def while_connected(work: Coroutine[Any, Any, T], connection: Connection | None) -> T:
    """Await `work`, but cancel it and raise `ClientGone` when the client hangs up first.

    Without a `connection` to watch (under another ASGI server) the work goes on to its end.
    """
    if connection is None:
        return await work
    connection.watch()
    try:
        return await work
    except asyncio.CancelledError:
        if connection.lost:
            raise ClientGone from None
        raise
    finally:
        connection.unwatch()


def _json(value: object) -> Reply:
    return Reply(orjson.dumps(value), JSON)


def _health(well: bool) -> Reply:
    return Reply(status=200 if well else 400)


def _error(error: LatebindError) -> Reply:
    headers = (*JSON, *RETRY) if error.http_status == 503 else JSON
    text = str(error).encode("utf-8", "replace").decode()  # orjson takes no lone surrogates
    return Reply(orjson.dumps({"error": text}), headers, error.http_status)


def _internal(error: Exception) -> Reply:
    """Log what happened under a fresh id and tell the client the id alone."""
    request_id = secrets.token_hex(8)
    log.error("request %s failed", request_id, exc_info=error)
    return Reply(orjson.dumps({"error": f"internal error, request id {request_id}"}), JSON, 500)
