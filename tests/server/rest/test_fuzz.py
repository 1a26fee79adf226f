"""Bodies and headers that a fuzzer makes: never a 5xx, always an error in the protocol's form, always standing."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import Site

SMALL = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY = st.recursive(LEAVES, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=4), x, max_size=4))


def fields(**known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object of which every field may be right, wrong or absent."""
    return st.fixed_dictionaries({}, optional={name: right | ANY for name, right in known.items()})


INPUT = fields(
    name=st.just("x"),
    shape=st.just([1, 16]) | st.lists(st.integers(), max_size=3),
    datatype=st.sampled_from(["FP32", "FP16", "BYTES"]),
    data=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=16),
    parameters=fields(binary_data_size=st.just(64) | st.integers(), shared_memory_region=st.text()),
)
OUTPUT = fields(name=st.just("y"), parameters=fields(binary_data=st.booleans(), classification=st.integers()))
REQUEST = fields(
    id=st.text(),
    inputs=st.lists(INPUT, min_size=1, max_size=2),
    outputs=st.lists(OUTPUT, max_size=2),
    parameters=fields(timeout=st.integers(), binary_data_output=st.booleans(), sequence_id=st.text()),
)


def check(site: Site, body: bytes, headers: dict[str, str] | None = None) -> None:
    reply = site.post("/v2/models/double/infer", body, headers)
    assert reply.status == 200 or reply.error


@SMALL
@given(REQUEST)
def test_requests_that_are_nearly_right_never_break_the_frontend(site: Site, request_: dict[str, Any]) -> None:
    check(site, json.dumps(request_).encode())


@SMALL
@given(st.binary(max_size=200), st.none() | st.integers(-1, 250) | st.text("0123456789 -+x", max_size=5))
def test_bytes_never_break_the_frontend(site: Site, body: bytes, length: int | str | None) -> None:
    check(site, body, {} if length is None else {"Inference-Header-Content-Length": str(length)})


@SMALL
@given(REQUEST, st.integers(-80, 80), st.binary(max_size=80))
def test_binary_parts_that_are_nearly_right_never_break_the_frontend(
    site: Site, request_: dict[str, Any], off: int, blob: bytes
) -> None:
    head = json.dumps(request_).encode()
    check(site, head + blob, {"Inference-Header-Content-Length": str(len(head) + off)})
