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
