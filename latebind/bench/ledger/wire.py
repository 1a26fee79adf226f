"""Encodes the ledger's requests and decodes their answers."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np
import orjson

from latebind.bench.ledger.books import Answer
from latebind.bench.ledger.questions import KINDS, Protocol, Question

DATATYPES = {"float32": "FP32", "int64": "INT64"}
TYPES: Mapping[str, np.dtype[Any]] = {"FP32": np.dtype("float32"), "INT64": np.dtype("int64")}
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
JSON_LENGTH = "inference-header-content-length"


def http_request(question: Question, host: str) -> tuple[bytes, int]:
    """Return the bytes of a request, and how many of them are its head."""
    kind, rows = KINDS[question.model], question.rows
    tensor: dict[str, object] = {"name": kind.input, "shape": list(rows.shape), "datatype": DATATYPES[kind.dtype]}
    parameters: dict[str, object] = {"timeout": round(question.deadline * 1e6), "priority": question.priority}
    if question.protocol is Protocol.BINARY:
        tensor["parameters"] = {"binary_data_size": rows.nbytes}
        parameters["binary_data_output"] = True
    else:
        tensor["data"] = rows.ravel().tolist()
    text = orjson.dumps({"id": str(question.number), "inputs": [tensor], "parameters": parameters})
    body, length = text, ""
    if question.protocol is Protocol.BINARY:
        body, length = text + rows.tobytes(), f"{JSON_LENGTH}: {len(text)}\r\n"
    path = f"POST /v2/models/{question.model}/infer HTTP/1.1"
    head = f"{path}\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n{length}\r\n".encode()
    return head + body, len(head)


class _Parameters(msgspec.Struct):
    binary_data_size: int = 0


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: _Parameters = msgspec.field(default_factory=_Parameters)
    data: list[float] = msgspec.field(default_factory=list)


class _Reply(msgspec.Struct):
    outputs: list[_Tensor]
    id: str = ""


_read = msgspec.json.Decoder(_Reply).decode


def http_answer(question: Question, json_bytes: int | None, body: bytes) -> Answer:
    """Return the decoded body of a reply; an answer that cannot be read has no rows."""
    try:
        reply = _read(body if json_bytes is None else body[:json_bytes])
        start, wanted = json_bytes or 0, KINDS[question.model].output
        for tensor in reply.outputs:
            dtype, size = TYPES[tensor.datatype], tensor.parameters.binary_data_size
            if tensor.name == wanted:
                flat = np.array(tensor.data, dtype) if not size else np.frombuffer(body[start : start + size], dtype)
                return Answer(reply.id, flat.reshape(tensor.shape))
            start += size
    except (msgspec.MsgspecError, KeyError, ValueError):
        return Answer("", None)
    return Answer(reply.id, None)


def http_error(body: bytes) -> str:
    """Return an error's message."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return repr(body[:100])


@cache
def _messages() -> tuple[type, type]:
    from tritonclient.grpc import service_pb2  # noqa: PLC0415  (grpc is optional)

    return service_pb2.ModelInferRequest, service_pb2.ModelInferResponse


def grpc_request(question: Question) -> bytes:
    """Return the message of a request."""
    request, _ = _messages()
    kind, rows = KINDS[question.model], question.rows
    message = request(model_name=question.model, id=str(question.number), raw_input_contents=[rows.tobytes()])
    message.inputs.add(name=kind.input, datatype=DATATYPES[kind.dtype], shape=rows.shape)
    message.parameters["timeout"].int64_param = round(question.deadline * 1e6)
    message.parameters["priority"].uint64_param = question.priority
    data: bytes = message.SerializeToString()
    return data


def grpc_answer(question: Question, data: bytes) -> Answer:
    """Return the decoded reply."""
    _, reply = _messages()
    message = reply.FromString(data)  # type: ignore[attr-defined]
    wanted = KINDS[question.model].output
    for tensor, raw in zip(message.outputs, message.raw_output_contents, strict=False):
        if tensor.name == wanted and len(raw) == np.prod(tensor.shape) * TYPES[tensor.datatype].itemsize:
            return Answer(message.id, np.frombuffer(raw, TYPES[tensor.datatype]).reshape(tuple(tensor.shape)))
    return Answer(message.id, None)
