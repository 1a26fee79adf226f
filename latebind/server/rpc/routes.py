"""Which method leads to which verb, and what a caller has to show for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from latebind.server.access import Access
from latebind.server.rpc import about, regions, settings
from latebind.server.rpc.context import Caller, Context, Streaming
from latebind.server.rpc.infer import InferStream, infer
from latebind.server.rpc.messages import HEALTH, INFERENCE, Message, request_type
from latebind.server.rpc.watch import HealthWatch
from latebind.server.rpc.wire import parse

Verb = Callable[[Context, Message, Caller], Awaitable[Message]]
Answer = Callable[[Context, bytes, Caller], Awaitable[bytes]]

VERBS: dict[str, Verb] = {
    "ServerLive": about.server_live,
    "ServerReady": about.server_ready,
    "ModelReady": about.model_ready,
    "ServerMetadata": about.server_metadata,
    "ModelMetadata": about.model_metadata,
    "ModelConfig": about.configuration,
    "ModelStatistics": about.statistics,
    "RepositoryIndex": about.index,
    "RepositoryModelLoad": about.load,
    "RepositoryModelUnload": about.unload,
    "SystemSharedMemoryStatus": regions.status,
    "SystemSharedMemoryRegister": regions.register,
    "SystemSharedMemoryUnregister": regions.unregister,
    "CudaSharedMemoryStatus": regions.cuda_status,
    "CudaSharedMemoryRegister": regions.cuda_register,
    "CudaSharedMemoryUnregister": regions.cuda_unregister,
    "TraceSetting": settings.traces,
    "LogSettings": settings.log,
    "Check": about.check,
}
HEALTHS = frozenset({"ServerLive", "ServerReady", "Check", "Watch"})
READS = frozenset(
    {
        "ModelInfer",
        "ModelStreamInfer",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "ModelConfig",
        "ModelStatistics",
        "RepositoryIndex",
        "SystemSharedMemoryStatus",
        "CudaSharedMemoryStatus",
    }
)


class Stream(Protocol):
    """A call with a stream of requests and responses."""

    async def serve(self) -> None:
        """Serve it until it ends."""
        ...

    def end(self) -> None:
        """Come to an end soon: the door closes."""
        ...


STREAMS: dict[str, Callable[[Context, Streaming], Stream]] = {"ModelStreamInfer": InferStream, "Watch": HealthWatch}


def access(method: str) -> Access:
    """Return what a caller has to show for a method; methods not listed above count as changing something."""
    if method in HEALTHS:
        return Access.OPEN
    return Access.ORDINARY if method in READS else Access.MUTATING


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service: `answer` serves a single call, or `stream` makes what serves a stream."""

    path: str
    access: Access
    answer: Answer | None = None
    stream: Callable[[Context, Streaming], Stream] | None = None


def methods() -> dict[str, Method]:
    """Return all methods of all services, by path."""
    found = [_method(service, method) for service in (INFERENCE, HEALTH) for method in service.methods]
    return {method.path: method for method in found}


def _method(service: Message, method: Message) -> Method:
    path, needed = f"/{service.full_name}/{method.name}", access(method.name)
    if method.name in STREAMS:
        return Method(path, needed, stream=STREAMS[method.name])
    if method.name == "ModelInfer":
        return Method(path, needed, infer)
    return Method(path, needed, _translated(VERBS.get(method.name, about.unimplemented), request_type(method)))


def _translated(verb: Verb, request: Message) -> Answer:
    async def answer(context: Context, data: bytes, caller: Caller) -> bytes:
        reply: bytes = (await verb(context, parse(request, data), caller)).SerializeToString()
        return reply

    return answer
