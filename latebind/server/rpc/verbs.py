"""The gRPC verbs that do not run a model, which method leads to which verb, and what a caller has to present."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from latebind.domain.errors import NotFound, Unsupported
from latebind.domain.model import ModelSpec
from latebind.server.access import Access
from latebind.server.description import metadata, model_config
from latebind.server.rpc.infer import Caller, Context, InferStream, infer, parameter, parse
from latebind.server.rpc.messages import HEALTH, INFERENCE, Message, from_json, health_pb2, message_class
from latebind.server.shared_memory import Regions, Registration

Json = Mapping[str, object]
Verb = Callable[[Context, Message], Json | Awaitable[Json | None] | None]  # returns its response in JSON's form
Answer = Callable[[Context, bytes, Caller], Awaitable[bytes]]

SERVICES = ("", INFERENCE.full_name)  # that health checks may ask for
WATCH_SECONDS = 0.25  # between two checks of the health that is watched
CUDA = Regions()  # there are none
OPEN, ORDINARY, MUTATING = Access.OPEN, Access.ORDINARY, Access.MUTATING


def _model_ready(context: Context, request: Message) -> Json:
    """A model that does not exist is not ready."""
    try:
        return {"ready": context.service.model_ready(request.name, request.version or None)}
    except NotFound:
        return {"ready": False}


def _model(context: Context, request: Message) -> ModelSpec:
    return context.service.model(request.name, request.version or None)


def _model_config(context: Context, request: Message) -> Json:
    spec = _model(context, request)
    return {"config": model_config(spec, context.service.models(), max_rows=context.limits.max_rows)}


async def _statistics(context: Context, request: Message) -> Json:
    found, _ = await context.service.statistics(request.name or None, request.version or None)
    return found


async def _load(context: Context, request: Message) -> None:
    await context.service.load(request.model_name, _given(request.parameters))


async def _unload(context: Context, request: Message) -> None:
    await context.service.unload(request.model_name, _given(request.parameters))


def _regions(context: Context, request: Message) -> Regions:
    return CUDA if request.DESCRIPTOR.name.startswith("Cuda") else context.service.regions


def _status(context: Context, request: Message) -> Json:
    found = _regions(context, request).status(request.name or None)
    return {"regions": {str(region["name"]): region for region in found}}


def _register(context: Context, request: Message) -> None:
    context.service.regions.register(request.name, Registration(request.key, request.byte_size, request.offset))


def _unregister(context: Context, request: Message) -> None:
    _regions(context, request).unregister(request.name or None)


def _trace_settings(context: Context, request: Message) -> Json:
    """The settings of the model that the request names, or the default ones; changed first if the request has any."""
    name = request.model_name or None
    given = {key: list(value.value) for key, value in request.settings.items()}
    held = context.service.update_trace_settings(given, name) if given else context.service.trace_settings(name)
    values = {key: value if isinstance(value, list) else [str(value)] for key, value in held.items()}
    return {"settings": {key: {"value": value} for key, value in values.items()}}


def _log_settings(context: Context, request: Message) -> Json:
    log, given = context.service.log, _given(request.settings)
    log.update(given)
    fields = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {key: {fields[type(value)]: value} for key, value in log.as_dict().items()}}


def _check(context: Context, request: Message) -> Json:
    if request.service not in SERVICES:
        raise NotFound(f"there is no service {request.service!r:.140}")
    return {"status": _health(context)}


def _unsupported(context: Context, request: Message) -> Json:
    del context
    raise Unsupported(f"{request.DESCRIPTOR.name.removesuffix('Request')} is not served")


def _given(parameters: Mapping[str, Message]) -> dict[str, object]:
    return {name: parameter(value) for name, value in parameters.items()}


def _health(context: Context) -> str:
    return "SERVING" if context.service.ready() else "NOT_SERVING"


VERBS: dict[str, tuple[Access, Verb]] = {
    "ServerLive": (OPEN, lambda context, _: {"live": context.service.live()}),
    "ServerReady": (OPEN, lambda context, _: {"ready": context.service.ready()}),
    "Check": (OPEN, _check),
    "ModelReady": (ORDINARY, _model_ready),
    "ServerMetadata": (ORDINARY, lambda context, _: context.service.server_metadata()),
    "ModelMetadata": (
        ORDINARY,
        lambda context, request: metadata(
            context.service.model(request.name, request.version or None), context.service.versions(request.name)
        ),
    ),
    "ModelConfig": (ORDINARY, _model_config),
    "ModelStatistics": (ORDINARY, _statistics),
    "RepositoryIndex": (ORDINARY, lambda context, request: {"models": context.service.index(ready=request.ready)}),
    "RepositoryModelLoad": (MUTATING, _load),
    "RepositoryModelUnload": (MUTATING, _unload),
    "SystemSharedMemoryStatus": (ORDINARY, _status),
    "SystemSharedMemoryRegister": (MUTATING, _register),
    "SystemSharedMemoryUnregister": (MUTATING, _unregister),
    "CudaSharedMemoryStatus": (ORDINARY, _status),
    "CudaSharedMemoryUnregister": (MUTATING, _unregister),  # some clients call it whatever they use
    "TraceSetting": (MUTATING, _trace_settings),
    "LogSettings": (MUTATING, _log_settings),
}


# Methods --------------------------------------------------------------------------------------------------------------


class HealthWatch:
    """`grpc.health.v1.Health/Watch`: sends one client the health at once, and again whenever it changes."""

    def __init__(self, context: Context, caller: Caller) -> None:
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


Stream = InferStream | HealthWatch


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service: `answer` serves a single call, or `stream` makes what serves a stream."""

    path: str
    access: Access
    answer: Answer | None = None
    stream: Callable[[Context, Caller], Stream] | None = None


def methods() -> dict[str, Method]:
    """Return all methods of all services, by path."""
    found = [_method(service, method) for service in (INFERENCE, HEALTH) for method in service.methods]
    return {method.path: method for method in found}


def _method(service: Any, method: Any) -> Method:
    path = f"/{service.full_name}/{method.name}"
    if method.name == "ModelInfer":
        return Method(path, ORDINARY, infer)
    if method.name == "ModelStreamInfer":
        return Method(path, ORDINARY, stream=InferStream)
    if method.name == "Watch":
        return Method(path, OPEN, stream=HealthWatch)
    # A method that is not known here counts as changing something.
    access, verb = VERBS.get(method.name, (MUTATING, _unsupported))
    requests, responses = message_class(method.input_type), message_class(method.output_type)

    async def answer(context: Context, data: bytes, caller: Caller) -> bytes:
        del caller
        answer = verb(context, parse(requests, data))
        response = from_json((await answer if isawaitable(answer) else answer) or {}, responses())
        written: bytes = response.SerializeToString()
        return written

    return Method(path, access, answer)
