"""Binary tensors whose sizes overflow, disagree or lie, and bodies that are not what their header says."""

import json
import struct
from typing import Any

import pytest

from tests.server.bodies import DOUBLE, SCALAR, request
from tests.server.conftest import Response, Site
from tests.server.hostile.wire import check_clean, send_raw

BLOB = bytes(64)


def call(
    site: Site, head: object, blob: bytes = BLOB, *, said: int | str | None = None, path: str = DOUBLE
) -> Response:
    """Post JSON with bytes behind it; the header says the JSON's length, or what is `said`."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    length = str(len(text) if said is None else said)
    return site.post(path, text + blob, {"Inference-Header-Content-Length": length})


def tensor(size: object = 64, **change: object) -> dict[str, Any]:
    return {
        "name": "x",
        "shape": [1, 16],
        "datatype": "FP32",
        "parameters": {"binary_data_size": size},
        **change,
    }


LENGTHS = ["-1", "0x40", "1e2", "", " ", "1 1", "1,1", "٣", "9" * 18, "9" * 400, "+10", "1_0", "none", "\x0b5"]


@pytest.mark.parametrize("said", LENGTHS, ids=lambda said: ascii(said)[:30])
def test_a_length_of_json_that_is_none_is_refused(site: Site, said: str) -> None:
    body = json.dumps(request(tensor())).encode() + BLOB
    line = f"POST {DOUBLE} HTTP/1.1\r\nHost: localhost\r\n"
    head = f"{line}Content-Length: {len(body)}\r\nInference-Header-Content-Length: {said}\r\n\r\n"
    reply, _ = send_raw(site, head.encode() + body)
    assert reply.status == 400
    check_clean(reply)


def test_a_boolean_that_is_neither_true_nor_false_is_refused(site: Site) -> None:
    given = {"name": "x", "shape": [1, 3], "datatype": "BOOL", "parameters": {"binary_data_size": 3}}
    assert call(site, request(given), b"\0\1\0", path="/v2/models/invert/infer").status == 200
    for byte in (b"\2", b"\x80", b"\xff"):
        check_clean(call(site, request(given), b"\0\1" + byte, path="/v2/models/invert/infer"))


def test_no_bytes_of_another_call_come_back(site: Site) -> None:
    secret, given = struct.pack("<16f", *[1234.5] * 16), request(tensor())
    assert call(site, given, secret).status == 200
    short = json.dumps(given).encode() + bytes(8)
    for raw in (short, short + bytes(20)):
        reply = site.post(DOUBLE, raw, {"Inference-Header-Content-Length": str(len(json.dumps(given)))})
        assert reply.status == 400
        assert b"2469" not in reply.body
        assert struct.pack("<f", 2469.0) not in reply.body


@pytest.mark.parametrize("length", [0, 1, 7, 9, 16, 1000])
def test_a_body_without_json_of_another_length_is_refused(site: Site, length: int) -> None:
    reply = call(site, b"", bytes(length), said=0, path=SCALAR)
    assert reply.status == 400
    check_clean(reply)
