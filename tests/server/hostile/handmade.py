"""A model directory written by hand: one matrix, four numbers in and out. What is good, for others to spoil."""

import json
import struct
from typing import Any

Files = dict[str, bytes]

TENSOR = {"name": "x", "dtype": "float32", "shape": [4], "padding": None, "limit": None}
MODEL = {
    "format": 1,
    "name": "tiny",
    "version": "1",
    "inputs": [TENSOR],
    "outputs": [{**TENSOR, "name": "y"}],
    "cuts": [],
    "backend": "eager",
    "tolerance": None,
    "max_batch": 2,
}
TYPE = {"dtype": "float32", "shape": [None, 4]}
LINEAR = {
    "name": "linear",
    "op": "aten.linear.default",
    "args": [{"value": "x"}, {"weight": "weight"}],
    "type": TYPE,
}
GRAPH: dict[str, Any] = {
    "format": 1,
    "inputs": [{"name": "x", "dtype": "float32", "shape": [4]}],
    "nodes": [LINEAR],
    "outputs": [["y", "linear"]],
}
PROFILE = {
    "hardware": {"cpu": "none", "cores": 1, "threads": 1, "torch": "0", "openvino": "0"},
    "backend": "eager",
    "stages": [{"lengths": [1], "curves": [{"batches": [1], "seconds": [0.001]}]}],
    "weight_bytes": 64,
    "load_seconds": 0.001,
    "output_steps": [1],
}
WEIGHT = {"weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}


def tensors(header: object = WEIGHT, data: bytes = bytes(64), *, said: int | None = None) -> bytes:
    """A safetensors file with this header, whose length may be said otherwise."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if said is None else said) + text + data


def good() -> Files:
    return {
        "model.json": json.dumps(MODEL).encode(),
        "graph.json": json.dumps(GRAPH).encode(),
        "profile.json": json.dumps(PROFILE).encode(),
        "weights.safetensors": tensors(),
    }
