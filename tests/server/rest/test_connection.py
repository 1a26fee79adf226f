"""Calls on one connection: each has its own answer, in its turn, however often the same bytes came before."""

import json
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.server.conftest import Response, Site, opened, read_response

TEXT = json.dumps(
    {
        "inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}],
        "parameters": {"binary_data_output": True},
    }
).encode()


def call(model: str, body: bytes, headers: bytes = b"") -> bytes:
    head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost\r\n%b" % (model.encode(), headers)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def numbers(value: float) -> bytes:
    data = [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [value] * 16}]
    return call("double", json.dumps({"inputs": data}).encode())


def binary(value: float) -> bytes:
    return call(
        "double", TEXT + struct.pack("<16f", *[value] * 16), b"Inference-Header-Content-Length: %d\r\n" % len(TEXT)
    )


def one(model: str, **more: object) -> bytes:
    data = [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]
    return call(model, json.dumps({"inputs": data, **more}).encode())


def ask(connection: socket.socket, *requests: bytes) -> list[Response]:
    """Send these, each once the one before is answered."""
    replies = []
    for request in requests:
        connection.sendall(request)
        replies.append(read_response(connection))
    return replies


@pytest.mark.parametrize("model", ["failing", "crashing"])
def test_a_failure_goes_by_the_clients_id(model: str, caplog: pytest.LogCaptureFixture) -> None:
    with opened() as site, site.connect() as connection:
        (reply,) = ask(connection, one(model, id="order-17"))
    assert reply.json() == {"error": "internal error, request id order-17"}
    assert "request order-17 failed" in caplog.messages


@pytest.mark.parametrize(
    "wrong",
    [
        binary(1.0).replace(b'"FP32"', b'"FP64"'),
        binary(1.0).replace(b"[1, 16]", b"[1, 61]"),
        numbers(1.0).replace(b"1.0, 1.0", b'"1", 1.0'),
        numbers(1.0).replace(b'"inputs"', b'"output"'),
        numbers(1.0).replace(b"[1.0, 1.0, 1.0", b'[1.0],"b":[1.0'),
    ],
)
def test_what_is_wrong_with_a_body_is_told_and_its_places_come_back(site: Site, wrong: bytes) -> None:
    with site.connect() as connection:
        ask(connection, binary(1.0), numbers(1.0))
        taken = site.taken
        (reply,) = ask(connection, wrong)
        assert reply.error
        assert site.taken == taken
        assert ask(connection, binary(1.0))[0].status == 200


def test_requests_are_answered_in_their_turn(site: Site) -> None:
    last = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with site.connect() as connection:
        ask(connection, binary(1.0))
        connection.sendall(binary(1.0) + binary(2.0))
        connection.sendall(binary(3.0) + last)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    values = [struct.pack("<16f", *[value] * 16) for value in (2.0, 4.0, 6.0)]
    places = [received.index(value) for value in (*values, b'"live":true')]
    assert places == sorted(places)


@pytest.mark.parametrize("asked", [numbers, binary], ids=["json", "binary"])
def test_a_connection_follows_a_model_to_its_next_version(asked: Callable[[float], bytes]) -> None:
    with opened() as site, site.connect() as connection:
        ask(connection, asked(1.0))
        models = site.gateway.models
        site.gateway.models = {**models, "double": replace(models["double"], version="7")}
        replies = ask(connection, asked(2.0), asked(3.0))
        assert [re.search(rb'"model_version":"([0-9]+)"', reply.body)[1] for reply in replies] == [b"7"] * 2  # type: ignore[index]
