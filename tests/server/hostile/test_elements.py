"""BYTES that a fuzzer makes, over HTTP and gRPC: each call is answered rightly or refused, and nothing is held."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.server.conftest import Raw, Site
from tests.server.hostile.wire import check_clean
from tests.server.rpc.conftest import outputs
from tests.server.words import LONGEST, numbers

SMALL = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
INFER = "/v2/models/reads/infer"
ODD = st.sampled_from([0, 1, 2, 3, 4, 63, 1 << 31, (1 << 32) - 1, 1 << 62, -1])
CHARACTERS = st.characters(codec="utf-8") | st.sampled_from(" \t\0\u2028\ufeff\U0010ffff")
TEXT = st.text(CHARACTERS, max_size=30)
BLOB = st.binary(max_size=24)
FRAMED = st.lists(st.tuples(BLOB, st.sampled_from((0, 0, 0, 1, -1, 1 << 31))), max_size=4)


def framed(some: Sequence[tuple[bytes, int]]) -> bytes:
    """Elements with their lengths, some of which lie."""
    return b"".join([max(0, len(one) + off).to_bytes(4, "little") + one for one, off in some])


def scores(text: str) -> list[float]:
    ids = numbers(text)
    return [sum(ids), len(ids), -sum(ids)]


def is_text(text: str) -> bool:
    return "\0" not in text and 1 <= len(text.split()) <= LONGEST


def message(shape: Sequence[int], contents: Sequence[bytes] = (), raw: Sequence[bytes] = ()) -> bytes:
    asked = service_pb2.ModelInferRequest(model_name="reads", raw_input_contents=raw)
    given = asked.inputs.add(name="text", datatype="BYTES", shape=shape)
    if not raw:
        given.contents.bytes_contents.extend(contents)
    asked.outputs.add(name="scores")
    written: bytes = asked.SerializeToString()
    return written


@SMALL
@given(st.lists(TEXT, min_size=1, max_size=5))
def test_texts_of_any_characters_are_answered_rightly_or_refused(site: Site, raw: Raw, texts: list[str]) -> None:
    body = {
        "inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}],
        "outputs": [{"name": "scores"}],
    }
    reply, asked = site.post(INFER, body), message([len(texts)], [text.encode() for text in texts])
    if not all(map(is_text, texts)):
        check_clean(reply)
        assert raw.refusal(asked)[0] == "INVALID_ARGUMENT"
        return
    right = [scores(text) for text in texts]
    assert np.array(reply.json()["outputs"][0]["data"]).reshape(-1, 3).tolist() == right
    assert outputs(service_pb2.ModelInferResponse.FromString(raw.call(asked)))[0].tolist() == right


@SMALL
@given(FRAMED, ODD | st.integers(1, 4), st.sampled_from((0, 0, 1, -1)), st.booleans())
def test_elements_whose_lengths_lie_are_answered_rightly_or_refused(
    site: Site, raw: Raw, some: list[tuple[bytes, int]], count: int, off: int, column: bool
) -> None:
    blob, shape = framed(some), [count, 1] if column else [count]
    given = {
        "name": "text",
        "shape": shape,
        "datatype": "BYTES",
        "parameters": {"binary_data_size": max(0, len(blob) + off)},
    }
    head = json.dumps({"inputs": [given], "outputs": [{"name": "scores"}]}).encode()
    reply = site.post(INFER, head + blob, {"Inference-Header-Content-Length": str(len(head))})
    whole = count == len(some) and not any(off for _, off in some) and blob != b""
    try:
        texts = [one.decode() for one, _ in some] if whole else []
    except UnicodeDecodeError:
        texts = []
    well = whole and texts != [] and all(map(is_text, texts))
    if well and not off:
        assert np.array(reply.json()["outputs"][0]["data"]).reshape(-1, 3).tolist() == [scores(text) for text in texts]
    elif well or (off and blob):
        check_clean(reply)
    asked = message(shape, raw=[blob])
    if well:
        found = outputs(service_pb2.ModelInferResponse.FromString(raw.call(asked)))[0]
        assert found.tolist() == [scores(text) for text in texts]


LEAVES: Any = st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=3)


@SMALL
@given(
    st.lists(LEAVES | st.lists(LEAVES, max_size=2), max_size=4) | LEAVES,
    st.lists(ODD, max_size=3),
    st.sampled_from(["BYTES", "INT64", "STRING", ""]),
    st.sampled_from(["text", "text_pair", "ids", "image"]),
    st.sampled_from([None, {}, {"content_type": "base64"}, {"content_type": "pd"}, {"content_type": 1}]),
)
def test_json_of_any_kind_never_breaks_the_frontend(
    site: Site, data: object, shape: list[int], datatype: str, name: str, parameters: object
) -> None:
    one = {"name": name, "shape": shape, "datatype": datatype, "data": data, "parameters": parameters}
    reply = site.post(INFER, {"inputs": [one], "outputs": [{"name": "scores"}]})
    assert reply.status == 200 or reply.error
    reply = site.post("/v2/models/reads/generate", {name: data, "parameters": {"truncate": True}})
    assert reply.status == 200 or reply.error


def test_a_million_empty_strings_cost_little(site: Site) -> None:
    for data in ([""] * 1_000_000, [[""]] * 1_000_000):
        one = {"name": "text", "shape": [1], "datatype": "BYTES", "data": data}
        assert "more elements than its shape" in check_clean(site.post(INFER, {"inputs": [one]}))
    blob = bytes(4_000_000)
    given = {**one, "parameters": {"binary_data_size": len(blob)}}
    del given["data"]
    head = json.dumps({"inputs": [given]}).encode()
    told = check_clean(site.post(INFER, head + blob, {"Inference-Header-Content-Length": str(len(head))}))
    assert "after the 1 elements" in told
