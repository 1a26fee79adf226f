"""What the server and its models are and how they fare: metadata, health, configuration."""

from latebind.domain.errors import NotFound, Unsupported
from latebind.server.description import model_config
from latebind.server.rpc.codec import parameter
from latebind.server.rpc.desk import Caller, Desk
from latebind.server.rpc.messages import INFERENCE, Message, ModelConfig, from_json, health_pb2, service_pb2

SERVICES = ("", INFERENCE.full_name)  # that health checks may ask for


async def server_live(desk: Desk, request: Message, caller: Caller) -> Message:
    """`ServerLive`."""
    del request, caller
    return service_pb2.ServerLiveResponse(live=desk.service.live())


async def server_ready(desk: Desk, request: Message, caller: Caller) -> Message:
    """`ServerReady`."""
    del request, caller
    return service_pb2.ServerReadyResponse(ready=desk.service.ready())


async def model_ready(desk: Desk, request: Message, caller: Caller) -> Message:
    """`ModelReady`; a model that is not there is not ready."""
    del caller
    try:
        ready = desk.service.model_ready(request.name, request.version or None)
    except NotFound:
        ready = False
    return service_pb2.ModelReadyResponse(ready=ready)


async def server_metadata(desk: Desk, request: Message, caller: Caller) -> Message:
    """`ServerMetadata`."""
    del request, caller
    return from_json(desk.service.server_metadata(), service_pb2.ServerMetadataResponse())


async def model_metadata(desk: Desk, request: Message, caller: Caller) -> Message:
    """`ModelMetadata`."""
    del caller
    spec = desk.service.model(request.name, request.version or None)
    return from_json(desk.codec(spec).metadata(), service_pb2.ModelMetadataResponse())


async def configuration(desk: Desk, request: Message, caller: Caller) -> Message:
    """`ModelConfig`."""
    del caller
    spec = desk.service.model(request.name, request.version or None)
    config = from_json(model_config(spec, desk.service.models()), ModelConfig())
    return service_pb2.ModelConfigResponse(config=config)


async def index(desk: Desk, request: Message, caller: Caller) -> Message:
    """`RepositoryIndex`."""
    del caller
    models = desk.service.index(ready=request.ready)
    return from_json({"models": models}, service_pb2.RepositoryIndexResponse())


async def load(desk: Desk, request: Message, caller: Caller) -> Message:
    """`RepositoryModelLoad`."""
    del caller
    await desk.service.load(request.model_name, _given(request))
    return service_pb2.RepositoryModelLoadResponse()


async def unload(desk: Desk, request: Message, caller: Caller) -> Message:
    """`RepositoryModelUnload`."""
    del caller
    await desk.service.unload(
        request.model_name, unload_dependents=_given(request).get("unload_dependents", False) is True
    )
    return service_pb2.RepositoryModelUnloadResponse()


async def statistics(desk: Desk, request: Message, caller: Caller) -> Message:
    """`ModelStatistics`, of all models where it names none."""
    del caller
    found = await desk.service.statistics(request.name or None, request.version or None)
    return from_json(found, service_pb2.ModelStatisticsResponse())


async def check(desk: Desk, request: Message, caller: Caller) -> Message:
    """`grpc.health.v1.Health/Check`."""
    del caller
    if request.service not in SERVICES:
        raise NotFound(f"there is no service {request.service!r:.140}")
    return health(desk)


async def unimplemented(desk: Desk, request: Message, caller: Caller) -> Message:
    """Any verb that is not served."""
    del desk, caller
    raise Unsupported(f"{request.DESCRIPTOR.name.removesuffix('Request')} is not served")


def _given(request: Message) -> dict[str, object]:
    return {name: parameter(value) for name, value in request.parameters.items()}


def health(desk: Desk) -> Message:
    """Return what health checks are told."""
    statuses = health_pb2.HealthCheckResponse
    return statuses(status=statuses.SERVING if desk.service.ready() else statuses.NOT_SERVING)
