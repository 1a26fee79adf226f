"""A closed loop of clients in Python, for machines without wrk and h2load. It takes more of the cores than those."""

import asyncio
import time

from latebind.bench.client import READ_BYTES, Reply
from latebind.bench.ledger.questions import Protocol
from research.peers.calls import Call
from research.peers.processes import Served


async def closed_loop(served: Served, call: Call, *, clients: int, seconds: float) -> tuple[list[float], int]:
    """Send a call from so many clients, each after its answer to the one before; return seconds and how many failed."""
    client = _grpc_client if call.protocol is Protocol.GRPC else _http_client
    took: list[float] = []
    until = time.perf_counter() + seconds
    failed = await asyncio.gather(*(client(served, call, until, took) for _ in range(clients)))
    return took, sum(failed)


async def _http_client(served: Served, call: Call, until: float, took: list[float]) -> int:
    """Return how many calls failed; seconds of the others are added."""
    headers = {"Host": "127.0.0.1", "Content-Length": str(len(call.data)), **call.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    data = f"POST {call.path} HTTP/1.1\r\n{lines}\r\n".encode() + call.data
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    failed = 0
    while (begun := time.perf_counter()) < until:
        writer.write(data)
        if await _status(reader) == 200:
            took.append(time.perf_counter() - begun)
        else:
            failed += 1
    writer.close()
    return failed


async def _status(reader: asyncio.StreamReader) -> int:
    reply = Reply()
    while not reply.whole:
        data = await reader.read(READ_BYTES)
        if not data:
            raise ConnectionError("a server closed the connection before it had answered")
        reply.feed(data)
    return reply.status


async def _grpc_client(served: Served, call: Call, until: float, took: list[float]) -> int:
    import grpc  # noqa: PLC0415  (grpc is optional)
    import grpc.aio  # noqa: PLC0415

    failed, message = 0, call.data[5:]
    options = [("grpc.use_local_subchannel_pool", 1)]  # else all clients would share one connection
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc}", options=options) as channel:
        method = channel.unary_unary(call.path)
        while (begun := time.perf_counter()) < until:
            try:
                await method(message)
                took.append(time.perf_counter() - begun)
            except grpc.aio.AioRpcError:
                failed += 1
    return failed
