"""An open frontend with an arithmetic gateway behind it, on its own thread and event loop, and a plain client."""

import asyncio
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from latebind.domain.config import FrontendConfig
from latebind.server.frontend import Frontend
from latebind.server.limits import Limits
from latebind.server.rest.openapi import Route
from latebind.server.rest.routes import ROUTES
from tests.server.arithmetic import Arithmetic
from tests.server.shelf import Shelf

T = TypeVar("T")
SERVICE = "/inference.GRPCInferenceService/"
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
BOTH = FrontendConfig(port=0, grpc_port=0)  # HTTP and gRPC, each on any free port
PATIENCE = 60.0  # with a machine that has much else to do


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error that must be one of the caller's."""
        assert 400 <= self.status < 500, (self.status, self.body)
        answer = self.json()
        assert list(answer) == ["error"]
        assert isinstance(answer["error"], str)
        return answer["error"]


@dataclass(frozen=True)
class Site:
    """A frontend that is open, its gateway, and ways to talk to both from the test's thread."""

    frontend: Frontend
    gateway: Arithmetic
    loop: asyncio.AbstractEventLoop
    port: int
    shelf: Shelf

    def await_(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def call(
        self, method: str, path: str, body: bytes | Iterator[bytes] = b"", headers: dict[str, str] | None = None
    ) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Response(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str) -> Response:
        return self.call("GET", path)

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.call("POST", path, content, headers)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send(self, raw: bytes) -> Response:
        """Send bytes that may be no HTTP at all and read the one reply."""
        with self.connect() as connection:
            connection.sendall(raw)
            return read_response(connection)

    @property
    def taken(self) -> int:
        """How many places are taken, in the frontend's own time: it gives them back just behind its reply."""

        async def count() -> int:
            return self.gateway.taken

        return self.await_(count())

    def is_well(self) -> bool:
        """Return whether a plain call is still answered, rightly."""
        reply = self.post("/v2/models/scalar/infer", {"inputs": [scalar(21.0)]})
        return reply.status == 200 and reply.json()["outputs"][0]["data"] == [42.0]


def read_response(connection: socket.socket) -> Response:
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    return Response(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())


def until(test: Callable[[], bool]) -> None:
    """Return once this is so."""
    end = time.monotonic() + PATIENCE
    while not test():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def scalar(value: float) -> dict[str, object]:
    return {"name": "x", "shape": [1], "datatype": "FP64", "data": [value]}


@contextmanager
def opened(
    config: FrontendConfig | None = None,
    limits: Limits | None = None,
    deadlines: Mapping[str, float] | None = None,
    gateway: Callable[[], Arithmetic] = Arithmetic,
    routes: Sequence[Route] = ROUTES,
) -> Iterator[Site]:
    """Open a frontend on any free port for as long as the block lasts."""
    started: Future[Site] = Future()

    async def serve() -> None:
        behind = gateway()
        shelf = Shelf(behind)
        frontend = Frontend(
            behind, config or FrontendConfig(port=0), limits=limits, deadlines=deadlines, catalogue=shelf, routes=routes
        )
        async with frontend:
            started.set_result(Site(frontend, behind, asyncio.get_running_loop(), frontend.port, shelf))
            await frontend.closed()

    thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
    thread.start()
    site = started.result(PATIENCE)
    try:
        yield site
    finally:
        if thread.is_alive():
            site.loop.call_soon_threadsafe(site.frontend.close)
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the frontend did not close"


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Put levels and filters of the log back at the end of the block."""
    loggers = [logging.getLogger(), logging.getLogger("latebind")]
    levels = [logger.level for logger in loggers]
    filters = [(handler, handler.filters[:]) for handler in loggers[0].handlers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler, before in filters:
        handler.filters[:] = before


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with opened(BOTH) as found:
        yield found


def address(site: Site) -> str:
    return f"127.0.0.1:{site.frontend.grpc_port}"


class Raw:
    """Sends bytes that may be no message at all to a method, and returns the bytes of the response."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def infer(self, message: Any, **options: Any) -> Any:
        return service_pb2.ModelInferResponse.FromString(self.call(message.SerializeToString(), **options))

    def call(self, data: bytes, method: str = SERVICE + "ModelInfer", **options: Any) -> bytes:
        answer: bytes = self.channel.unary_unary(method)(data, **{"timeout": 10.0, **options})
        return answer

    def refusal(self, data: bytes, method: str = SERVICE + "ModelInfer", **options: Any) -> tuple[str, str]:
        """Return status and message of a call that must fail."""
        with pytest.raises(grpc.RpcError) as caught:
            self.call(data, method, **options)
        return caught.value.code().name, caught.value.details()


@pytest.fixture
def raw(site: Site) -> Iterator["Raw"]:
    with grpc.insecure_channel(address(site), ANY_SIZE) as channel:
        yield Raw(channel)
