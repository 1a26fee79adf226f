"""`POST /v2/models/NAME[/versions/N]/infer`: turns a body into a call, and its answer into a body."""

import asyncio
import re
from collections.abc import Awaitable
from functools import partial
from typing import Final, TypeVar

from latebind.domain.errors import InvalidRequest
from latebind.server.calls import WAITED_HEADER, Call, with_time_waited
from latebind.server.gateway import Answer
from latebind.server.rest.body import Body, ClientGone
from latebind.server.rest.codec import Codec
from latebind.server.rest.compression import SMALL, accepted, compressed
from latebind.server.rest.context import Context
from latebind.server.rest.exchange import Exchange
from latebind.server.rest.filling import fill, read_call
from latebind.server.rest.request import Reply, Request

T = TypeVar("T")

JSON_LENGTH = b"inference-header-content-length"
TRACEPARENT = b"traceparent"  # W3C Trace Context: the caller's span
VARY = (b"vary", b"accept-encoding")
# W3C Server Timing: how long the request waited and ran in the engine, in milliseconds.
TIMING: Final = b"server-timing: queue;dur=%.3f, compute;dur=%.3f\r\n"
JSON_LINES: Final = b"content-type: application/json\r\n" + TIMING
BINARY_LINES: Final = b"content-type: application/octet-stream\r\n" + TIMING + JSON_LENGTH + b": %d\r\n"
NUMBER = re.compile(rb"[0-9]{1,18}")


async def infer(context: Context, request: Request) -> Reply:
    """Answer one call."""
    spec = context.service.model(request.model, request.version)
    codec = context.codec(spec)
    length = json_bytes(request)
    body = Body(request.headers, request.receive, context.limits, context.held)
    try:
        call = with_time_waited(await read_call(codec, body, length), request.header(WAITED_HEADER))
        filled = partial(fill, call, body)
        parent = (request.header(TRACEPARENT) or b"").decode("latin-1")
        work = context.service.infer(spec, call, filled, client=request.client, version=request.version, parent=parent)
        answer = await while_connected(work, request.exchange)
    finally:
        body.release()
    reply = infer_reply(context, codec, call, answer)
    return await compressed_for(request.header(b"accept-encoding"), reply) if len(reply.body) >= SMALL else reply


def infer_reply(context: Context, codec: Codec, call: Call, answer: Answer) -> Reply:
    """Return the reply to an answered call."""
    encoded = codec.encode(answer, call, context.service.reply_parameters)
    waited, ran = context.service.milliseconds(answer)
    if encoded.json_bytes is None:
        return Reply(encoded.body, lines=JSON_LINES % (waited, ran))
    return Reply(encoded.body, lines=BINARY_LINES % (waited, ran, encoded.json_bytes))


async def while_connected(work: Awaitable[T], exchange: Exchange) -> T:
    """Await `work`; if the client hangs up first, cancel it and raise `ClientGone`."""
    exchange.watch()
    try:
        return await work
    except asyncio.CancelledError:
        if exchange.disconnected:
            raise ClientGone from None
        raise
    finally:
        exchange.unwatch()


async def compressed_for(accepts: bytes | None, reply: Reply) -> Reply:
    """Return the reply compressed for a client with this `Accept-Encoding`, if that makes it smaller.

    Only infer replies are compressed: tritonclient's asynchronous client says that it accepts gzip, but does not
    decompress other replies.
    """
    encoding = accepted(accepts)
    body = None if encoding is None else await compressed(reply.body, encoding)
    if encoding is None or body is None:
        return reply
    return Reply(body, (*reply.headers, (b"content-encoding", encoding), VARY), lines=reply.lines)


def json_bytes(request: Request) -> int | None:
    """Return the number in `Inference-Header-Content-Length`, None without that header."""
    given = [value for name, value in request.headers if name == JSON_LENGTH]
    if not given:
        return None
    if len(given) > 1 or not NUMBER.fullmatch(given[0]):
        raise InvalidRequest("the header Inference-Header-Content-Length is not one number of bytes")
    return int(given[0])
