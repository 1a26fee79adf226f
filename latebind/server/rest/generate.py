"""`POST /v2/models/NAME[/versions/N]/generate` and `/generate_stream`: one row in plain JSON, its tokens as events.

The form is that of Triton's generate extension; here inputs and outputs are numbers. An output is as its row is: a list
even of one token, nested lists, or a single number if its shape is ().
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from latebind.server.calls import WAITED_HEADER, Call, with_time_waited
from latebind.server.gateway import Answer
from latebind.server.rest.body import Body
from latebind.server.rest.codec import Codec
from latebind.server.rest.context import Context
from latebind.server.rest.filling import fill
from latebind.server.rest.infer import TRACEPARENT, while_connected
from latebind.server.rest.request import JSON, Headers, Reply, Request, reply_to
from latebind.server.service import Fill

# No cache and no proxy may keep events back (the last header is nginx's).
EVENTS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


async def generate(context: Context, request: Request) -> Reply:
    """Answer one call with all of its answer."""
    codec, call, fill_rows = await _read(context, request)
    work = context.service.infer(
        codec.spec, call, fill_rows, client=request.client, version=request.version, parent=_parent(request)
    )
    return Reply(codec.encode_row(await while_connected(work, request.exchange), call), JSON)


async def generate_stream(context: Context, request: Request) -> Reply:
    """Answer one call with an event for each piece of its answer.

    What fails before the first piece is an error as usual, what fails later an event with an `error`.
    """
    codec, call, fill_rows = await _read(context, request)
    pieces = context.service.stream(codec.spec, call, fill_rows, version=request.version, parent=_parent(request))
    try:
        first = await while_connected(anext(pieces), request.exchange)
    except BaseException:
        await pieces.aclose()
        raise
    return Reply(headers=EVENTS, pieces=_events(partial(codec.encode_row, call=call), first, pieces))


async def _read(context: Context, request: Request) -> tuple[Codec, Call, Fill]:
    codec = context.codec(context.service.model(request.model, request.version))
    body = Body(request.headers, request.receive, context.limits, context.held)
    try:
        call = with_time_waited(codec.decode_row(await body.read()), request.header(WAITED_HEADER))
    finally:
        body.release()
    return codec, call, partial(fill, call, body)


def _parent(request: Request) -> str:
    return (request.header(TRACEPARENT) or b"").decode("latin-1")


async def _events(
    encode: Callable[[Answer], bytes], first: Answer, pieces: AsyncGenerator[Answer]
) -> AsyncGenerator[bytes]:
    async with aclosing(pieces):
        try:
            yield _event(encode(first))
            async for piece in pieces:
                yield _event(encode(piece))
        except Exception as error:  # the root of a reply whose head is sent: report it, and tell the client in an event
            yield _event(reply_to(error).body)


def _event(data: bytes) -> bytes:
    """Return a server-sent event (HTML standard, 9.2)."""
    return b"data: %b\n\n" % data
