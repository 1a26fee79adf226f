"""The OpenAPI description of all routes of the protocol, written by hand; a test compares it with `rest/app.py`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from latebind import __version__
from latebind.repository.directory import NAME
from latebind.server.calls import DATATYPES
from latebind.server.rest.infer import Context
from latebind.server.rest.request import Reply, Request, json_reply
from latebind.server.settings import NUMBERS
from latebind.server.shared_memory import LONGEST_NAME

Json = dict[str, object]
Schema = Mapping[str, object]

JSON, BYTES, TEXT = "application/json", "application/octet-stream", "text/plain"
EVENTS = "text/event-stream"
STATUSES = {
    400: "The request is none that could be answered; the error says what to mend.",
    401: "The call needs a token.",
    403: "The call is for another host, from a page of another site, or of something that is not turned on.",
    404: "There is nothing of the name in the path, or in the body.",
    408: "The body did not arrive in time.",
    409: "There is something of this name already.",
    413: "The body, or what it asks for, is past a limit.",
    415: "The body is compressed in a way that is not undone here.",
    431: "Path and headers are past their limit.",
    500: "The model failed; the server's log says why, under the id that the error names.",
    501: "This part of the protocol is not served.",
    503: "Not now: too much is waiting, the deadline cannot be met, or the server starts or stops. See Retry-After.",
    504: "The deadline passed before the answer, or could not be kept any more.",
}
ALWAYS = (400, 401, 403, 431, 503)
READING = (408, 413, 415)  # of calls with a body
NAMES: dict[str, Json] = {
    "repository": {"type": "string", "pattern": f"^{NAME.pattern}$"},
    "model": {"type": "string", "pattern": f"^{NAME.pattern}$"},
    "version": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    "region": {"type": "string", "pattern": "^[^/]+$", "maxLength": LONGEST_NAME},
}
JSON_LENGTH: Json = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "How many bytes of the body, before it was compressed, are JSON; 0: all of it is the only input.",
    "schema": {"type": "integer", "minimum": 0},
}


# The bodies of calls and replies ------------------------------------------------------------------------------------

STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TRUTH: Schema = {"type": "boolean"}
ANYTHING: Schema = {}
SHAPE: Schema = {"type": "array", "items": {"type": "integer"}}
DATATYPE: Schema = {"enum": sorted(set(DATATYPES.values()))}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(required: Mapping[str, Schema] | None = None, /, **optional: Schema) -> Schema:
    """Describe an object with these properties. It may have more, both from clients and in replies."""
    found: dict[str, object] = {"type": "object", "properties": {**(required or {}), **optional}}
    if required:
        found["required"] = list(required)
    return found


def _to(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


PLACE: dict[str, Schema] = {
    "shared_memory_region": STRING,
    "shared_memory_byte_size": COUNT,
    "shared_memory_offset": COUNT,
}
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
SWITCHES: dict[str, Schema] = {"log_info": TRUTH, "log_warning": TRUTH, "log_error": TRUTH, "log_verbose_level": COUNT}
TRACE_LEVEL: Schema = _list({"enum": ["OFF", "TIMESTAMPS"]})
TRACE_NUMBERS: dict[str, Schema] = {
    name: {"type": ["string", "null"], "pattern": f"^(?:{pattern})$"} for name, pattern in NUMBERS.items()
}

SCHEMAS: dict[str, Schema] = {
    "Any": ANYTHING,
    "Object": _object(),
    "Text": STRING,
    "Error": _object({"error": STRING}),
    "Live": _object({"live": TRUTH}),
    "Ready": _object({"ready": TRUTH}),
    "ModelReady": _object({"name": STRING, "ready": TRUTH}),
    "ServerMetadata": _object({"name": STRING, "version": STRING, "extensions": _list(STRING)}),
    "Models": _object({"models": _list(STRING)}),
    "Tensor": _object({"name": STRING, "datatype": DATATYPE, "shape": SHAPE}),
    "ModelMetadata": _object(
        {
            "name": STRING,
            "versions": _list(STRING),
            "platform": STRING,
            "inputs": _list(_to("Tensor")),
            "outputs": _list(_to("Tensor")),
        }
    ),
    "ModelConfig": _object({"name": STRING, "platform": STRING, "max_batch_size": COUNT, "input": _list(_object())}),
    "Duration": _object({"count": COUNT, "ns": COUNT}),
    "ModelStatistics": _object(
        {
            "name": STRING,
            "version": STRING,
            "last_inference": COUNT,
            "inference_count": COUNT,
            "execution_count": COUNT,
            "inference_stats": _object(dict.fromkeys(KINDS, _to("Duration"))),
            "response_stats": _object(),
            "batch_stats": _list(_object({"batch_size": COUNT, "compute_infer": _to("Duration")})),
            "memory_usage": _list(_object({"type": STRING, "id": COUNT, "byte_size": COUNT})),
        }
    ),
    "Statistics": _object({"model_stats": _list(_to("ModelStatistics"))}),
    "InputTensor": _object(
        {"name": STRING, "datatype": STRING, "shape": SHAPE},
        data=_list(ANYTHING),
        parameters=_object(binary_data_size=COUNT, **PLACE),
    ),
    "RequestedOutput": _object({"name": STRING}, parameters=_object(binary_data=TRUTH, classification=COUNT, **PLACE)),
    "InferRequest": _object(
        {"inputs": _list(_to("InputTensor"))},
        id=STRING,
        outputs=_list(_to("RequestedOutput")),
        parameters=_object(timeout=COUNT, priority=COUNT, binary_data_output=TRUTH),
    ),
    "OutputTensor": _object(
        {"name": STRING, "datatype": STRING, "shape": SHAPE}, data=_list(ANYTHING), parameters=_object()
    ),
    "GenerateRequest": _object(id=STRING, parameters=_object(timeout=COUNT, priority=COUNT)),
    "Event": _object({"data": STRING}),  # a server-sent event; its data are a GenerateReply or an Error, as JSON
    "GenerateReply": _object({"model_name": STRING, "model_version": STRING}, id=STRING),
    "InferReply": _object(
        {"model_name": STRING, "model_version": STRING, "outputs": _list(_to("OutputTensor"))},
        id=STRING,
        parameters=_object(),
    ),
    "IndexRequest": _object(ready=TRUTH),
    "Index": _list(_object({"name": STRING}, version=STRING, state=STRING, reason=STRING)),
    "Load": _object(parameters=_object(version=STRING)),
    "Unload": _object(parameters=_object(unload_dependents=TRUTH)),
    "Traces": _object({"traces": _list(_object({"id": STRING, "model": STRING, "outcome": STRING}))}),
    "TraceSettings": _object(
        {"trace_level": TRACE_LEVEL, "trace_rate": STRING, "trace_count": STRING, "log_frequency": STRING}
    ),
    "TraceChange": _object(trace_level=TRACE_LEVEL, **TRACE_NUMBERS),
    "LogSettings": _object({**SWITCHES, "log_file": STRING, "log_format": STRING}),
    "LogChange": _object(**SWITCHES),
    "Region": _object({"name": STRING, "key": STRING, "offset": COUNT, "byte_size": COUNT}),
    "Regions": _list(_to("Region")),
    "Registration": _object({"key": STRING, "byte_size": COUNT}, offset=COUNT),
}


# The operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the description. `reply` and `body` name schemas; brackets in `path` are optional parts.

    A `health` operation has the same schema for 400 as for 200. `reply_media` are those of the reply, where they are
    not those of the body.
    """

    method: str
    path: str
    summary: str
    reply: str | None = None
    body: str | None = None
    statuses: tuple[int, ...] = ()
    media: tuple[str, ...] = (JSON,)
    health: bool = False
    reply_media: tuple[str, ...] = ()


MODEL = "/v2/models/{model}[/versions/{version}]"
REPOSITORY = "/v2/repository[/{repository}]"
OPERATIONS = (
    Operation("GET", "/v2", "What the server is, and which extensions it has", "ServerMetadata"),
    Operation("GET", "/v2/openapi.json", "This description", "Any"),
    Operation("GET", "/v2/health/live", "Whether the server and its engine run", "Live", health=True),
    Operation("GET", "/v2/health/ready", "Whether every model can be asked", "Ready", health=True),
    Operation("GET", "/v2/models", "The names of all models and queries", "Models"),
    Operation("GET", "/v2/models/stats", "Statistics of all models", "Statistics"),
    Operation("GET", MODEL, "What a model takes and gives", "ModelMetadata"),
    Operation("GET", f"{MODEL}/config", "The configuration of a model", "ModelConfig"),
    Operation("GET", f"{MODEL}/ready", "Whether a model can be asked", "ModelReady", health=True),
    Operation("GET", f"{MODEL}/stats", "Statistics of a model", "Statistics"),
    Operation("POST", f"{MODEL}/infer", "Ask a model", "InferReply", "InferRequest", (500, 504), (JSON, BYTES)),
    Operation("POST", f"{MODEL}/generate", "Ask a model with one row", "GenerateReply", "GenerateRequest", (500, 504)),
    Operation(
        *("POST", f"{MODEL}/generate_stream", "Ask a model with one row, for its tokens as they are written"),
        *("Event", "GenerateRequest", (500, 504)),
        reply_media=(EVENTS,),
    ),
    Operation("POST", f"{REPOSITORY}/index", "Every model and its state", "Index", "IndexRequest"),
    Operation("POST", f"{REPOSITORY}/models/{{model}}/load", "Serve a model's newest version", None, "Load"),
    Operation("POST", f"{REPOSITORY}/models/{{model}}/unload", "Serve a model no more", None, "Unload"),
    Operation("GET", "/v2/traces", "What became of the last calls that were traced", "Traces"),
    Operation("GET", "/v2[/models/{model}]/trace/setting", "Which calls are traced", "TraceSettings"),
    Operation("POST", "/v2[/models/{model}]/trace/setting", "Trace other calls", "TraceSettings", "TraceChange"),
    Operation("GET", "/v2/logging", "What the log has", "LogSettings"),
    Operation("POST", "/v2/logging", "Log something else", "LogSettings", "LogChange"),
    Operation("GET", "/v2/systemsharedmemory[/region/{region}]/status", "What is registered", "Regions"),
    Operation(
        "POST", "/v2/systemsharedmemory/region/{region}/register", "Register a region", None, "Registration", (409,)
    ),
    Operation("POST", "/v2/systemsharedmemory[/region/{region}]/unregister", "Forget regions; calls go on"),
    Operation("GET", "/v2/cudasharedmemory[/region/{region}]/status", "Nothing is registered, ever", "Regions"),
    Operation("POST", "/v2/cudasharedmemory/region/{region}/register", "It is not served", None, "Object", (501,)),
    Operation("POST", "/v2/cudasharedmemory[/region/{region}]/unregister", "Nothing is there to forget"),
    Operation("GET", "/metrics", "Figures for Prometheus", "Text", media=(TEXT,)),
)


async def description(context: Context, request: Request) -> Reply:
    """`GET /v2/openapi.json`."""
    del context, request
    return json_reply(document())


def document() -> Json:
    """Return the description as plain types."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        for path in _variants(operation.path):
            paths.setdefault(path, {})[operation.method.lower()] = _described(operation, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "latebind",
            "version": __version__,
            "description": "The Open Inference Protocol v2 with extensions, and what latebind tells beside it.",
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {f"Status{status}": _reply(text, "Error") for status, text in STATUSES.items()},
            "parameters": {name: _in_path(name, schema) for name, schema in NAMES.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _variants(path: str) -> Iterator[str]:
    """Yield the path with and without its parts in brackets."""
    yield path.replace("[", "").replace("]", "")
    if "[" in path:
        yield re.sub(r"\[.*?\]", "", path)


def _described(operation: Operation, path: str) -> Json:
    names = re.findall(r"{(\w+)}", path)
    parameters: list[Json] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    found: Json = {"summary": operation.summary, "responses": _responses(operation, named=bool(names))}
    if BYTES in operation.media:
        parameters.append(JSON_LENGTH)
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {"content": _content(operation.body, operation.media)}
    return found


def _responses(operation: Operation, *, named: bool) -> Json:
    statuses = {*ALWAYS, *operation.statuses, *([404] if named else [])}
    if operation.body is not None:
        statuses |= {*READING}
    found: Json = {str(status): {"$ref": f"#/components/responses/Status{status}"} for status in sorted(statuses)}
    if operation.health:
        found["400"] = _reply("Not so, or the request is none.", operation.reply, "Error")
    media = operation.reply_media or operation.media
    return {"200": _reply(operation.summary, operation.reply, media=media), **found}


def _reply(text: str, *schemas: str | None, media: tuple[str, ...] = (JSON,)) -> Json:
    """Describe a reply whose body is one of these schemas, or empty."""
    names = [name for name in schemas if name is not None]
    return {"description": text, "content": _content(names[0], media, *names[1:])} if names else {"description": text}


def _content(name: str, media: tuple[str, ...], *others: str) -> Json:
    schemas = [{"$ref": f"#/components/schemas/{one}"} for one in (name, *others)]
    schema = {"anyOf": schemas} if others else schemas[0]
    return {kind: {"schema": {"type": "string", "format": "binary"} if kind == BYTES else schema} for kind in media}


def _in_path(name: str, schema: Json) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}
