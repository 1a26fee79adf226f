"""Which method leads to which verb."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from latebind.server.rpc import about
from latebind.server.rpc.desk import Caller, Desk
from latebind.server.rpc.infer import InferStream, infer
from latebind.server.rpc.messages import HEALTH, INFERENCE, Message, request_type
from latebind.server.rpc.watch import HealthWatch
from latebind.server.rpc.wire import parse

Verb = Callable[[Desk, Message, Caller], Awaitable[Message]]
Handler = Callable[[Desk, bytes, Caller], Awaitable[bytes]]

VERBS: dict[str, Verb] = {
    "ServerLive": about.server_live,
    "ServerReady": about.server_ready,
    "ModelReady": about.model_ready,
    "ServerMetadata": about.server_metadata,
    "ModelMetadata": about.model_metadata,
    "ModelConfig": about.configuration,
    "RepositoryIndex": about.index,
    "CudaSharedMemoryStatus": about.no_cuda_regions,
    "CudaSharedMemoryUnregister": about.no_cuda_region_to_forget,
    "Check": about.check,
}


class Stream(Protocol):
    """A call of many messages."""

    async def serve(self) -> None:
        """Return when it has ended."""
        ...

    def end(self) -> None:
        """Come to an end soon: the door closes."""
        ...


STREAMS: dict[str, Callable[[Desk, Caller], Stream]] = {"ModelStreamInfer": InferStream, "Watch": HealthWatch}


def handlers(service: Message) -> dict[str, Handler]:
    """Return who answers each method of a service that takes one message and gives one."""
    return {
        method.name: _translated(VERBS.get(method.name, about.unimplemented), request_type(method))
        for method in service.methods
        if method.name not in ("ModelInfer", *STREAMS)
    } | ({"ModelInfer": infer} if service is INFERENCE else {})


def _translated(verb: Verb, request: Message) -> Handler:
    async def answer(desk: Desk, data: bytes, caller: Caller) -> bytes:
        reply: bytes = (await verb(desk, parse(request, data), caller)).SerializeToString()
        return reply

    return answer


SERVICES = (INFERENCE, HEALTH)
