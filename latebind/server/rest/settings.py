"""Trace and log settings over HTTP: read and changed. A change returns the settings that hold from then on."""

from typing import Any

from latebind.server.rest.context import Context
from latebind.server.rest.request import Reply, Request, json_reply, read_json


async def traces(context: Context, request: Request) -> Reply:
    """`GET /v2[/models/NAME]/trace/setting`."""
    return json_reply(context.service.trace_settings(_model(request)))


async def update_traces(context: Context, request: Request) -> Reply:
    """`POST /v2[/models/NAME]/trace/setting`."""
    given = await read_json(request, dict[str, Any], context.limits)
    return json_reply(context.service.update_trace_settings(given, _model(request)))


async def log(context: Context, request: Request) -> Reply:
    """`GET /v2/logging`."""
    del request
    return json_reply(context.service.log_settings())


async def update_log(context: Context, request: Request) -> Reply:
    """`POST /v2/logging`."""
    return json_reply(context.service.update_log_settings(await read_json(request, dict[str, Any], context.limits)))


def _model(request: Request) -> str | None:
    """Return the model of the path, if it names one."""
    model: str | None = request.names.get("model")
    return model
