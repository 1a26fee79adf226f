"""What the server and its models are and how they fare: metadata, health, configuration, statistics, metrics."""

import asyncio
from math import ceil

from latebind.server.description import model_config
from latebind.server.metrics import prometheus_text
from latebind.server.rest.context import Context
from latebind.server.rest.request import JSON, Headers, Reply, Request, health_reply, json_reply

TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


async def server_metadata(context: Context, request: Request) -> Reply:
    """`GET /v2`."""
    del request
    return json_reply(context.service.server_metadata())


async def live(context: Context, request: Request) -> Reply:
    """`GET /v2/health/live`."""
    del request
    return health_reply("live", context.service.live())


async def ready(context: Context, request: Request) -> Reply:
    """`GET /v2/health/ready`."""
    del request
    return health_reply("ready", context.service.ready())


async def model_ready(context: Context, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]/ready`."""
    ready = context.service.model_ready(request.model, request.version)
    return health_reply("ready", ready, name=request.model)


async def model_metadata(context: Context, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]`."""
    return json_reply(context.codec(context.service.model(request.model, request.version)).metadata())


async def configuration(context: Context, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]/config`."""
    spec = context.service.model(request.model, request.version)
    return json_reply(model_config(spec, context.service.models(), max_rows=context.limits.max_rows))


async def statistics(context: Context, request: Request) -> Reply:
    """`GET /v2/models/stats` and `GET /v2/models/NAME[/versions/N]/stats`; `Age` says that the figures are not new."""
    found, age = await context.service.statistics(request.names.get("model"), request.version)
    reply = json_reply(found)
    return Reply(reply.body, (*JSON, (b"age", b"%d" % ceil(age)))) if age else reply


async def models(context: Context, request: Request) -> Reply:
    """`GET /v2/models`, as KServe has it."""
    del request
    return json_reply({"models": [spec.name for spec in context.service.models()]})


async def traces(context: Context, request: Request) -> Reply:
    """`GET /v2/traces`: what became of the last calls that were traced."""
    del request
    return json_reply({"traces": context.service.traces()})


async def metrics(context: Context, request: Request) -> Reply:
    """`GET /metrics`, for Prometheus."""
    del request
    service = context.service
    snapshot, versions, adaptation = await service.metrics(), service.versions(), service.adaptation()
    replies = dict(context.replies)
    queries = {spec.name for spec in service.models() if spec.steps}

    def written() -> bytes:  # of a thousand models it takes half a second of a core
        machine = context.machine.figures(snapshot.get("gpu"))
        return prometheus_text(
            snapshot, versions=versions, replies=replies, queries=queries, adaptation=adaptation, machine=machine
        )

    return Reply(await asyncio.to_thread(written), TEXT)
