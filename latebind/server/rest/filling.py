"""Copies an infer call's body into slots: JSON first, then each chunk of binary data once, as it arrives."""

from collections.abc import Mapping, Sequence

import numpy as np

from latebind.domain.errors import InvalidRequest
from latebind.server.calls import Call
from latebind.server.gateway import Array
from latebind.server.rest.body import Body
from latebind.server.rest.codec import Codec, wrong_size


async def read_call(codec: Codec, body: Body, json_bytes: int | None) -> Call:
    """Read the call's description: the first `json_bytes` of the body (None: the whole body, 0: no JSON).

    Raises what `Body` and `Codec` raise.
    """
    if json_bytes is None:
        return codec.decode(await body.read())
    if json_bytes == 0:
        await body.available()  # a client that has sent nothing yet gets no slots
        return codec.decode_raw(await body.measure())
    if body.size is not None and json_bytes > body.size:
        raise _no_json(json_bytes, body.size)
    codec.check_json_size(json_bytes)
    text = await body.read(json_bytes)
    if len(text) < json_bytes:
        raise _no_json(json_bytes, len(text))
    return codec.decode(text, None if body.size is None else body.size - json_bytes)


async def fill(call: Call, body: Body, rows: Mapping[str, Sequence[Array]]) -> None:
    """Write the inputs into `rows`, those of a claim, and check what came as bytes. Raises `InvalidRequest`."""
    inputs = [(given, given.places(rows)) for given in call.inputs]
    for given, places in inputs:
        if given.place is not None:
            await given.place.read_into(places)
        elif given.rows is None:
            await _take(call, body, places)
        else:
            given.write(places)
    if await body.available():
        raise wrong_size(call.size, "more")
    for given, places in inputs:
        if given.rows is None:
            given.tensor.check(places)


async def _take(call: Call, body: Body, places: Sequence[Array]) -> None:
    """Fill the places with the next bytes of the body."""
    for place in places:
        if not await body.read_into(place.reshape(-1).view(np.uint8).data):
            raise wrong_size(call.size, body.arrived)


def _no_json(said: int, size: int) -> InvalidRequest:
    return InvalidRequest(f"the JSON part is said to have {said} bytes, but the body has {size}")
