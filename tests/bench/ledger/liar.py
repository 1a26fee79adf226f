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


class Liar:
    def __init__(self, lie: Lie) -> None:
        self._lie = lie
        self._count = 0
        self._before = b""
        self.forever = asyncio.Event()
        self.clients: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                model, call = await _read(reader)
                reply = _reply(model, call)
                self._count += 1
                if self._count % EVERY:
                    writer.write(_http(200, reply))
                    self._before = reply
                elif not await self._tell(reply, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _tell(self, reply: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer otherwise than one should; return whether the connection stays."""
        match self._lie:
            case Lie.SILENCE:
                await self.forever.wait()
                return False
            case Lie.HANGS_UP:
                return False
            case Lie.TWICE:
                writer.write(_http(200, reply) * 2)
            case Lie.ANOTHERS:
                writer.write(_http(200, self._before))
            case Lie.WRONG_ID:
                writer.write(_http(200, json.dumps({**json.loads(reply), "id": "1000000"}).encode()))
            case Lie.WRONG:
                answer = json.loads(reply)
                answer["outputs"][0]["data"][-1] += 1
                writer.write(_http(200, json.dumps(answer).encode()))
            case Lie.BROKEN:
                writer.write(_http(200, reply[:-5]))
            case Lie.ERROR:
                writer.write(_http(500, b'{"error": "a bug"}'))
            case Lie.REFUSAL:
                writer.write(_http(503, b'{"error": "too much to do"}'))
            case Lie.NONE:
                writer.write(_http(200, reply))
        return True


@asynccontextmanager
async def lying(lie: Lie) -> AsyncIterator[Target]:
    liar = Liar(lie)
    server = await asyncio.start_server(liar.accept, "127.0.0.1", 0)
    yield Target("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()
    for client in liar.clients:
        client.cancel()
    await asyncio.gather(*liar.clients, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> tuple[str, "dict[str, object]"]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    call: dict[str, object] = json.loads(await reader.readexactly(int(headers["content-length"])))
    return first.split("/")[3], call


def _reply(model: str, call: "dict[str, object]") -> bytes:
    kind = KINDS[model]
    (tensor,) = call["inputs"]  # type: ignore[misc]  # JSON
    rows = kind.right(np.array(tensor["data"], kind.dtype).reshape(tensor["shape"]))  # type: ignore[has-type]
    output = {
        "name": kind.output,
        "shape": rows.shape,
        "datatype": DATATYPES[kind.dtype],
        "data": rows.ravel().tolist(),
    }
    return json.dumps({"model_name": model, "id": call["id"], "outputs": [output]}).encode()


def _http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
