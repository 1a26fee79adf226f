"""`grpc.health.v1.Health/Watch`: reports the health at once, and again whenever it changes."""

import asyncio

from latebind.server.rpc.about import SERVICES, health
from latebind.server.rpc.context import Context, Streaming
from latebind.server.rpc.messages import Message, health_pb2
from latebind.server.rpc.wire import parse

SECONDS = 0.25  # between two checks


class HealthWatch:
    """One client that watches the health."""

    def __init__(self, context: Context, caller: Streaming) -> None:
        self._context = context
        self._caller = caller
        self._closing = asyncio.Event()

    async def serve(self) -> None:
        """Report the health until the door closes; the last report is that of the closing door."""
        request = parse(health_pb2.HealthCheckRequest, await self._caller.read() or b"")
        last: Message = None
        while True:
            closing = self._closing.is_set()  # read first, so that the report after it is the last one
            word = self._word(request.service)
            if word != last:
                await self._caller.write(word.SerializeToString())
                last = word
            if closing:
                return
            await self._look_again()

    def end(self) -> None:
        """Stop soon: the door closes."""
        self._closing.set()

    def _word(self, service: str) -> Message:
        if service in SERVICES:
            return health(self._context)
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)

    async def _look_again(self) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                await self._closing.wait()
        except TimeoutError:
            pass
