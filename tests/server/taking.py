"""Takes a body as the frontend does, without HTTP: what describes the call first, then every tensor into its rows."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from latebind.domain.errors import LatebindError
from latebind.server.calls import Call
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.rest.infer import Codec, fill, read_call
from latebind.server.rest.request import Body, Request


@dataclass(frozen=True)
class Taken:
    call: Call
    rows: dict[str, Array]  # as the engine would find them


class Arriving:
    """A request of whose body one part comes after another."""

    def __init__(self, parts: list[bytes], fields: Mapping[bytes, bytes]) -> None:
        self.fields = fields
        self._parts = parts

    async def receive(self) -> tuple[bytes, bool]:
        first, *self._parts = self._parts
        return first, bool(self._parts)


def body_of(content: bytes, *, chunk: int = 1 << 30, told: bool = True, limits: Limits | None = None) -> Body:
    """A body that arrives in chunks of so many bytes; its headers may tell its size."""
    parts = [content[start : start + chunk] for start in range(0, len(content), chunk)] or [b""]
    fields = {b"content-length": b"%d" % len(content)} if told else {}
    return Body(cast(Request, Arriving(parts, fields)), limits or Limits())


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
    async def attempt() -> Taken:
        body = body_of(content, chunk=chunk, told=told)
        call = await read_call(codec, body, json_bytes)
        inputs = codec.spec.inputs
        rows = {tensor.name: np.zeros((call.rows, *tensor.shape), tensor.dtype) for tensor in inputs}
        await fill(call, body, {name: [array[i, ...] for i in range(call.rows)] for name, array in rows.items()})
        return Taken(call, rows)

    try:
        return asyncio.run(attempt()), None
    except LatebindError as error:
        return None, error
