"""Trace and logging settings: read and changed. What a change answers is what holds from then on."""

from typing import Any

from latebind.server.rest.desk import Desk
from latebind.server.rest.request import Reply, Request, json_reply, read_json


async def traces(desk: Desk, request: Request) -> Reply:
    """`GET /v2[/models/NAME]/trace/setting`."""
    return json_reply(desk.service.trace_settings(_model(request)))


async def update_traces(desk: Desk, request: Request) -> Reply:
    """`POST /v2[/models/NAME]/trace/setting`."""
    given = await read_json(request, dict[str, Any], desk.limits)
    return json_reply(desk.service.update_trace_settings(given, _model(request)))


async def log(desk: Desk, request: Request) -> Reply:
    """`GET /v2/logging`."""
    del request
    return json_reply(desk.service.log_settings())


async def update_log(desk: Desk, request: Request) -> Reply:
    """`POST /v2/logging`."""
    return json_reply(desk.service.update_log_settings(await read_json(request, dict[str, Any], desk.limits)))


def _model(request: Request) -> str | None:
    """Return the model of the path, if it names one."""
    model: str | None = request.names.get("model")
    return model
