"""Rows of sequences through the codec: any length up to the longest, and only tokens that the model knows."""

import json
from typing import Any

import numpy as np
import pytest

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.server.limits import Limits
from latebind.server.rest.infer import Codec
from tests.server.taking import take

SPEC = ModelSpec(
    "m",
    "1",
    (TensorSpec("tokens", "int64", (6,), padding=0, limit=10),),
    (TensorSpec("tokens", "int64", (8,), padding=0),),
    2,
    4,
)
CODEC = Codec(SPEC, Limits())


def body(shape: list[int], data: list[Any]) -> bytes:
    tensor = {"name": "tokens", "datatype": "INT64", "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def binary(rows: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[bytes, int]:
    parameters = {"binary_data_size": rows.nbytes}
    tensor = {"name": "tokens", "datatype": "INT64", "shape": list(rows.shape), "parameters": parameters}
    text = json.dumps({"inputs": [tensor]}).encode()
    return text + rows.tobytes(), len(text)


@pytest.mark.parametrize("length", [1, 3, 6])
def test_rows_of_any_length_are_taken(length: int) -> None:
    rows = np.arange(2 * length).reshape(2, length) % 10
    for call in (
        take(CODEC, body([2, length], rows.flatten().tolist())),
        take(CODEC, body([2, length], rows.tolist())),
        take(CODEC, *binary(rows)),
    ):
        padding = [[0] * (6 - length)] * 2
        assert call.rows["tokens"].tolist() == np.hstack([rows, np.array(padding, np.int64)]).tolist()


@pytest.mark.parametrize("token", [-1, 10, 2**62])
def test_tokens_that_the_model_does_not_know_are_refused(token: int) -> None:
    for call in ((body([1, 2], [3, token]),), binary(np.array([[3, token]]))):
        with pytest.raises(InvalidRequest, match="0 to 9"):
            take(CODEC, *call)
