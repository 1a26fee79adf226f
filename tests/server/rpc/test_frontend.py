"""The gRPC frontend opens and closes cleanly, sees who goes, and tells each what became of the call."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from msgspec.structs import replace
from tritonclient.grpc import service_pb2, service_pb2_grpc

from latebind.domain.errors import ConfigError
from latebind.server.frontend import Frontend
from latebind.server.limits import Limits
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import BOTH, PATIENCE, Site, address, opened
from tests.server.rpc.conftest import X, given, outputs, request

STUCK = request("stuck", inputs=[given(shape=(1, 1))], raw=[np.ones((1, 1), np.float32).tobytes()])
DOUBLE = request(raw=[X.tobytes()])


@contextmanager
def calling(site: Site) -> Iterator[Any]:
    """Have a connection of its own."""
    with grpc.insecure_channel(address(site), [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def begin_stuck_call(site: Site, stub: Any, **options: Any) -> Any:
    """Begin a call that is never answered and return when the gateway has it."""
    call = stub.ModelInfer.future(STUCK, **options)
    site.await_(site.gateway.stuck.wait())
    return call


def test_a_client_that_cancels_gives_its_place_back() -> None:
    with opened(BOTH) as site, calling(site) as stub:
        begin_stuck_call(site, stub).cancel()
        site.await_(site.gateway.cancelled.wait())
        site.await_(site.gateway.until_taken(0))
        assert outputs(stub.ModelInfer(DOUBLE))


def test_a_deadline_ends_a_call_on_both_sides() -> None:
    with opened(BOTH) as site, calling(site) as stub:
        stub.ModelInfer(DOUBLE)  # so that there is a connection: to make one may take long
        call = begin_stuck_call(site, stub, timeout=1.0)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        site.await_(site.gateway.cancelled.wait())
        site.await_(site.gateway.until_taken(0))


def test_closing_tells_those_under_way_that_there_is_no_time_left() -> None:
    with opened(BOTH, Limits(drain_seconds=0)) as site, calling(site) as stub:
        call = begin_stuck_call(site, stub)
        site.loop.call_soon_threadsafe(site.frontend.close)
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert "shut down before" in call.details()
    assert site.gateway.cancelled.is_set()


def test_closing_waits_for_those_under_way_and_takes_nobody_new() -> None:
    with opened(BOTH) as site, calling(site) as stub:
        call = begin_stuck_call(site, stub)
        site.loop.call_soon_threadsafe(site.frontend.close)
        while stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PATIENCE).ready:
            pass
        for answer in (stub.ModelInfer.future(DOUBLE), stub.ModelStreamInfer(iter([DOUBLE]))):
            assert answer.code() is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in answer.details()
        assert not call.done()
        call.cancel()


def test_who_asks_again_and_again_as_the_frontend_closes_is_told_and_not_cancelled() -> None:
    with opened(BOTH) as site, ExitStack() as open_:
        stubs = [open_.enter_context(calling(site)) for _ in range(8)]
        begun = threading.Barrier(1 + len(stubs))

        def ask(stub: Any) -> Any:
            stub.ModelInfer(DOUBLE)
            begun.wait(PATIENCE)
            while (end := stub.ModelInfer.future(DOUBLE).code()) is grpc.StatusCode.OK:
                pass
            return end

        with ThreadPoolExecutor(len(stubs)) as threads:
            ends = [threads.submit(ask, stub) for stub in stubs]
            begun.wait(PATIENCE)
            site.loop.call_soon_threadsafe(site.frontend.close)
            assert {end.result(PATIENCE) for end in ends} == {grpc.StatusCode.UNAVAILABLE}


def test_closing_answers_what_a_stream_has_taken_and_ends_it() -> None:
    with opened(BOTH) as site, calling(site) as stub:
        asked, more = threading.Event(), threading.Event()

        def requests() -> Iterator[Any]:
            yield DOUBLE
            asked.set()
            more.wait(PATIENCE)

        answers = stub.ModelStreamInfer(requests())
        assert outputs(next(answers).infer_response)
        asked.wait(PATIENCE)
        site.loop.call_soon_threadsafe(site.frontend.close)
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        more.set()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_more_calls_than_the_limit_are_refused_at_once() -> None:
    with opened(BOTH, Limits(calls=1)) as site, calling(site) as stub, calling(site) as other:
        begun = begin_stuck_call(site, stub)
        with pytest.raises(grpc.RpcError) as caught:
            other.ModelInfer(DOUBLE, timeout=PATIENCE)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        begun.cancel()


def test_more_bytes_than_the_limit_are_refused_while_others_are_held() -> None:
    with (
        opened(BOTH, Limits(held_bytes=STUCK.ByteSize() + DOUBLE.ByteSize() - 1)) as site,
        calling(site) as stub,
    ):
        begun = begin_stuck_call(site, stub)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(DOUBLE)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "try again later" in caught.value.details()
        begun.cancel()
        site.await_(site.gateway.until_taken(0))
        assert outputs(stub.ModelInfer(DOUBLE))


def test_health_follows_the_gateway_and_the_drain() -> None:
    with opened(BOTH) as site, grpc.insecure_channel(address(site)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        check = health_pb2.HealthCheckRequest
        assert health.Check(check()).status == health_pb2.HealthCheckResponse.SERVING
        assert health.Check(check(service="inference.GRPCInferenceService")).status == 1
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(check(service="none"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(check())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        site.gateway.unready.add("double")
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert health.Check(check()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        site.gateway.unready.clear()
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        site.loop.call_soon_threadsafe(site.frontend.close)
        assert [word.status for word in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]


def test_a_port_that_is_taken_is_a_clear_error(site: Site) -> None:
    async def open_again() -> None:
        frontend = Frontend(Arithmetic(), replace(BOTH, grpc_port=site.frontend.grpc_port))
        await frontend.open()

    with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1 port {site.frontend.grpc_port}"):
        asyncio.run(open_again())
