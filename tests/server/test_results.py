"""What clients get of outputs: the best classes of each row, in JSON and binary, and as tritonclient reads them."""

import json

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from latebind.server.gateway import Array
from latebind.server.results import Result, best_classes
from tests.server.bodies import DOUBLE, request, sixteen
from tests.server.conftest import Site


def test_the_best_come_first_with_their_values_as_triton_writes_them() -> None:
    rows = np.array([[0.5, 2.0, -1.0], [3.0, 3.0, 4.0]], np.float32)
    assert best_classes(rows, 2) == [["2.000000:1", "0.500000:0"], ["4.000000:2", "3.000000:0"]]
    assert best_classes(np.array([[7, 250, 9]], np.uint8), 2) == [["250:1", "9:2"]]


def test_there_are_no_more_classes_than_values() -> None:
    assert best_classes(np.array([[1, 2]], np.int64), 9) == [["2:1", "1:0"]]
    assert best_classes(np.array([5.0]), 3) == [["5.000000:0"]]


def test_rows_of_several_dimensions_are_counted_through() -> None:
    assert best_classes(np.arange(8).reshape(1, 2, 2, 2), 2) == [["7:7", "6:6"]]


def test_what_is_no_number_comes_last() -> None:
    rows = np.array([[np.nan, 1.0, np.inf, 0.0]], np.float16)
    assert best_classes(rows, 4) == [["inf:2", "1.000000:1", "0.000000:3", "nan:0"]]


@given(arrays.arrays(np.int8, st.integers(1, 40), elements=st.integers(-3, 3)), st.integers(1, 45))
def test_the_best_are_those_of_a_whole_sort_in_which_equals_keep_their_order(row: Array, count: int) -> None:
    whole = sorted(range(len(row)), key=lambda index: (-int(row[index]), index))[:count]
    assert best_classes(row.reshape(1, -1), count) == [[f"{row[index]}:{index}" for index in whole]]


def test_a_text_in_binary_is_its_length_and_its_bytes() -> None:
    assert bytes(Result("BYTES", (1, 2), ["1:0", "é"]).raw()) == b"\3\0\0\0001:0\2\0\0\0\xc3\xa9"


def test_classes_in_json_are_texts(site: Site) -> None:
    asked = [{"name": "y", "parameters": {"classification": 2}}]
    (output,) = site.post(DOUBLE, request(outputs=asked)).json()["outputs"]
    assert output == {"name": "y", "datatype": "BYTES", "shape": [1, 2], "data": ["30.000000:15", "28.000000:14"]}


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_reads_the_classes_of_each_row(site: Site, binary: bool) -> None:
    rows = np.stack([np.arange(16), -np.arange(16)]).astype(np.float32)
    given_input = triton.InferInput("x", [2, 16], "FP32")
    given_input.set_data_from_numpy(rows)
    with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
        wanted = triton.InferRequestedOutput("y", class_count=3, binary_data=binary)
        found = client.infer("double", [given_input], outputs=[wanted]).as_numpy("y")
    texts = [[text.decode() if isinstance(text, bytes) else text for text in row] for row in found]
    assert [[int(text.split(":")[1]) for text in row] for row in texts] == [[15, 14, 13], [0, 1, 2]]
    assert float(texts[0][0].split(":")[0]) == 30.0


def test_half_precision_has_classes_in_json_though_it_has_no_values_there(site: Site) -> None:
    given_input = {"name": "x", "shape": [1, 4], "datatype": "FP16", "parameters": {"binary_data_size": 8}}
    head = json.dumps(request(given_input, outputs=[{"name": "y", "parameters": {"classification": 1}}])).encode()
    body = head + np.array([1, 4, 2, 3], np.float16).tobytes()
    reply = site.post("/v2/models/half/infer", body, {"Inference-Header-Content-Length": str(len(head))})
    assert reply.json()["outputs"][0]["data"] == ["8.000000:1"]


def test_truths_have_no_best_class(site: Site) -> None:
    truths = {"name": "x", "shape": [1, 3], "datatype": "BOOL", "data": [True, False, True]}
    asked = [{"name": "y", "parameters": {"classification": 1}}]
    assert "no class is best" in site.post("/v2/models/invert/infer", request(truths, outputs=asked)).error
    assert site.post(DOUBLE, request(sixteen())).status == 200
