"""Takes a body as the frontend does, without a socket: what describes the call, then every tensor into its rows."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latebind.domain.errors import LatebindError
from latebind.server.calls import Call
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.rest.infer import Codec, Context, fill, infer, read_call
from latebind.server.rest.messages import Head
from latebind.server.rest.protocol import Request
from latebind.server.service import Service
from tests.server.arithmetic import Arithmetic


@dataclass(frozen=True)
class Taken:
    call: Call
    rows: dict[str, Array]  # as the engine would find them


class Line:
    """A connection on which the next part of a body comes whenever somebody waits for it."""

    def __init__(self, context: Context, parts: Sequence[bytes] = ()) -> None:
        self.context = context
        self.held = False
        self.request: Request | None = None
        self._left = list(parts)

    def hold(self) -> None:
        self.held = True

    def read_on(self) -> None:
        self.held = False

    def go_on(self) -> None:
        self.held = False
        asyncio.get_running_loop().call_soon(self._bring)

    def _bring(self) -> None:
        assert self.request is not None
        self.request.feed(self._left.pop(0))
        if not self._left:
            self.request.complete()


def arriving(
    parts: Sequence[bytes],
    *,
    fields: Mapping[bytes, bytes] | None = None,
    length: int | None = None,
    context: Context | None = None,
    kind: type[Request] = Request,
    **names: Any,
) -> Request:
    """A request of whose body one part comes after another; its head may tell the `length`."""
    line = Line(context or Context(Service(Arithmetic()), Limits()), parts)
    head = Head("POST", b"/", [], fields or {}, names, infer, length=length)
    line.request = kind(line, head, keep_alive=True)
    return line.request


def take(codec: Codec, content: bytes, json_bytes: int | None = None, *, chunk: int = 1 << 30) -> Taken:
    """Take a body twice, told and not told how long it is: raises what the frontend raises, and the same both times."""
    (told, error), (untold, other) = (_attempt(codec, content, json_bytes, chunk, told) for told in (True, False))
    assert type(error) is type(other)
    if error is not None:
        raise error
    assert told is not None
    assert untold is not None
    for name, rows in told.rows.items():
        np.testing.assert_array_equal(untold.rows[name], rows)
    return told


def _attempt(
    codec: Codec, content: bytes, json_bytes: int | None, chunk: int, told: bool
) -> tuple[Taken | None, Exception | None]:
    parts = [content[start : start + chunk] for start in range(0, len(content), chunk)] or [b""]
    fields = {} if json_bytes is None else {b"inference-header-content-length": b"%d" % json_bytes}

    async def attempt() -> Taken:
        request = arriving(parts, fields=fields, length=len(content) if told else None)
        call = await read_call(codec, request)
        inputs = codec.spec.inputs
        rows = {tensor.name: np.zeros((call.rows, *tensor.shape_of(call.dims)), tensor.dtype) for tensor in inputs}
        await fill(call, request, {name: [array[i, ...] for i in range(call.rows)] for name, array in rows.items()})
        return Taken(call, rows)

    try:
        return asyncio.run(attempt()), None
    except LatebindError as error:
        return None, error
