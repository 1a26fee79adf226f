"""Bodies of infer calls that the tests of the frontend share."""

from typing import Any

DOUBLE = "/v2/models/double/infer"
SCALAR = "/v2/models/scalar/infer"


def sixteen(**change: object) -> dict[str, Any]:
    return {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": list(range(16)), **change}


def request(*inputs: dict[str, Any], **rest: object) -> dict[str, Any]:
    return {"inputs": list(inputs) or [sixteen()], **rest}
