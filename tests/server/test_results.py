"""What clients get of outputs: the best classes of each row, in JSON and binary, and as tritonclient reads them."""

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from latebind.server.calls import best_classes
from latebind.server.gateway import Array
from tests.server.bodies import DOUBLE, request, sixteen
from tests.server.conftest import Site


def test_the_best_come_first_with_their_values_as_triton_writes_them() -> None:
    rows = np.array([[0.5, 2.0, -1.0], [3.0, 3.0, 4.0]], np.float32)
    assert best_classes(rows, 2) == [["2.000000:1", "0.500000:0"], ["4.000000:2", "3.000000:0"]]
    assert best_classes(np.array([[7, 250, 9]], np.uint8), 2) == [["250:1", "9:2"]]


@given(arrays.arrays(np.int8, st.integers(1, 40), elements=st.integers(-3, 3)), st.integers(1, 45))
def test_the_best_are_those_of_a_whole_sort_in_which_equals_keep_their_order(row: Array, count: int) -> None:
    whole = sorted(range(len(row)), key=lambda index: (-int(row[index]), index))[:count]
    assert best_classes(row.reshape(1, -1), count) == [[f"{row[index]}:{index}" for index in whole]]


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


def test_truths_have_no_best_class(site: Site) -> None:
    truths = {"name": "x", "shape": [1, 3], "datatype": "BOOL", "data": [True, False, True]}
    asked = [{"name": "y", "parameters": {"classification": 1}}]
    assert "no class is best" in site.post("/v2/models/invert/infer", request(truths, outputs=asked)).error
    assert site.post(DOUBLE, request(sixteen())).status == 200
