"""The model repository extension over HTTP: index, load and unload.

There is only one repository, so the name of a repository in the path has no effect.
"""

import msgspec

from latebind.server.rest.context import Context
from latebind.server.rest.request import Reply, Request, json_reply, read_json


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


async def index(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/index`, with an empty body or an object."""
    asked = await read_json(request, IndexRequest, context.limits)
    return json_reply(context.service.index(ready=asked.ready))


async def load(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/models/NAME/load`; answered once the model is served."""
    asked = await read_json(request, LoadRequest, context.limits)
    await context.service.load(request.model, asked.parameters)
    return Reply()


async def unload(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/models/NAME/unload`; answered once no call uses the model any more."""
    asked = await read_json(request, UnloadRequest, context.limits)
    await context.service.unload(request.model, unload_dependents=asked.parameters.unload_dependents)
    return Reply()
