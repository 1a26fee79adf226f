"""The ledger's gRPC client."""

import asyncio
from itertools import cycle
from typing import Any

import grpc
import grpc.aio

from latebind.bench.ledger.books import End, Ledger
from latebind.bench.ledger.questions import Manner, Question
from latebind.bench.ledger.wire import GRPC_METHOD, grpc_answer, grpc_request

CHANNELS = 4
ENDS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: End.REFUSED,
    grpc.StatusCode.UNAVAILABLE: End.REFUSED,
    grpc.StatusCode.DEADLINE_EXCEEDED: End.EXPIRED,
}


class RpcClient:
    """Sends requests over a few connections and tells a ledger what came of them."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]  # else all would share one connection
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        self._methods = cycle([channel.unary_unary(GRPC_METHOD) for channel in self._channels])
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Task[None]] = {}

    def send(self, question: Question) -> None:
        """Send a request."""
        task = self._loop.create_task(self._ask(question))
        self._calls[question.number] = task
        task.add_done_callback(lambda _: self._calls.pop(question.number, None))

    def give_up(self, numbers: set[int]) -> None:
        """Cancel these requests."""
        for number in numbers & self._calls.keys():
            self._calls[number].cancel()

    async def close(self) -> None:
        """Close all connections."""
        self.give_up(set(self._calls))
        for channel in self._channels:
            await channel.close()

    async def _ask(self, question: Question) -> None:
        call = next(self._methods)(grpc_request(question))
        if question.manner is Manner.LEAVES:
            self._loop.call_later(question.leaves, self._leave, question.number, call)
        try:
            data = await call
        except grpc.aio.AioRpcError as error:
            self._end(question, error)
        except asyncio.CancelledError:
            if not call.cancelled():
                call.cancel()
        else:
            self._ledger.answer(question.number, grpc_answer(question, data), self._loop.time())

    def _leave(self, number: int, call: Any) -> None:
        if not call.done():
            self._ledger.leave(number, self._loop.time())
            call.cancel()

    def _end(self, question: Question, error: grpc.aio.AioRpcError) -> None:
        end = ENDS.get(error.code())
        if end is not None:
            self._ledger.refuse(question.number, end, self._loop.time())
        else:
            self._ledger.fail(question.number, f"{error.code().name}: {error.details()}", self._loop.time())
