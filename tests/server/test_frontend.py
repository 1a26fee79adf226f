"""The frontend over HTTP and gRPC opens and closes cleanly, sees who hangs up, and tells what became of each call."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError, InvalidRequest
from latebind.server.frontend import Frontend
from latebind.server.limits import Limits
from latebind.server.listening import families, raise_file_limit
from latebind.server.shared_memory import Reference, Region, Regions, Registration
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import BOTH, PATIENCE, Response, Site, address, opened, read_response
from tests.server.rpc.conftest import X, given, outputs, request

ROOT = Path(__file__).parents[2]
STUCK_MESSAGE = request("stuck", inputs=[given(shape=(1, 1))], raw=[np.ones((1, 1), np.float32).tobytes()])
DOUBLE = request(raw=[X.tobytes()])
STUCK = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
STUCK_CALL = b"POST /v2/models/stuck/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (
    len(STUCK),
    STUCK,
)


@contextmanager
def calling(site: Site) -> Iterator[Any]:
    """Have a connection of its own for gRPC."""
    with grpc.insecure_channel(address(site), [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def begin_stuck_call(site: Site, stub: Any, **options: Any) -> Any:
    """Begin a call over gRPC that is never answered and return when the gateway has it."""
    call = stub.ModelInfer.future(STUCK_MESSAGE, **options)
    site.await_(site.gateway.stuck.wait())
    return call


def status(answer: Any) -> tuple[str, str]:
    """Return how a call over gRPC ends that has no answer."""
    return answer.code().name, answer.details() or ""


class Stuck:
    """A call over either transport that is never answered; the gateway has it."""

    def __init__(self, site: Site, kind: str, stack: ExitStack) -> None:
        self._connection = stack.enter_context(site.connect())
        self._call: Any = None
        if kind == "grpc":
            self._call = stack.enter_context(calling(site)).ModelInfer.future(STUCK_MESSAGE)
        else:
            self._connection.sendall(STUCK_CALL)
        site.await_(site.gateway.stuck.wait())

    def leave(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._connection.close()

    def refusal(self) -> tuple[str, str]:
        if self._call is not None:
            return status(self._call)
        reply = read_response(self._connection)
        return str(reply.status), reply.json()["error"]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_client_that_leaves_cancels_its_call_and_gives_its_place_back(kind: str) -> None:
    with opened(BOTH) as site, ExitStack() as stack:
        Stuck(site, kind, stack).leave()
        site.await_(site.gateway.cancelled.wait())
        site.await_(site.gateway.until_taken(0))
        assert site.is_well()


@pytest.mark.parametrize(("kind", "status"), [("http", "503"), ("grpc", "UNAVAILABLE")])
def test_closing_tells_those_under_way_that_there_is_no_time_left(kind: str, status: str) -> None:
    with opened(BOTH, Limits(drain_seconds=0)) as site, ExitStack() as stack:
        call = Stuck(site, kind, stack)
        site.loop.call_soon_threadsafe(site.frontend.close)
        found, text = call.refusal()
        assert (found, "shut down before" in text) == (status, True)
        assert site.gateway.cancelled.is_set()
    with pytest.raises(OSError, match="refused"):
        site.connect()


@pytest.mark.parametrize("key", ["server", "server.grpc_port"])
def test_a_port_that_is_taken_is_a_clear_error(site: Site, key: str) -> None:
    taken = site.frontend.grpc_port or 0
    config = FrontendConfig(port=0, grpc_port=taken)
    if key == "server":
        taken, config = site.port, FrontendConfig(port=site.port)

    async def open_again() -> None:
        await Frontend(Arithmetic(), config).open()

    with pytest.raises(
        ConfigError, match=f"^{key}: cannot listen on 127.0.0.1 port {taken}: it is in use; choose another"
    ):
        asyncio.run(open_again())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_at_the_address_of_all_both_versions_of_ip_are_served() -> None:
    with opened(FrontendConfig(host="::", port=0, grpc_port=0)) as site:
        for host in ("127.0.0.1", "::1"):
            for port in (site.port, site.frontend.grpc_port):
                socket.create_connection((host, port), PATIENCE).close()
    assert families("::") == ("IPv4", "IPv6")
    assert (families("::1"), families("0.0.0.0")) == (("IPv6",), ("IPv4",))


# HTTP -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", [False, True])
def test_who_is_there_as_the_frontend_closes_is_refused_and_not_reset(accepted: bool) -> None:
    """Whether the frontend has accepted the connection, and not read it yet, or the system alone has."""

    async def test() -> Response:
        async with Frontend(Arithmetic(), FrontendConfig(port=0)) as frontend:
            with socket.create_connection(("127.0.0.1", frontend.port), timeout=60.0) as connection:
                while accepted and not frontend._app.connections:
                    await asyncio.sleep(0)
                connection.sendall(STUCK_CALL)  # from here on the loop sees nothing until the frontend closes
                frontend.close()
                await frontend.closed()
                return await asyncio.to_thread(read_response, connection)

    reply = uvloop.run(test())
    assert reply.status == 503
    assert "shutting down" in reply.json()["error"]


def test_a_signal_closes_the_frontend_and_the_process_ends_well() -> None:
    program = [sys.executable, "-c", "from tests.server.test_frontend import serve_until_signal; serve_until_signal()"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def serve_until_signal() -> None:
    async def serve() -> None:
        async with Frontend(Arithmetic(), FrontendConfig(port=0)) as frontend:
            frontend.close_on_signals()
            print(frontend.port, flush=True)
            await frontend.closed()

    asyncio.run(serve())


# gRPC -----------------------------------------------------------------------------------------------------------------


def test_a_deadline_ends_a_call_on_both_sides() -> None:
    with opened(BOTH) as site, calling(site) as stub:
        stub.ModelInfer(DOUBLE)  # so that there is a connection: to make one may take long
        assert status(begin_stuck_call(site, stub, timeout=1.0))[0] == "DEADLINE_EXCEEDED"
        site.await_(site.gateway.cancelled.wait())
        site.await_(site.gateway.until_taken(0))


def test_closing_waits_for_those_under_way_ends_streams_and_takes_nobody_new() -> None:
    with opened(BOTH) as site, calling(site) as stub:
        asked, more = threading.Event(), threading.Event()

        def requests() -> Iterator[Any]:
            yield DOUBLE
            asked.set()
            more.wait(PATIENCE)

        stream = stub.ModelStreamInfer(requests())
        assert outputs(next(stream).infer_response)
        asked.wait(PATIENCE)
        call = begin_stuck_call(site, stub)
        site.loop.call_soon_threadsafe(site.frontend.close)
        while stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PATIENCE).ready:
            pass
        for answer in (stream, stub.ModelInfer.future(DOUBLE), stub.ModelStreamInfer(iter([DOUBLE]))):
            found, text = status(answer)
            assert (found, "shutting down" in text) == ("UNAVAILABLE", True)
        more.set()
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


@pytest.mark.parametrize(
    "limits", [Limits(calls=1), Limits(held_bytes=STUCK_MESSAGE.ByteSize() + DOUBLE.ByteSize() - 1)]
)
def test_more_calls_and_bytes_than_the_limit_are_refused_while_others_are_held(limits: Limits) -> None:
    with opened(BOTH, limits) as site, calling(site) as stub, calling(site) as other:
        begun = begin_stuck_call(site, stub)
        found, text = status(other.ModelInfer.future(DOUBLE))
        assert found == "RESOURCE_EXHAUSTED"
        assert "try again later" in text or limits.calls == 1  # gRPC itself counts the streams of a connection
        begun.cancel()
        site.await_(site.gateway.until_taken(0))
        assert outputs(stub.ModelInfer(DOUBLE))


def test_health_follows_the_gateway_and_the_drain() -> None:
    with opened(BOTH) as site, grpc.insecure_channel(address(site)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        check = health_pb2.HealthCheckRequest
        assert health.Check(check()).status == health_pb2.HealthCheckResponse.SERVING
        assert health.Check(check(service="inference.GRPCInferenceService")).status == 1
        assert status(health.Check.future(check(service="none")))[0] == "NOT_FOUND"
        watch = health.Watch(check())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        site.gateway.unready.add("double")
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert health.Check(check()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        site.gateway.unready.clear()
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        site.loop.call_soon_threadsafe(site.frontend.close)
        assert [word.status for word in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]


# Descriptors ----------------------------------------------------------------------------------------------------------


def test_a_process_takes_as_many_descriptors_as_it_may(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    try:
        raise_file_limit(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > soft // 2
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] in (soft, hard, resource.RLIM_INFINITY)
        assert not caplog.records
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_region_is_closed_after_its_last_call_and_one_that_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "client-a").write_bytes(bytes(range(100)))
    before = open_files()
    for size in (101, 200):
        with pytest.raises(InvalidRequest):
            Region(Registration("client-a", size), str(tmp_path))
    assert open_files() == before
    regions = Regions(["/client-"], folder=str(tmp_path))
    regions.register("r", Registration("client-a", 50))
    place = regions.place(Reference("r", 8))
    regions.unregister()
    found = np.zeros(8, np.uint8)
    asyncio.run(place.read_into([found]))
    assert found.tolist() == list(range(8))
    assert open_files() == before + 1
    del place
    assert open_files() == before
