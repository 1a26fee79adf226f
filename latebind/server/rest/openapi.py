"""What a route is, and the OpenAPI description of routes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from latebind import __version__
from latebind.repository.directory import NAME
from latebind.server.access import Access
from latebind.server.calls import BYTES as BYTES_TYPE
from latebind.server.calls import DATATYPES
from latebind.server.rest.messages import OWN, Errors, Verb
from latebind.server.settings import NUMBERS
from latebind.server.shared_memory import LONGEST_NAME

Json = dict[str, object]
Schema = Mapping[str, object]

JSON, BYTES, TEXT = "application/json", "application/octet-stream", "text/plain"
EVENTS = "text/event-stream"
STATUSES = {
    400: "The request is invalid; the error says what to change.",
    401: "The call needs a token.",
    403: "The call is for another host, from a page of another site, or for a feature that is not turned on.",
    404: "Nothing has the name in the path or in the body.",
    408: "The body did not arrive in time.",
    409: "The name is in use already.",
    413: "The body, or what it asks for, exceeds a limit.",
    415: "The body is compressed in an unknown way.",
    424: "The model failed; the server's log says why, under the id in the error.",
    429: "Too much is waiting, or the deadline cannot be met. See Retry-After.",
    431: "Path and headers exceed their limit.",
    500: "The model failed; the server's log says why, under the id in the error.",
    501: "This part of the protocol is not served.",
    503: "Not now: too much is waiting, the deadline cannot be met, or the server starts or stops. See Retry-After.",
    504: "The deadline passed before the answer, or could no longer be met.",
}
ALWAYS = (400, 401, 403, 431, 503)
READING = (408, 413, 415)  # of calls with a body
# The named parts of paths. Those in capitals are not part of the protocol.
PARTS = {
    "repository": NAME.pattern,
    "model": NAME.pattern,
    "version": "[0-9]{1,18}",
    "region": "[^/]+",
    "FILE": "[a-z]+[.][a-z]+",
    "METHOD": "[A-Za-z0-9.]+/[A-Za-z]+",
}
JSON_LENGTH: Json = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "How many bytes of the body, before compression, are JSON; 0: the whole body is the only input.",
    "schema": {"type": "integer", "minimum": 0},
}


# The bodies of calls and replies: fields with their kinds, `?` after those that are optional. There may be more
# fields, both from clients and in replies. Capitalized kinds are other bodies, brackets make a list.
PLACE = "shared_memory_region?: text, shared_memory_byte_size?: count, shared_memory_offset?: count"
CUT = "truncation_direction?: direction"
SWITCHES = "log_info?: truth, log_warning?: truth, log_error?: truth, log_verbose_level?: count"
TIMES = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"]
BODIES = {
    "Object": "",
    "Error": "error: text",
    "OpenAIErrorText": "message: text, type: text, param: any, code: any",
    "OpenAIError": "error: OpenAIErrorText",
    "CohereError": "message: text, detail: text",
    "TeiError": "error: text, error_type: text",
    "RerankError": "error: text, error_type: text, message: text, detail: text",
    "Live": "live: truth",
    "Ready": "ready: truth",
    "ModelReady": "name: text, ready: truth",
    "ServerMetadata": "name: text, version: text, extensions: [text]",
    "Models": "models: [text]",
    "Tensor": "name: text, datatype: datatype, shape: shape",
    "ModelMetadata": "name: text, versions: [text], platform: text, inputs: [Tensor], outputs: [Tensor]",
    "ModelConfig": "name: text, platform: text, max_batch_size: count, input: [Object]",
    "Duration": "count: count, ns: count",
    "Times": ", ".join(f"{kind}: Duration" for kind in TIMES),
    "Batch": "batch_size: count, compute_infer: Duration",
    "MemoryUse": "type: text, id: count, byte_size: count",
    "ModelStatistics": "name: text, version: text, last_inference: count, inference_count: count, "
    "execution_count: count, inference_stats: Times, response_stats: Object, batch_stats: [Batch], "
    "memory_usage: [MemoryUse]",
    "Statistics": "model_stats: [ModelStatistics]",
    "InputParameters": f"binary_data_size?: count, content_type?: text, {PLACE}",
    "InputTensor": "name: text, datatype: text, shape: [number], data?: [any], parameters?: InputParameters",
    "OutputParameters": f"binary_data?: truth, classification?: count, {PLACE}",
    "RequestedOutput": "name: text, parameters?: OutputParameters",
    "RequestParameters": "timeout?: count, priority?: count, binary_data_output?: truth, truncate?: truth",
    "InferRequest": "inputs: [InputTensor], id?: text, outputs?: [RequestedOutput], parameters?: RequestParameters",
    "OutputTensor": "name: text, datatype: text, shape: [number], data?: [any], parameters?: Object",
    "Schedule": "timeout?: count, priority?: count, truncate?: truth",
    "GenerateRequest": "id?: text, parameters?: Schedule",
    "Event": "data: text",  # a server-sent event; its data are a GenerateReply or an Error, as JSON
    "GenerateReply": "model_name: text, model_version: text, id?: text, parameters?: Object",
    "InferReply": "model_name: text, model_version: text, outputs: [OutputTensor], id?: text, parameters?: Object",
    "IndexRequest": "ready?: truth",
    "IndexEntry": "name: text, version?: text, state?: text, reason?: text",
    "LoadParameters": "version?: text",
    "Load": "parameters?: LoadParameters",
    "UnloadParameters": "unload_dependents?: truth",
    "Unload": "parameters?: UnloadParameters",
    "Trace": "id: text, model: text, outcome: text",
    "Traces": "traces: [Trace]",
    "TraceSettings": "trace_level: trace_level, trace_rate: text, trace_count: text, log_frequency: text",
    "TraceChange": "trace_level?: trace_level, trace_rate?: trace_rate, trace_count?: trace_count",
    "LogSettings": f"{SWITCHES}, log_file: text, log_format: text".replace("?", ""),
    "LogChange": SWITCHES,
    "Region": "name: text, key: text, offset: count, byte_size: count",
    "Registration": "key: text, byte_size: count, offset?: count",
    "Usage": "prompt_tokens: count, total_tokens: count",
    "EmbeddingsRequest": "input: texts, model?: text, encoding_format?: encoding, dimensions?: count, truncate?: truth",
    "Embedding": "object: text, index: count, embedding: vector",
    "Embeddings": "object: text, model: text, data: [Embedding], usage: Usage",
    "ModelCard": "id: text, object: text, created: count, owned_by: text, task: any",
    "ModelCards": "object: text, data: [ModelCard]",
    "RerankRequest": "query: text, documents?: [any], texts?: [text], model?: text, top_n?: count, "
    "return_documents?: truth, truncate?: truth, raw_scores?: truth, return_text?: truth, "
    f"{CUT}",
    "ClassifyRequest": "input: texts, model?: text, truncate?: truth",
    "Class": "index: count, label: text, probs: [any], num_classes: count",
    "Classes": "object: text, model: text, data: [Class], usage: Usage",
    "ScoreRequest": "text_1: texts, text_2: texts, model?: text, truncate?: truth",
    "Score": "index: count, score: any",
    "Scores": "object: text, model: text, data: [Score], usage: Usage",
    "EmbedRequest": "inputs: texts, model?: text, truncate?: truth, normalize?: truth, prompt_name?: text, "
    f"dimensions?: count, {CUT}",
    "Parameters": "top_k?: count, function_to_apply?: text, aggregation_strategy?: text, ignore_labels?: [text]",
    "PredictRequest": "inputs: texts, model?: text, truncate?: truth, raw_scores?: truth, parameters?: Parameters, "
    f"{CUT}",
    "TokensRequest": "inputs: [text], model?: text, truncate?: truth, raw_scores?: truth, "
    f"aggregation_strategy?: text, ignore_labels?: [text], {CUT}",
    "Info": "model_id: text, model_type: Object, max_input_length: count, max_client_batch_size: count",
}
KINDS: dict[str, Schema] = {
    "any": {},
    "text": {"type": "string"},
    "count": {"type": "integer", "minimum": 0},
    "number": {"type": "integer"},
    "shape": {
        "type": "array",
        "items": {"type": "integer", "minimum": -1},
        "description": "-1 first: the batch; -1 behind it: a size that differs from row to row",
    },
    "truth": {"type": "boolean"},
    "datatype": {"enum": sorted({BYTES_TYPE, *DATATYPES.values()})},
    "texts": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    "encoding": {"enum": ["float", "base64"]},
    "direction": {"enum": ["Left", "Right"]},
    "vector": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]},
    "trace_level": {"type": "array", "items": {"enum": ["OFF", "TIMESTAMPS"]}},
    **{name: {"type": ["string", "null"], "pattern": f"^(?:{pattern})$"} for name, pattern in NUMBERS.items()},
}


def _kind(name: str) -> Schema:
    """Return the schema of a kind."""
    if name.startswith("["):
        return {"type": "array", "items": _kind(name[1:-1])}
    return KINDS.get(name, {"$ref": f"#/components/schemas/{name}"})


def _body(fields: str) -> Schema:
    """Return the schema of an object with these fields."""
    found = dict(field.split(": ") for field in fields.split(", ") if field)
    required = [name for name in found if not name.endswith("?")]
    properties = {name.removesuffix("?"): _kind(kind) for name, kind in found.items()}
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


SCHEMAS: dict[str, Schema] = {
    **{name: _body(fields) for name, fields in BODIES.items()},
    "Any": _kind("any"),
    "Text": _kind("text"),
    "Index": _kind("[IndexEntry]"),
    "Regions": _kind("[Region]"),
    "Vectors": _kind("[vector]"),
    "Predictions": _kind("[any]"),
}


# A route and its description -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """A route: who may call it, the verb that answers, and its description in `/v2/openapi.json` if it has a `summary`.

    Braces in `path` name parts (`PARTS`), brackets are optional parts. `reply` and `body` name schemas. A `health`
    route has the same schema for 400 as for 200. `reply_media` are those of the reply, where they are not those of the
    body. `errors` is how it reports errors.
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
    errors: Errors = OWN

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern for paths that lead here; it also takes names that no model or repository can have."""
        optional = self.path.replace("[", "(?:").replace("]", ")?").replace(".", r"\.")
        parts = PARTS | dict.fromkeys(("model", "repository"), "[^/]+")
        return re.compile(re.sub(r"{(\w+)}", lambda found: f"(?P<{found[1]}>{parts[found[1]]})", optional))


def document(routes: Iterable[Route], prefix: str = "") -> Json:
    """Return the description of routes as plain types; the paths of the server begin with `prefix`."""
    paths: dict[str, Json] = {}
    for route in routes:
        for path in _variants(route.path) if route.summary else ():
            paths.setdefault(path, {})[route.method.lower()] = _described(route, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "latebind",
            "version": __version__,
            "description": "The Open Inference Protocol v2 with extensions, and latebind's own calls.",
        },
        **({"servers": [{"url": prefix}]} if prefix else {}),
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
    found: Json = {str(status): _refusal(status, route.errors) for status in sorted(statuses)}
    if route.health:
        found["400"] = _reply("Not live or not ready, or the request is invalid.", route.reply, "Error")
    media = route.reply_media or route.media
    return {"200": _reply(route.summary, route.reply, media=media), **found}


def _refusal(status: int, errors: Errors) -> Json:
    if errors is OWN:
        return {"$ref": f"#/components/responses/Status{status}"}
    return _reply(STATUSES[status], errors.schema)


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
