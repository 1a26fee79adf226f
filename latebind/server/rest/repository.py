"""What there is to serve, and changes of it: index, load and unload of the protocol's model repository extension.

There is one repository, so the name of one in the path selects nothing.
"""

import msgspec

from latebind.server.rest.context import Context
from latebind.server.rest.request import Reply, Request, json_reply, read_json


class IndexRequest(msgspec.Struct):
    """The JSON of an index call: where `ready`, only models that are."""

    ready: bool = False


class LoadRequest(msgspec.Struct):
    """The JSON of a load call; `version` is the one parameter that is taken."""

    parameters: dict[str, object] = {}


class UnloadParameters(msgspec.Struct):
    """Whether queries that need the model go with it; clients may send more parameters, which mean nothing here."""

    unload_dependents: bool = False


class UnloadRequest(msgspec.Struct):
    """The JSON of an unload call."""

    parameters: UnloadParameters = msgspec.field(default_factory=UnloadParameters)


async def index(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/index`, with an empty body or an object."""
    asked = await read_json(request, IndexRequest, context.limits)
    return json_reply(context.service.index(ready=asked.ready))


async def load(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/models/NAME/load`; answered when the model serves."""
    asked = await read_json(request, LoadRequest, context.limits)
    await context.service.load(request.model, asked.parameters)
    return Reply()


async def unload(context: Context, request: Request) -> Reply:
    """`POST /v2/repository[/NAME]/models/NAME/unload`; answered when nobody is served by the model any more."""
    asked = await read_json(request, UnloadRequest, context.limits)
    await context.service.unload(request.model, unload_dependents=asked.parameters.unload_dependents)
    return Reply()
