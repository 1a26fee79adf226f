"""What the server and its models are and how they fare: metadata, health, configuration, statistics, repository."""

from latebind.domain.errors import NotFound, Unsupported
from latebind.server.description import model_config
from latebind.server.rpc.codec import parameter
from latebind.server.rpc.context import Caller, Context
from latebind.server.rpc.messages import INFERENCE, Message, ModelConfig, from_json, health_pb2, service_pb2

SERVICES = ("", INFERENCE.full_name)  # that health checks may ask for


async def server_live(context: Context, request: Message, caller: Caller) -> Message:
    """`ServerLive`."""
    del request, caller
    return service_pb2.ServerLiveResponse(live=context.service.live())


async def server_ready(context: Context, request: Message, caller: Caller) -> Message:
    """`ServerReady`."""
    del request, caller
    return service_pb2.ServerReadyResponse(ready=context.service.ready())


async def model_ready(context: Context, request: Message, caller: Caller) -> Message:
    """`ModelReady`; a model that does not exist is not ready."""
    del caller
    try:
        ready = context.service.model_ready(request.name, request.version or None)
    except NotFound:
        ready = False
    return service_pb2.ModelReadyResponse(ready=ready)


async def server_metadata(context: Context, request: Message, caller: Caller) -> Message:
    """`ServerMetadata`."""
    del request, caller
    return from_json(context.service.server_metadata(), service_pb2.ServerMetadataResponse())


async def model_metadata(context: Context, request: Message, caller: Caller) -> Message:
    """`ModelMetadata`."""
    del caller
    spec = context.service.model(request.name, request.version or None)
    return from_json(context.codec(spec).metadata(), service_pb2.ModelMetadataResponse())


async def configuration(context: Context, request: Message, caller: Caller) -> Message:
    """`ModelConfig`."""
    del caller
    spec = context.service.model(request.name, request.version or None)
    config = model_config(spec, context.service.models(), max_rows=context.limits.max_rows)
    return service_pb2.ModelConfigResponse(config=from_json(config, ModelConfig()))


async def index(context: Context, request: Message, caller: Caller) -> Message:
    """`RepositoryIndex`."""
    del caller
    models = context.service.index(ready=request.ready)
    return from_json({"models": models}, service_pb2.RepositoryIndexResponse())


async def load(context: Context, request: Message, caller: Caller) -> Message:
    """`RepositoryModelLoad`."""
    del caller
    await context.service.load(request.model_name, _given(request))
    return service_pb2.RepositoryModelLoadResponse()


async def unload(context: Context, request: Message, caller: Caller) -> Message:
    """`RepositoryModelUnload`."""
    del caller
    await context.service.unload(
        request.model_name, unload_dependents=_given(request).get("unload_dependents", False) is True
    )
    return service_pb2.RepositoryModelUnloadResponse()


async def statistics(context: Context, request: Message, caller: Caller) -> Message:
    """`ModelStatistics`, of all models if it names none."""
    del caller
    found, _ = await context.service.statistics(request.name or None, request.version or None)
    return from_json(found, service_pb2.ModelStatisticsResponse())


async def check(context: Context, request: Message, caller: Caller) -> Message:
    """`grpc.health.v1.Health/Check`."""
    del caller
    if request.service not in SERVICES:
        raise NotFound(f"there is no service {request.service!r:.140}")
    return health(context)


async def unimplemented(context: Context, request: Message, caller: Caller) -> Message:
    """Any method that is not supported."""
    del context, caller
    raise Unsupported(f"{request.DESCRIPTOR.name.removesuffix('Request')} is not served")


def _given(request: Message) -> dict[str, object]:
    return {name: parameter(value) for name, value in request.parameters.items()}


def health(context: Context) -> Message:
    """Return the reply to a health check."""
    statuses = health_pb2.HealthCheckResponse
    return statuses(status=statuses.SERVING if context.service.ready() else statuses.NOT_SERVING)
