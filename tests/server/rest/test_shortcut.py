"""The short way of an infer call answers as the long way does, and what does not fit it goes the long way."""

import json
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from latebind.domain.config import DoorConfig
from latebind.server.limits import Limits
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


def binary(value: float, *, headers: bytes = b"") -> bytes:
    length = b"Inference-Header-Content-Length: %d\r\n" % len(TEXT)
    return call("double", TEXT + struct.pack("<16f", *[value] * 16), length + headers)


def failing(model: str) -> bytes:
    data = [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]
    return call(model, json.dumps({"inputs": data}).encode())


def ask(connection: socket.socket, *requests: bytes) -> list[Response]:
    """Send these, each once the one before is answered."""
    replies = []
    for request in requests:
        connection.sendall(request)
        replies.append(read_response(connection))
    return replies


def told(response: Response) -> tuple[int, set[str], bytes]:
    return response.status, set(response.headers), response.body


@pytest.mark.parametrize("request_", [numbers(3.0), binary(3.0)], ids=["json", "binary"])
def test_a_head_that_came_before_takes_the_short_way_to_the_same_answer(site: Site, request_: bytes) -> None:
    before = site.gateway.short
    with site.connect() as connection:
        first, second = ask(connection, request_, request_)
    assert site.gateway.short == before + 1
    assert told(first) == told(second)
    assert first.status == 200


def test_values_of_a_text_that_is_known_are_those_that_came_with_it(site: Site) -> None:
    with site.connect() as connection:
        replies = ask(connection, *[binary(value) for value in (1.0, 2.0, 3.0)])
    assert [struct.unpack("<f", reply.body[-4:])[0] for reply in replies] == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("asked", [numbers, binary], ids=["json", "binary"])
def test_where_rows_left_is_told_of_each_call_of_a_text_that_is_known(
    site: Site, asked: Callable[[float], bytes]
) -> None:
    with site.connect() as connection:
        replies = ask(connection, *[asked(value) for value in (1.0, 1.0, -1.0, 1.0, -1.0)])
    left = [re.search(rb'"left_at":([0-9])', reply.body) for reply in replies]
    assert [found and int(found[1]) for found in left] == [2, 2, 0, 2, 0]


@pytest.mark.parametrize("wrong", [[], [1.5, 2.5], [[1.5]], ["1"], [True]])
def test_values_that_do_not_fit_are_told_though_the_text_around_them_is_known(site: Site, wrong: list[object]) -> None:
    def scalar(data: object) -> bytes:
        inputs = [{"name": "x", "shape": [1], "datatype": "FP64", "data": data}]
        return call("scalar", json.dumps({"inputs": inputs}).encode().ljust(200))

    with site.connect() as connection:
        *known, refused = ask(connection, scalar([1.5]), scalar([2.5]), scalar(wrong))
    assert [json.loads(reply.body)["outputs"][0]["data"] for reply in known] == [[3.0], [5.0]]
    assert refused.status == 400


@pytest.mark.parametrize("place", ["before the values", "behind them"])
def test_a_text_that_differs_elsewhere_than_in_its_values_is_read_anew(site: Site, place: str) -> None:
    inputs = f'"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":{[1] * 16}}}]'

    def asked(binary: str) -> bytes:
        parts = [f'"parameters":{{"binary_data_output":{binary}}}', inputs]
        return call("double", ("{" + ",".join(parts if place == "before the values" else parts[::-1]) + "}").encode())

    wanted = ["true ", "true ", "true ", "true ", "false", "true "]
    with site.connect() as connection:
        replies = ask(connection, *[asked(binary) for binary in wanted])
    told = ["inference-header-content-length" in reply.headers for reply in replies]
    assert told == [binary == "true " for binary in wanted]


def test_a_short_call_is_known_on_other_connections(site: Site) -> None:
    with site.connect() as connection:
        ask(connection, numbers(1.0))
    before = site.gateway.short
    with site.connect() as connection:
        ask(connection, numbers(2.0))
    assert site.gateway.short == before + 1


@pytest.mark.parametrize("model", ["full", "late", "gone", "failing", "crashing"])
def test_errors_are_told_on_the_short_way_as_on_the_long_one(model: str) -> None:
    with opened() as site, site.connect() as connection:
        make_known(site, model)
        (short,) = ask(connection, failing(model))
        assert site.gateway.short == 1
        site.gateway.at_once = False
        (long,) = ask(connection, failing(model))
    assert short.status == long.status >= 429
    assert set(short.headers) == set(long.headers)
    if short.status != 500:  # which has an id of its own
        assert short.body == long.body


@pytest.mark.parametrize("model", ["failing", "crashing"])
def test_a_failure_on_the_short_way_goes_by_the_clients_id(model: str, caplog: pytest.LogCaptureFixture) -> None:
    data = [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]
    request = call(model, json.dumps({"inputs": data, "id": "order-17"}).encode())
    with opened() as site, site.connect() as connection:
        site.gateway.tame.add(model)
        ask(connection, request)
        site.gateway.tame.discard(model)
        (reply,) = ask(connection, request)
        assert site.gateway.short == 1
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
def test_what_is_wrong_with_a_body_is_told_though_its_head_is_known(site: Site, wrong: bytes) -> None:
    with site.connect() as connection:
        ask(connection, binary(1.0), numbers(1.0))
        taken = site.taken
        (reply,) = ask(connection, wrong)
        assert reply.error
        assert site.taken == taken
        assert ask(connection, binary(1.0))[0].status == 200


def test_a_body_that_comes_in_pieces_takes_the_long_way(site: Site) -> None:
    with site.connect() as connection:
        ask(connection, binary(1.0))
        before, request = site.gateway.short, binary(5.0)
        connection.sendall(request[:-8])
        site.call("GET", "/v2/health/live")  # by then the door has seen the first piece
        connection.sendall(request[-8:])
        assert read_response(connection).status == 200
        assert site.gateway.short == before


def test_requests_behind_a_short_one_are_answered_in_their_turn(site: Site) -> None:
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
        ask(connection, asked(1.0), asked(1.0))
        models = site.gateway.models
        site.gateway.models = {**models, "double": replace(models["double"], version="7")}
        replies = ask(connection, asked(2.0), asked(3.0), asked(4.0))
        assert [re.search(rb'"model_version":"([0-9]+)"', reply.body)[1] for reply in replies] == [b"7"] * 3  # type: ignore[index]
        assert site.gateway.short == 4


def test_two_models_take_turns_on_a_connection() -> None:
    def scalar(value: float) -> bytes:
        inputs = [{"name": "x", "shape": [1], "datatype": "FP64", "data": [value]}]
        return call("scalar", json.dumps({"inputs": inputs}).encode())

    with opened() as site, site.connect() as connection:
        replies = ask(connection, *[each(value) for value in (1.0, 2.0, 3.0) for each in (scalar, binary)])
        assert site.gateway.short == 4
    assert [json.loads(reply.body)["outputs"][0]["data"] for reply in replies[::2]] == [[2.0], [4.0], [6.0]]
    assert [struct.unpack("<f", reply.body[-4:])[0] for reply in replies[1::2]] == [2.0, 4.0, 6.0]


def test_a_call_without_places_waits_on_the_long_way(site: Site) -> None:
    with site.connect() as connection:
        ask(connection, binary(1.0))
        site.gateway.at_once = False
        try:
            assert ask(connection, binary(2.0))[0].status == 200
        finally:
            site.gateway.at_once = True


def test_a_client_that_hangs_up_on_the_short_way_cancels_its_call() -> None:
    with opened() as site:
        make_known(site, "stuck")
        with site.connect() as connection:
            connection.sendall(failing("stuck"))
            site.await_(site.gateway.stuck.wait())
        site.await_(site.gateway.cancelled.wait())
        assert site.gateway.short == 1
        assert site.is_well()


def test_closing_answers_what_is_on_the_short_way() -> None:
    with opened(limits=Limits(drain_seconds=0)) as site, site.connect() as connection:
        make_known(site, "stuck")
        connection.sendall(failing("stuck"))
        site.await_(site.gateway.stuck.wait())
        site.loop.call_soon_threadsafe(site.door.close)
        reply = read_response(connection)
        assert (reply.status, site.gateway.short) == (503, 1)
        assert "shut down" in reply.json()["error"]


def test_calls_that_are_traced_take_the_long_way() -> None:
    with opened() as site, site.connect() as connection:
        site.post("/v2/models/double/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
        ask(connection, binary(1.0), binary(1.0))
        assert site.gateway.short == 0


def test_a_caller_with_a_trace_of_its_own_takes_the_long_way(site: Site) -> None:
    parent = b"traceparent: 00-%s-%s-01\r\n" % (b"a" * 32, b"b" * 16)
    before = site.gateway.short
    with site.connect() as connection:
        ask(connection, *[binary(1.0, headers=parent)] * 2)
    assert site.gateway.short == before


def test_a_head_with_another_token_is_another_head(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("right" * 8)
    (tmp_path / "token").chmod(0o600)
    wrong, right = (binary(1.0, headers=b"Authorization: Bearer %s\r\n" % (word * 8)) for word in (b"wrong", b"right"))
    with opened(DoorConfig(port=0, token_file=str(tmp_path / "token"))) as site, site.connect() as connection:
        assert [reply.status for reply in ask(connection, right, right)] == [200, 200]
        assert site.gateway.short == 1
        with site.connect() as other:
            assert ask(other, wrong)[0].status == 401


def test_the_parser_and_the_short_way_agree_on_where_a_head_ends(site: Site) -> None:
    loose = binary(1.0).replace(b"\r\n", b"\n", 3)
    before = site.gateway.short
    for _ in range(2):
        with site.connect() as connection:
            connection.sendall(loose)
            read_response(connection)
    assert site.gateway.short == before


def test_answers_are_packed_for_clients_that_take_it(site: Site) -> None:
    data = [{"name": "x", "shape": [40, 16], "datatype": "FP32", "data": [1] * 640}]
    request = call("double", json.dumps({"inputs": data}).encode(), b"Accept-Encoding: gzip\r\n")
    before = site.gateway.short
    with site.connect() as connection:
        first, second = ask(connection, request, request)
    assert first.headers["content-encoding"] == second.headers["content-encoding"] == "gzip"
    assert site.gateway.short == before + 1


def make_known(site: Site, model: str) -> None:
    """Have the head of `failing(model)` known, by an answer."""
    site.gateway.tame.add(model)
    with site.connect() as connection:
        assert ask(connection, failing(model))[0].status == 200
    site.gateway.tame.discard(model)
