"""The short way of an infer call over gRPC: the same answers, and the long way for all that does not fit."""

import gc
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec.structs import replace

from latebind.server.rpc.exchange import Exchange
from tests.server.conftest import Site, opened
from tests.server.rpc.conftest import ANY_SIZE, GRPC, Raw, X, address, given, outputs, request


@pytest.fixture(scope="module")
def lean() -> Iterator[Site]:
    with opened(replace(GRPC, grpc_stack="nghttp2")) as found:
        yield found


@pytest.fixture
def calls(lean: Site) -> Iterator[Raw]:
    with grpc.insecure_channel(address(lean), ANY_SIZE) as channel:
        yield Raw(channel)


def test_calls_that_find_places_take_the_short_way_to_their_own_answers(lean: Site, calls: Raw) -> None:
    before = lean.gateway.short
    for factor in (1.0, 2.0, 3.0):
        answer = calls.infer(request(raw=[(factor * X).tobytes()]))
        np.testing.assert_array_equal(outputs(answer)[0], 2 * factor * X)
    assert lean.gateway.short == before + 3


def test_a_message_that_is_known_is_told_from_one_of_the_same_length(calls: Raw) -> None:
    one, two = np.arange(4, dtype=np.float64), np.arange(4, 8, dtype=np.float64)
    for name, array in (("scalar", one), ("scalar", two), ("scalar", one)):
        message = request(name, inputs=[given("x", "FP64", array.shape)], raw=[array.tobytes()])
        np.testing.assert_array_equal(outputs(calls.infer(message))[0], 2 * array)


def test_where_rows_left_is_told_of_each_call_of_a_message_that_is_known(calls: Raw) -> None:
    answers = [calls.infer(request(raw=[(factor * (X + 1)).tobytes()])) for factor in (1.0, 1.0, -1.0, 1.0, -1.0)]
    left = [answer.parameters["left_at"].string_param for answer in answers]
    assert left == ["[2,2]", "[2,2]", "[0,0]", "[2,2]", "[0,0]"]


def test_calls_that_were_answered_leave_nothing_to_the_collector(calls: Raw) -> None:
    gc.collect()
    gc.disable()
    try:
        before = exchanges()
        for _ in range(5):
            calls.infer(request(raw=[X.tobytes()]))
        assert exchanges() - before < 2  # the last stream may not be closed yet
    finally:
        gc.enable()


def exchanges() -> int:
    return sum(type(found) is Exchange for found in gc.get_objects())


@pytest.mark.parametrize("change", [{"id": "seven"}, {"model_version": "1"}])
def test_ids_and_versions_are_heeded_on_the_short_way(lean: Site, calls: Raw, change: dict[str, Any]) -> None:
    before = lean.gateway.short
    for _ in range(2):
        answer = calls.infer(request(raw=[X.tobytes()], **change))
        assert answer.id == change.get("id", "")
    assert lean.gateway.short == before + 2


def test_contents_that_do_not_fit_are_told_though_what_stands_before_them_is_known(lean: Site, calls: Raw) -> None:
    calls.infer(request(raw=[X.tobytes()]))
    taken = lean.taken
    with pytest.raises(grpc.RpcError) as refused:
        calls.infer(request(raw=[X.tobytes()[:-4]]))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert lean.taken == taken
    assert outputs(calls.infer(request(raw=[X.tobytes()])))


def test_bytes_that_are_no_truths_are_refused_though_the_message_is_known(calls: Raw) -> None:
    good, bad = b"\0\1\0", b"\0\2\0"
    message = {"inputs": [given("x", "BOOL", (1, 3))]}
    calls.infer(request("invert", raw=[good], **message))
    calls.infer(request("invert", raw=[good], **message))
    with pytest.raises(grpc.RpcError, match="BOOL knows 0 and 1"):
        calls.infer(request("invert", raw=[bad], **{"inputs": [given("x", "BOOL", (1, 3))]}))


def test_what_a_call_asks_for_beside_its_tensors_takes_the_long_way(lean: Site, calls: Raw) -> None:
    before = lean.gateway.short
    message = request(raw=[X.tobytes()])
    message.parameters["timeout"].int64_param = 500_000
    calls.infer(message)
    assert lean.gateway.short == before


def test_errors_are_told_on_the_short_way(lean: Site, calls: Raw) -> None:
    before = lean.gateway.short
    for model, code in (("full", grpc.StatusCode.RESOURCE_EXHAUSTED), ("failing", grpc.StatusCode.INTERNAL)):
        message = request(model, inputs=[given(shape=(1, 1))], raw=[np.ones((1, 1), np.float32).tobytes()])
        with pytest.raises(grpc.RpcError) as failed:
            calls.infer(message)
        assert failed.value.code() is code
    assert lean.gateway.short == before + 2


def test_a_failure_on_the_short_way_goes_by_the_clients_id(
    lean: Site, calls: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    before = lean.gateway.short
    message = request("failing", id="order-17", inputs=[given(shape=(1, 1))], raw=[bytes(4)])
    with pytest.raises(grpc.RpcError, match="internal error, request id order-17"):
        calls.infer(message)
    assert lean.gateway.short == before + 1
    assert "request order-17 failed" in caplog.messages
