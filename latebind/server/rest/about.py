"""What the server and its models are and how they fare: metadata, health, configuration, metrics."""

import asyncio

from latebind.server.description import model_config
from latebind.server.metrics import prometheus_text
from latebind.server.rest.desk import Desk
from latebind.server.rest.request import Headers, Reply, Request, health_reply, json_reply

TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


async def server_metadata(desk: Desk, request: Request) -> Reply:
    """`GET /v2`."""
    del request
    return json_reply(desk.service.server_metadata())


async def live(desk: Desk, request: Request) -> Reply:
    """`GET /v2/health/live`."""
    del request
    return health_reply("live", desk.service.live())


async def ready(desk: Desk, request: Request) -> Reply:
    """`GET /v2/health/ready`."""
    del request
    return health_reply("ready", desk.service.ready())


async def model_ready(desk: Desk, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]/ready`."""
    ready = desk.service.model_ready(request.model, request.version)
    return health_reply("ready", ready, name=request.model)


async def model_metadata(desk: Desk, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]`."""
    return json_reply(desk.codec(desk.service.model(request.model, request.version)).metadata())


async def configuration(desk: Desk, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]/config`."""
    return json_reply(model_config(desk.service.model(request.model, request.version), desk.service.models()))


async def statistics(desk: Desk, request: Request) -> Reply:
    """`GET /v2/models/stats` and `GET /v2/models/NAME[/versions/N]/stats`."""
    return json_reply(await desk.service.statistics(request.names.get("model"), request.version))


async def models(desk: Desk, request: Request) -> Reply:
    """`GET /v2/models`, as KServe has it."""
    del request
    return json_reply({"models": [spec.name for spec in desk.service.models()]})


async def traces(desk: Desk, request: Request) -> Reply:
    """`GET /v2/traces`: what became of the last calls that were traced."""
    del request
    return json_reply({"traces": desk.service.traces()})


async def metrics(desk: Desk, request: Request) -> Reply:
    """`GET /metrics`, for Prometheus."""
    del request
    service = desk.service
    snapshot, versions, adaptation = await service.metrics(), service.versions(), service.adaptation()
    machine = await asyncio.to_thread(desk.machine.figures, snapshot.get("gpu"))
    text = prometheus_text(snapshot, versions=versions, replies=desk.replies, adaptation=adaptation, machine=machine)
    return Reply(text, TEXT)
