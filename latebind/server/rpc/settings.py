"""Trace and log settings over gRPC: read, and changed if the request has any. Replies hold the current settings."""

from latebind.server.rpc.codec import parameter
from latebind.server.rpc.context import Caller, Context
from latebind.server.rpc.messages import Message, service_pb2


async def traces(context: Context, request: Message, caller: Caller) -> Message:
    """`TraceSetting`, of one model where it names one."""
    del caller
    name = request.model_name or None
    given = {key: list(value.value) for key, value in request.settings.items()}
    held = context.service.update_trace_settings(given, name) if given else context.service.trace_settings(name)
    reply = service_pb2.TraceSettingResponse()
    for key, value in held.items():
        reply.settings[key].value.extend(value if isinstance(value, list) else [str(value)])
    return reply


async def log(context: Context, request: Message, caller: Caller) -> Message:
    """`LogSettings`."""
    del caller
    given = {key: parameter(value) for key, value in request.settings.items()}
    held = context.service.update_log_settings(given) if given else context.service.log_settings()
    reply = service_pb2.LogSettingsResponse()
    for key, value in held.items():
        place = reply.settings[key]
        if isinstance(value, bool):
            place.bool_param = value
        elif isinstance(value, int):
            place.uint32_param = value
        else:
            place.string_param = str(value)
    return reply
