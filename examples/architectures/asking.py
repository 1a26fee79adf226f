"""Asks what was built, a server over HTTP or a program from Python, and compares answers with the expected ones."""

import json
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from examples.architectures.catalogue import ROWS, Rows
from latebind.program.lengths import resized, tried_sizes
from latebind.program.padding import together
from latebind.program.program import Program
from latebind.program.verify import relative_error
from latebind.server.calls import DATATYPES

DTYPES = {datatype: np.dtype(dtype) for dtype, datatype in DATATYPES.items()}
SECONDS = 60  # a deadline that no slow machine misses
HEADER = "Inference-Header-Content-Length"


def worst_difference(url: str, name: str, rows: Rows, expected: Sequence[Tensor]) -> float:
    """Send the first two rows and return max |answer - expected| / max |expected| over all outputs.

    Tensors are sent in binary, because the protocol has no float16 in JSON. Raises `ValueError` with the server's
    message if it does not answer with 200, or if an output has another shape.
    """
    inputs = [(key, tensor[:2].contiguous()) for key, tensor in rows.items()]
    head = json.dumps({"inputs": [_described(*one) for one in inputs], "parameters": _parameters()}).encode()
    body = head + b"".join(tensor.numpy().tobytes() for _, tensor in inputs)
    connection = HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=SECONDS)
    connection.request("POST", f"/v2/models/{name}/infer", body, {HEADER: str(len(head))})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    if response.status != 200:
        raise ValueError(f"status {response.status}: {data[:200].decode()}")
    length = int(response.headers[HEADER])
    outputs, begin = json.loads(data[:length])["outputs"], length
    worst = 0.0
    for one, tensor in zip(outputs, expected, strict=True):
        end = begin + one["parameters"]["binary_data_size"]
        worst = max(worst, _difference(one, data[begin:end], tensor[:2]))
        begin = end
    return worst


def worst_at_sizes(program: Program, run: Callable[..., tuple[Tensor, ...]], rows: Rows, count: int) -> float:
    """Return the largest relative error of answers at `count` random sizes and both ends, each row at its own size.

    Rows are asked alone, and several together: of different sizes where these share a batch, else of one. `run` is the
    module.
    """
    spec, worst = program.spec, 0.0
    given, several = tuple(rows.values()), []
    for place, sizes in enumerate(tried_sizes(spec.dims, count, seed=3)):
        some = resized(given, spec.inputs, sizes)
        row = tuple(tensor[place % ROWS :][:1] for tensor in some)
        expected = run(*row)
        worst = max(worst, relative_error(program.run(*row), expected))
        several.append((row, expected))
        if not spec.pads:
            worst = max(worst, relative_error(program.run(*some), run(*some)))
        elif len(several) == ROWS:
            joins = [(place + number) % spec.stages for number in range(ROWS)]
            found = together(program.stages, program.graphs, spec.inputs, [row for row, _ in several], joins)
            worst = max(
                [worst, *(relative_error(one, wanted) for one, (_, wanted) in zip(found, several, strict=True))]
            )
            several = []
    return worst


def _parameters() -> dict[str, Any]:
    return {"binary_data_output": True, "timeout": SECONDS * 1_000_000}


def _described(name: str, tensor: Tensor) -> dict[str, Any]:
    datatype = DATATYPES[str(tensor.dtype).removeprefix("torch.")]
    size = {"binary_data_size": tensor.nbytes}
    return {"name": name, "datatype": datatype, "shape": list(tensor.shape), "parameters": size}


def _difference(described: dict[str, Any], data: bytes, expected: Tensor) -> float:
    found = np.frombuffer(data, DTYPES[described["datatype"]]).reshape(described["shape"])
    wanted = expected.double()
    if found.shape != tuple(wanted.shape):
        raise ValueError(f"{described['name']} came in shape {found.shape}, not {tuple(wanted.shape)}")
    difference = (torch.from_numpy(found.astype(np.float64)) - wanted).abs().max()
    return float(difference / wanted.abs().max().clamp_min(1e-30))
