"""What a route is, and the OpenAPI description of routes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from latebind import __version__
from latebind.repository.directory import NAME
from latebind.server.access import Access
from latebind.server.calls import DATATYPES
from latebind.server.rest.messages import Verb
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
# The named parts of paths. Those in capitals are no part of the protocol.
PARTS = {
    "repository": NAME.pattern,
    "model": NAME.pattern,
    "version": "[0-9]{1,18}",
    "region": "[^/]+",
    "SINCE": "[0-9]{1,15}",
    "FILE": "[a-z]+[.][a-z]+",
    "METHOD": "[A-Za-z0-9.]+/[A-Za-z]+",
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


# A route and its description -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """A route: who may have it, the verb that answers, and what `/v2/openapi.json` says of it if it has a `summary`.

    Braces in `path` name parts (`PARTS`), brackets are optional parts. `reply` and `body` name schemas. A `health`
    route has the same schema for 400 as for 200. `reply_media` are those of the reply, where they are not those of the
    body.
    """

    method: str
    path: str
    access: Access
    verb: Verb
    summary: str = ""
    reply: str | None = None
    body: str | None = None
    statuses: tuple[int, ...] = ()
    media: tuple[str, ...] = (JSON,)
    health: bool = False
    reply_media: tuple[str, ...] = ()

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern for paths that lead here."""
        optional = self.path.replace("[", "(?:").replace("]", ")?").replace(".", r"\.")
        return re.compile(re.sub(r"{(\w+)}", lambda found: f"(?P<{found[1]}>{PARTS[found[1]]})", optional))


def document(routes: Iterable[Route]) -> Json:
    """Return the description of routes as plain types."""
    paths: dict[str, Json] = {}
    for route in routes:
        for path in _variants(route.path) if route.summary else ():
            paths.setdefault(path, {})[route.method.lower()] = _described(route, path)
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
            "parameters": {name: _in_path(name, part) for name, part in PARTS.items() if name.islower()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _variants(path: str) -> Iterator[str]:
    """Yield the path with and without its parts in brackets."""
    yield path.replace("[", "").replace("]", "")
    if "[" in path:
        yield re.sub(r"\[.*?\]", "", path)


def _described(route: Route, path: str) -> Json:
    names = re.findall(r"{(\w+)}", path)
    parameters: list[Json] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    found: Json = {"summary": route.summary, "responses": _responses(route, named=bool(names))}
    if BYTES in route.media:
        parameters.append(JSON_LENGTH)
    if parameters:
        found["parameters"] = parameters
    if route.body is not None:
        found["requestBody"] = {"content": _content(route.body, route.media)}
    return found


def _responses(route: Route, *, named: bool) -> Json:
    statuses = {*ALWAYS, *route.statuses, *([404] if named else [])}
    if route.body is not None:
        statuses |= {*READING}
    found: Json = {str(status): {"$ref": f"#/components/responses/Status{status}"} for status in sorted(statuses)}
    if route.health:
        found["400"] = _reply("Not so, or the request is none.", route.reply, "Error")
    media = route.reply_media or route.media
    return {"200": _reply(route.summary, route.reply, media=media), **found}


def _reply(text: str, *schemas: str | None, media: tuple[str, ...] = (JSON,)) -> Json:
    """Describe a reply whose body is one of these schemas, or empty."""
    names = [name for name in schemas if name is not None]
    return {"description": text, "content": _content(names[0], media, *names[1:])} if names else {"description": text}


def _content(name: str, media: tuple[str, ...], *others: str) -> Json:
    schemas = [{"$ref": f"#/components/schemas/{one}"} for one in (name, *others)]
    schema = {"anyOf": schemas} if others else schemas[0]
    return {kind: {"schema": {"type": "string", "format": "binary"} if kind == BYTES else schema} for kind in media}


def _in_path(name: str, part: str) -> Json:
    schema: Json = {"type": "string", "pattern": f"^{part}$"}
    if name == "region":
        schema["maxLength"] = LONGEST_NAME
    return {"name": name, "in": "path", "required": True, "schema": schema}
