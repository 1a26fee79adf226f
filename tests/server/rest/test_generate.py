"""`/generate` and `/generate_stream`: one row in plain JSON, and its tokens as events."""

import json
from typing import Any

import pytest

from tests.server.conftest import Site

ECHO = "/v2/models/echo/generate"
ROW = {"x": [5, 8, 2]}


def events(body: bytes) -> list[dict[str, Any]]:
    *parts, end = body.split(b"\n\n")
    assert end == b""
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


@pytest.mark.parametrize(
    ("model", "given", "answer"),
    [
        ("scalar", {"x": 21}, {"y": 42.0}),
        ("double", {"x": list(range(16))}, {"y": [2.0 * x for x in range(16)]}),
        ("bytes", {"x": [[1, 2, 3], [4, 5, 6]]}, {"y": [[2, 4, 6], [8, 10, 12]]}),
        ("pair", {"a": [[1, 2], [3, 4]], "b": [5, 6, 7]}, {"sum": 28.0, "b": [5, 6, 7]}),
        ("pair", {"b": [5, 6, 7], "a": [1, 2, 3, 4]}, {"sum": 28.0, "b": [5, 6, 7]}),
        ("text", {"ids": [5, 6, 7], "mask": [1, 1, 0]}, {"y": [5, 6, 0], "length": 2}),
        ("sound", {"x": [[1, 2, 3], [4, 5, 6]]}, {"y": [[2, 4, 6], [8, 10, 12]]}),
        ("sound", {"x": [1, 2]}, {"y": [[2], [4]]}),
        ("picture", {"x": [[[1, 2]] * 4] * 2}, {"y": [[[1]] * 4] * 2}),
    ],
)
def test_any_model_can_be_asked_and_its_outputs_are_as_its_rows_are(
    site: Site, model: str, given: Any, answer: Any
) -> None:
    about = {"model_name": model, "model_version": "1"}
    assert site.post(f"/v2/models/{model}/generate", given).json() == {**about, **answer}
    streamed = site.post(f"/v2/models/{model}/generate_stream", given)
    assert events(streamed.body) == [{**about, **answer}]


def test_tokens_are_events_and_make_up_the_answer(site: Site) -> None:
    reply = site.post(ECHO + "_stream", {**ROW, "id": "b"})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [found["y"] for found in events(reply.body)] == [[5], [8], [2]]
    assert all(found["id"] == "b" for found in events(reply.body))


def test_an_older_client_gets_plain_bytes_up_to_the_end(site: Site) -> None:
    body = json.dumps(ROW).encode()
    head = f"POST {ECHO}_stream HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    reply = site.send(head + body)
    assert "transfer-encoding" not in reply.headers
    assert reply.headers["connection"] == "close"
    assert [found["y"] for found in events(reply.body)] == [[5], [8], [2]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "'x' is missing"),
        ({"x": []}, "length=0: it must be 1 to 6"),
        ({"x": [1] * 7}, "length=7: it must be 1 to 6"),
        ({"x": 5.5}, "not INT64"),
        ({"x": [2**70]}, "INT64"),
        ({"text_input": "a", "x": [1]}, "no input 'text_input'"),
        ({"x": [1], "parameters": {"timeout": -1}}, "timeout is -1"),
        ({"x": [1], "parameters": {"sequence_id": 5}}, "leave sequence_id out"),
        ({"x": [1], "parameters": {"sequence_id": "a"}}, "leave sequence_id out"),
        ({"x": [1], "parameters": 5}, "not a generate request"),
        (b"", "body is empty"),
        (b"[" * 10_000, "nested"),
    ],
)
@pytest.mark.parametrize("path", [ECHO, ECHO + "_stream"])
def test_what_is_no_row_is_refused(site: Site, path: str, given: object, says: str) -> None:
    reply = site.post(path, given)
    assert reply.status == 400
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(reply.error)
    assert site.is_well()


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        ("invert", {"x": [1, 0, 1]}, "not BOOL"),
        ("picture", {"x": [1.0] * 32}, "tensor 'x' may have any H and W: send nested lists, or its `shape` by /infer"),
        ("picture", {"x": [[[1.0]] * 6] * 2}, "tensor 'x' has H=6: it must be 4 to 8 in steps of 4"),
        ("picture", {"x": [[1.0] * 8] * 2}, "not FP32: Expected `array`, got `float`"),
        ("picture", {"x": [[[1.0, 2.0], [1.0]] * 4] * 2}, "lists on the same level differ in length"),
        ("sound", {"x": [1.0] * 3}, "has 3 values: a row has 2 for each T"),
        ("sound", {"x": [[1.0, 2.0]] * 3}, "has shape [1, 3, 2]: it must be [-1, 2, T]"),
        ("sound", {"x": [1.0] * 20}, "T=10: it must be 1 to 9"),
        ("text", {"ids": [1, 2], "mask": [1]}, "'mask' has L=1: it must be 2 to 12"),
    ],
)
def test_values_that_no_row_of_the_model_has_are_refused(site: Site, model: str, given: object, says: str) -> None:
    assert says in site.post(f"/v2/models/{model}/generate", given).error
