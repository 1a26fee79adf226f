"""The JSON Schemas of the OpenAPI description: the bodies of calls and replies."""

from collections.abc import Mapping

from latebind.server.settings import NUMBERS
from latebind.server.tensors import DATATYPES

Json = Mapping[str, object]

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
TRUTH: Json = {"type": "boolean"}
ANYTHING: Json = {}
SHAPE: Json = {"type": "array", "items": {"type": "integer"}}
DATATYPE: Json = {"enum": sorted(set(DATATYPES.values()))}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _object(required: Mapping[str, Json] | None = None, /, **optional: Json) -> Json:
    """Describe an object with these properties. It may have more, both from clients and in replies."""
    found: dict[str, object] = {"type": "object", "properties": {**(required or {}), **optional}}
    if required:
        found["required"] = list(required)
    return found


def _to(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


PLACE: dict[str, Json] = {
    "shared_memory_region": TEXT,
    "shared_memory_byte_size": COUNT,
    "shared_memory_offset": COUNT,
}
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
SWITCHES: dict[str, Json] = {"log_info": TRUTH, "log_warning": TRUTH, "log_error": TRUTH, "log_verbose_level": COUNT}
TRACE_LEVEL: Json = _list({"enum": ["OFF", "TIMESTAMPS"]})
TRACE_NUMBERS: dict[str, Json] = {
    name: {"type": ["string", "null"], "pattern": f"^(?:{pattern})$"} for name, pattern in NUMBERS.items()
}

SCHEMAS: dict[str, Json] = {
    "Any": ANYTHING,
    "Object": _object(),
    "Text": TEXT,
    "Error": _object({"error": TEXT}),
    "Live": _object({"live": TRUTH}),
    "Ready": _object({"ready": TRUTH}),
    "ModelReady": _object({"name": TEXT, "ready": TRUTH}),
    "ServerMetadata": _object({"name": TEXT, "version": TEXT, "extensions": _list(TEXT)}),
    "Models": _object({"models": _list(TEXT)}),
    "Tensor": _object({"name": TEXT, "datatype": DATATYPE, "shape": SHAPE}),
    "ModelMetadata": _object(
        {
            "name": TEXT,
            "versions": _list(TEXT),
            "platform": TEXT,
            "inputs": _list(_to("Tensor")),
            "outputs": _list(_to("Tensor")),
        }
    ),
    "ModelConfig": _object({"name": TEXT, "platform": TEXT, "max_batch_size": COUNT, "input": _list(_object())}),
    "Duration": _object({"count": COUNT, "ns": COUNT}),
    "ModelStatistics": _object(
        {
            "name": TEXT,
            "version": TEXT,
            "last_inference": COUNT,
            "inference_count": COUNT,
            "execution_count": COUNT,
            "inference_stats": _object(dict.fromkeys(KINDS, _to("Duration"))),
            "response_stats": _object(),
            "batch_stats": _list(_object({"batch_size": COUNT, "compute_infer": _to("Duration")})),
            "memory_usage": _list(_object({"type": TEXT, "id": COUNT, "byte_size": COUNT})),
        }
    ),
    "Statistics": _object({"model_stats": _list(_to("ModelStatistics"))}),
    "InputTensor": _object(
        {"name": TEXT, "datatype": TEXT, "shape": SHAPE},
        data=_list(ANYTHING),
        parameters=_object(binary_data_size=COUNT, **PLACE),
    ),
    "RequestedOutput": _object({"name": TEXT}, parameters=_object(binary_data=TRUTH, classification=COUNT, **PLACE)),
    "InferRequest": _object(
        {"inputs": _list(_to("InputTensor"))},
        id=TEXT,
        outputs=_list(_to("RequestedOutput")),
        parameters=_object(timeout=COUNT, priority=COUNT, binary_data_output=TRUTH),
    ),
    "OutputTensor": _object(
        {"name": TEXT, "datatype": TEXT, "shape": SHAPE}, data=_list(ANYTHING), parameters=_object()
    ),
    "GenerateRequest": _object(id=TEXT, parameters=_object(timeout=COUNT, priority=COUNT)),
    "Event": _object({"data": TEXT}),  # a server-sent event; its data are a GenerateReply or an Error, as JSON
    "GenerateReply": _object({"model_name": TEXT, "model_version": TEXT}, id=TEXT),
    "InferReply": _object(
        {"model_name": TEXT, "model_version": TEXT, "outputs": _list(_to("OutputTensor"))},
        id=TEXT,
        parameters=_object(),
    ),
    "IndexRequest": _object(ready=TRUTH),
    "Index": _list(_object({"name": TEXT}, version=TEXT, state=TEXT, reason=TEXT)),
    "Load": _object(parameters=_object(version=TEXT)),
    "Unload": _object(parameters=_object(unload_dependents=TRUTH)),
    "Traces": _object({"traces": _list(_object({"id": TEXT, "model": TEXT, "outcome": TEXT}))}),
    "TraceSettings": _object(
        {"trace_level": TRACE_LEVEL, "trace_rate": TEXT, "trace_count": TEXT, "log_frequency": TEXT}
    ),
    "TraceChange": _object(trace_level=TRACE_LEVEL, **TRACE_NUMBERS),
    "LogSettings": _object({**SWITCHES, "log_file": TEXT, "log_format": TEXT}),
    "LogChange": _object(**SWITCHES),
    "Region": _object({"name": TEXT, "key": TEXT, "offset": COUNT, "byte_size": COUNT}),
    "Regions": _list(_to("Region")),
    "Registration": _object({"key": TEXT, "byte_size": COUNT}, offset=COUNT),
}
