"""A process between client and server that only passes bytes on: the least that any ingress costs.

Run as a module with the port of a server on this machine; it writes the port that it listens on.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

HOST = "127.0.0.1"


class _End(asyncio.Protocol):
    """One end of a connection, which writes what comes to the `other`, once there is one."""

    def __init__(self, other: asyncio.Transport | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.other is not None:
            self.other.close()


class _Client(_End):
    """The end at a client; connects to the server."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self.other, _ = await loop.create_connection(lambda: _End(self.transport), HOST, self._port)
        self.other.writelines(self.early)


@contextmanager
def passing_on(port: int) -> Iterator[int]:
    """Run one before a server at a port while the block lasts, which gets the port to call instead."""
    command = [sys.executable, "-m", __name__, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Client(port), HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(int(sys.argv[1])))
