"""The gRPC verbs beside those that ask a model, and which method leads to which verb and what a caller has to show."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from latebind.domain.errors import NotFound, Unsupported
from latebind.server.access import Access
from latebind.server.description import metadata, model_config
from latebind.server.rpc.infer import Caller, Context, InferStream, Streaming, infer, parameter, parse
from latebind.server.rpc.messages import HEALTH, INFERENCE, Message, from_json, health_pb2, message_class
from latebind.server.shared_memory import CudaRegions, Registration

Json = Mapping[str, object]
Verb = Callable[[Context, Message], Awaitable[Json]]
Answer = Callable[[Context, bytes, Caller], Awaitable[bytes]]

SERVICES = ("", INFERENCE.full_name)  # that health checks may ask for
WATCH_SECONDS = 0.25  # between two checks of the health that is watched
CUDA = CudaRegions()


# Verbs: each returns its response in JSON's form ----------------------------------------------------------------------


async def _server_live(context: Context, request: Message) -> Json:
    del request
    return {"live": context.service.live()}


async def _server_ready(context: Context, request: Message) -> Json:
    del request
    return {"ready": context.service.ready()}


async def _model_ready(context: Context, request: Message) -> Json:
    """A model that does not exist is not ready."""
    try:
        return {"ready": context.service.model_ready(request.name, request.version or None)}
    except NotFound:
        return {"ready": False}


async def _server_metadata(context: Context, request: Message) -> Json:
    del request
    return context.service.server_metadata()


async def _model_metadata(context: Context, request: Message) -> Json:
    return metadata(context.service.model(request.name, request.version or None))


async def _model_config(context: Context, request: Message) -> Json:
    spec = context.service.model(request.name, request.version or None)
    return {"config": model_config(spec, context.service.models(), max_rows=context.limits.max_rows)}


async def _statistics(context: Context, request: Message) -> Json:
    found, _ = await context.service.statistics(request.name or None, request.version or None)
    return found


async def _index(context: Context, request: Message) -> Json:
    return {"models": context.service.index(ready=request.ready)}


async def _load(context: Context, request: Message) -> Json:
    await context.service.load(request.model_name, _given(request.parameters))
    return {}


async def _unload(context: Context, request: Message) -> Json:
    dependents = _given(request.parameters).get("unload_dependents", False) is True
    await context.service.unload(request.model_name, unload_dependents=dependents)
    return {}


async def _regions(context: Context, request: Message) -> Json:
    return {"regions": {str(region["name"]): region for region in context.service.regions.status(request.name or None)}}


async def _register(context: Context, request: Message) -> Json:
    context.service.regions.register(request.name, Registration(request.key, request.byte_size, request.offset))
    return {}


async def _unregister(context: Context, request: Message) -> Json:
    context.service.regions.unregister(request.name or None)
    return {}


async def _cuda_regions(context: Context, request: Message) -> Json:
    del context
    CUDA.status(request.name or None)
    return {}


async def _cuda_register(context: Context, request: Message) -> Json:
    del context
    CUDA.register(request.name)
    return {}


async def _cuda_unregister(context: Context, request: Message) -> Json:
    """Some clients call it whatever they use."""
    del context
    CUDA.unregister(request.name or None)
    return {}


async def _trace_settings(context: Context, request: Message) -> Json:
    """Of one model where the request names one; changed first if the request has any."""
    name = request.model_name or None
    given = {key: list(value.value) for key, value in request.settings.items()}
    held = context.service.update_trace_settings(given, name) if given else context.service.trace_settings(name)
    values = {key: value if isinstance(value, list) else [str(value)] for key, value in held.items()}
    return {"settings": {key: {"value": value} for key, value in values.items()}}


async def _log_settings(context: Context, request: Message) -> Json:
    given = _given(request.settings)
    held = context.service.update_log_settings(given) if given else context.service.log_settings()
    fields = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {key: {fields[type(value)]: value} for key, value in held.items()}}


async def _check(context: Context, request: Message) -> Json:
    if request.service not in SERVICES:
        raise NotFound(f"there is no service {request.service!r:.140}")
    return {"status": _health(context)}


async def _unsupported(context: Context, request: Message) -> Json:
    del context
    raise Unsupported(f"{request.DESCRIPTOR.name.removesuffix('Request')} is not served")


def _given(parameters: Mapping[str, Message]) -> dict[str, object]:
    return {name: parameter(value) for name, value in parameters.items()}


def _health(context: Context) -> str:
    return "SERVING" if context.service.ready() else "NOT_SERVING"


class HealthWatch:
    """`grpc.health.v1.Health/Watch`: tells one client the health at once, and again whenever it changes."""

    def __init__(self, context: Context, caller: Streaming) -> None:
        self._context = context
        self._caller = caller
        self._closing = asyncio.Event()

    async def serve(self) -> None:
        """Report the health until the server closes; the last report is that of the closing server."""
        request = parse(health_pb2.HealthCheckRequest, await self._caller.read() or b"")
        last = ""
        while True:
            closing = self._closing.is_set()  # read first, so that the report after it is the last one
            status = _health(self._context) if request.service in SERVICES else "SERVICE_UNKNOWN"
            if status != last:
                response = from_json({"status": status}, health_pb2.HealthCheckResponse())
                await self._caller.write(response.SerializeToString())
                last = status
            if closing:
                return
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._closing.wait()
            except TimeoutError:
                pass

    def end(self) -> None:
        """Stop soon: the server closes."""
        self._closing.set()


# Methods --------------------------------------------------------------------------------------------------------------

VERBS: dict[str, tuple[Access, Verb]] = {
    "ServerLive": (Access.OPEN, _server_live),
    "ServerReady": (Access.OPEN, _server_ready),
    "Check": (Access.OPEN, _check),
    "ModelReady": (Access.ORDINARY, _model_ready),
    "ServerMetadata": (Access.ORDINARY, _server_metadata),
    "ModelMetadata": (Access.ORDINARY, _model_metadata),
    "ModelConfig": (Access.ORDINARY, _model_config),
    "ModelStatistics": (Access.ORDINARY, _statistics),
    "RepositoryIndex": (Access.ORDINARY, _index),
    "RepositoryModelLoad": (Access.MUTATING, _load),
    "RepositoryModelUnload": (Access.MUTATING, _unload),
    "SystemSharedMemoryStatus": (Access.ORDINARY, _regions),
    "SystemSharedMemoryRegister": (Access.MUTATING, _register),
    "SystemSharedMemoryUnregister": (Access.MUTATING, _unregister),
    "CudaSharedMemoryStatus": (Access.ORDINARY, _cuda_regions),
    "CudaSharedMemoryRegister": (Access.MUTATING, _cuda_register),
    "CudaSharedMemoryUnregister": (Access.MUTATING, _cuda_unregister),
    "TraceSetting": (Access.MUTATING, _trace_settings),
    "LogSettings": (Access.MUTATING, _log_settings),
}


class Stream(Protocol):
    """A call with a stream of requests and responses."""

    async def serve(self) -> None:
        """Serve it until it ends."""

    def end(self) -> None:
        """Come to an end soon: the server closes."""


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


def _method(service: Any, method: Any) -> Method:
    path = f"/{service.full_name}/{method.name}"
    if method.name == "ModelInfer":
        return Method(path, Access.ORDINARY, infer)
    if method.name == "ModelStreamInfer":
        return Method(path, Access.ORDINARY, stream=InferStream)
    if method.name == "Watch":
        return Method(path, Access.OPEN, stream=HealthWatch)
    # A method that is not known here counts as changing something.
    access, verb = VERBS.get(method.name, (Access.MUTATING, _unsupported))
    requests, responses = message_class(method.input_type), message_class(method.output_type)

    async def answer(context: Context, data: bytes, caller: Caller) -> bytes:
        del caller
        written: bytes = from_json(await verb(context, parse(requests, data)), responses()).SerializeToString()
        return written

    return Method(path, access, answer)
