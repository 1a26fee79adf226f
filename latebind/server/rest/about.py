"""The HTTP verbs beside those that ask a model: what there is, how it fares, what is loaded, set and registered.

There is only one repository, so the name of a repository in the path has no effect.
"""

import asyncio
from math import ceil
from typing import Any, TypeVar

import msgspec
import orjson

from latebind.domain.errors import InvalidRequest, TooLarge, TurnedOff
from latebind.server.dashboard.dashboard import PAGE, Dashboard
from latebind.server.description import metadata, model_config
from latebind.server.metrics import prometheus_text
from latebind.server.rest.infer import Context
from latebind.server.rest.messages import JSON, Headers, Reply, json_reply
from latebind.server.rest.protocol import Request
from latebind.server.shared_memory import CudaRegions, Regions, Registration

T = TypeVar("T")

TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
CUDA = CudaRegions()


class IndexRequest(msgspec.Struct):
    """The JSON of an index call; `ready` asks only for models that are ready."""

    ready: bool = False


class LoadRequest(msgspec.Struct):
    """The JSON of a load call; `version` is the only parameter with an effect."""

    parameters: dict[str, object] = {}


class UnloadParameters(msgspec.Struct):
    """Whether to unload the queries that need the model too; other parameters are ignored."""

    unload_dependents: bool = False


class UnloadRequest(msgspec.Struct):
    """The JSON of an unload call."""

    parameters: UnloadParameters = msgspec.field(default_factory=UnloadParameters)


async def read_json(context: Context, request: Request, kind: type[T]) -> T:
    """Read a small body as JSON of this type; an empty one is `{}`. Raises what reading raises and `InvalidRequest`."""
    most = context.limits.header_bytes
    body = await request.read(most + 1)
    if len(body) > most:
        raise TooLarge(f"the body has more than {most} bytes, the most that this call takes: send less")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON is not what this call takes: {error}") from None


# The server and its models --------------------------------------------------------------------------------------------


async def server_metadata(context: Context, request: Request) -> Reply:
    """`GET /v2`."""
    del request
    return json_reply(context.service.server_metadata())


def health_reply(word: str, well: bool, **about: str) -> Reply:
    """Return the reply to a health check: 200 or 400, as Triton does, with KServe's body."""
    return Reply(orjson.dumps({**about, word: well}), JSON, 200 if well else 400)


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
    well = context.service.model_ready(request.model, request.version)
    return health_reply("ready", well, name=request.model)


async def model_metadata(context: Context, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]`."""
    return json_reply(metadata(context.service.model(request.model, request.version)))


async def configuration(context: Context, request: Request) -> Reply:
    """`GET /v2/models/NAME[/versions/N]/config`."""
    spec = context.service.model(request.model, request.version)
    return json_reply(model_config(spec, context.service.models(), max_rows=context.limits.max_rows))


async def models(context: Context, request: Request) -> Reply:
    """`GET /v2/models`, as KServe has it."""
    del request
    return json_reply({"models": [spec.name for spec in context.service.models()]})


# How they fare --------------------------------------------------------------------------------------------------------


async def statistics(context: Context, request: Request) -> Reply:
    """`GET /v2/models/stats` and `GET /v2/models/NAME[/versions/N]/stats`; `Age` says that the figures are not new."""
    found, age = await context.service.statistics(request.names.get("model"), request.version)
    reply = json_reply(found)
    return Reply(reply.body, (*JSON, (b"age", b"%d" % ceil(age)))) if age else reply


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


# What clients change --------------------------------------------------------------------------------------------------


async def index(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/index`, with an empty body or an object."""
    asked = await read_json(context, request, IndexRequest)
    return json_reply(context.service.index(ready=asked.ready))


async def load(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/models/NAME/load`; answered once the model is served."""
    asked = await read_json(context, request, LoadRequest)
    await context.service.load(request.model, asked.parameters)
    return Reply()


async def unload(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/models/NAME/unload`; answered once no call uses the model any more."""
    asked = await read_json(context, request, UnloadRequest)
    await context.service.unload(request.model, unload_dependents=asked.parameters.unload_dependents)
    return Reply()


async def trace_settings(context: Context, request: Request) -> Reply:
    """`GET /v2[/models/NAME]/trace/setting`."""
    return json_reply(context.service.trace_settings(request.names.get("model")))


async def update_trace_settings(context: Context, request: Request) -> Reply:
    """`POST /v2[/models/NAME]/trace/setting`; returns the settings that hold from then on."""
    given = await read_json(context, request, dict[str, Any])
    return json_reply(context.service.update_trace_settings(given, request.names.get("model")))


async def log_settings(context: Context, request: Request) -> Reply:
    """`GET /v2/logging`."""
    del request
    return json_reply(context.service.log_settings())


async def update_log_settings(context: Context, request: Request) -> Reply:
    """`POST /v2/logging`; returns the settings that hold from then on."""
    return json_reply(context.service.update_log_settings(await read_json(context, request, dict[str, Any])))


# Shared memory of clients ---------------------------------------------------------------------------------------------


def _regions(context: Context, request: Request) -> Regions | CudaRegions:
    return CUDA if request.head.target.startswith(b"/v2/cuda") else context.service.regions


async def regions(context: Context, request: Request) -> Reply:
    """`GET /v2/(system|cuda)sharedmemory[/region/NAME]/status`."""
    return json_reply(_regions(context, request).status(request.names["region"]))


async def register(context: Context, request: Request) -> Reply:
    """`POST /v2/(system|cuda)sharedmemory/region/NAME/register`."""
    kept = _regions(context, request)
    name = request.names["region"]
    if isinstance(kept, Regions):
        kept.register(name, await read_json(context, request, Registration))
    else:
        await read_json(context, request, dict[str, object])
        kept.register(name)
    return Reply()


async def unregister(context: Context, request: Request) -> Reply:
    """`POST /v2/(system|cuda)sharedmemory[/region/NAME]/unregister`."""
    _regions(context, request).unregister(request.names["region"])
    return Reply()


# The dashboard --------------------------------------------------------------------------------------------------------


async def to_the_page(context: Context, request: Request) -> Reply:
    """`GET /dashboard`: redirects, since paths in the page are relative, so that a proxy may put it anywhere."""
    del request
    _dashboard(context)
    return Reply(headers=((b"location", b"dashboard/"),), status=307)


async def page(context: Context, request: Request) -> Reply:
    """`GET /dashboard/[NAME]`: the page, or another of its files."""
    return await _dashboard(context).file(request.names.get("FILE", PAGE))


async def figures(context: Context, request: Request) -> Reply:
    """`GET /dashboard/data[/NUMBER]`: the figures, and the rows of the history after that number."""
    return await _dashboard(context).figures(int(request.names["SINCE"] or 0), context.replies)


async def picture(context: Context, request: Request) -> Reply:
    """`GET /dashboard/picture`: what the engine is doing."""
    del request
    return await _dashboard(context).picture()


def _dashboard(context: Context) -> Dashboard:
    if context.dashboard is None:
        raise TurnedOff("the dashboard is off: start the server with --dashboard")
    return context.dashboard
