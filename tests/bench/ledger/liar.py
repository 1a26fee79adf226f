"""A small HTTP server that answers the ledger's questions right, but for every so many, about which it lies."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

import numpy as np

from latebind.bench.client import DATATYPES
from latebind.bench.ledger.play import Target
from latebind.bench.ledger.questions import KINDS

EVERY = 10


class Lie(StrEnum):
    NONE = "none"
    SILENCE = "silence"
    HANGS_UP = "hangs up"
    TWICE = "twice"
    ANOTHERS = "another's"
    WRONG_ID = "wrong id"
    WRONG = "wrong"
    BROKEN = "broken"
    ERROR = "error"
    REFUSAL = "refusal"


def told(lie: Lie, reply: bytes, before: bytes) -> bytes:
    """Return what is sent in place of a right reply; nothing where the connection is closed instead."""
    answer = json.loads(reply)
    wrong = json.loads(reply)
    wrong["outputs"][0]["data"][-1] += 1
    return {
        Lie.NONE: _http(200, reply),
        Lie.HANGS_UP: b"",
        Lie.TWICE: _http(200, reply) * 2,
        Lie.ANOTHERS: _http(200, before),
        Lie.WRONG_ID: _http(200, json.dumps({**answer, "id": "1000000"}).encode()),
        Lie.WRONG: _http(200, json.dumps(wrong).encode()),
        Lie.BROKEN: _http(200, reply[:-5]),
        Lie.ERROR: _http(500, b'{"error": "a bug"}'),
        Lie.REFUSAL: _http(503, b'{"error": "too much to do"}'),
    }[lie]


@asynccontextmanager
async def lying(lie: Lie) -> AsyncIterator[Target]:
    """Serve within the block."""
    count, before, clients = 0, b"", set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count, before
        try:
            while True:
                model, call = await _read(reader)
                reply, count = _reply(model, call), count + 1
                if count % EVERY:
                    said = _http(200, reply)
                    before = reply
                elif lie is Lie.SILENCE:
                    await asyncio.Event().wait()
                elif not (said := told(lie, reply, before)):
                    return
                writer.write(said)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield Target("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> tuple[str, "dict[str, object]"]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    call: dict[str, object] = json.loads(await reader.readexactly(int(headers["content-length"])))
    return first.split("/")[3], call


def _reply(model: str, call: "dict[str, object]") -> bytes:
    kind = KINDS[model]
    (tensor,) = call["inputs"]  # type: ignore[misc]  # JSON
    rows = kind.right(np.array(tensor["data"], kind.dtype).reshape(tensor["shape"]))  # type: ignore[has-type]
    data, datatype = rows.ravel().tolist(), DATATYPES[kind.dtype]
    output = {"name": kind.output, "shape": rows.shape, "datatype": datatype, "data": data}
    return json.dumps({"model_name": model, "id": call["id"], "outputs": [output]}).encode()


def _http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
