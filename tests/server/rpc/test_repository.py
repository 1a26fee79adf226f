"""What is served, changed and told of over gRPC: load, unload, index and statistics."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import tritonclient.grpc.aio as triton_aio
from msgspec.structs import replace
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from latebind.domain.errors import InvalidRequest, NotFound
from latebind.server.frontend import Frontend
from latebind.server.gateway import IndexEntry
from latebind.server.limits import Limits
from latebind.server.rpc.infer import Context
from latebind.server.rpc.verbs import _load
from latebind.server.service import Service
from tests.server.arithmetic import Arithmetic
from tests.server.rpc.conftest import GRPC


class Shelf:
    """A catalogue of two models; `taken` are those that are not served, `asked` what it was asked."""

    def __init__(self) -> None:
        self.taken = {"half"}
        self.asked: list[tuple[object, ...]] = []

    def index(self) -> Sequence[IndexEntry]:
        return [
            IndexEntry(name=name, version="1", state="UNAVAILABLE" if name in self.taken else "READY", reason="")
            for name in ("double", "half")
        ]

    def unavailable(self, name: str) -> str | None:
        return "half is broken" if name in self.taken else None

    async def load(self, name: str, version: str | None = None) -> None:
        self.asked.append(("load", name, version))
        if name not in ("double", "half"):
            raise NotFound(f"there is no model {name!r}")
        self.taken.discard(name)

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        self.asked.append(("unload", name, dependents))
        if not dependents:
            raise InvalidRequest("a query needs it")
        self.taken.add(name)


def run(test: Callable[[Any, Shelf], Coroutine[Any, Any, None]], *, manage: bool = True) -> None:
    async def talk() -> None:
        shelf = Shelf()
        async with (
            Frontend(Arithmetic(), replace(GRPC, manage=manage), catalogue=shelf) as frontend,
            triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.grpc_port}") as client,
        ):
            await test(client, shelf)

    asyncio.run(asyncio.wait_for(talk(), 200))


def test_models_are_loaded_and_unloaded() -> None:
    async def test(client: Any, shelf: Shelf) -> None:
        assert not await client.is_model_ready("half")
        await client.load_model("half")
        assert await client.is_model_ready("half")
        await client.unload_model("half", unload_dependents=True)
        with pytest.raises(InferenceServerException, match="a query needs it"):
            await client.unload_model("half")
        with pytest.raises(InferenceServerException, match="no model 'none'") as caught:
            await client.load_model("none")
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        assert shelf.asked[:2] == [("load", "half", None), ("unload", "half", True)]

    run(test)


def test_a_version_may_be_named_and_nothing_is_uploaded() -> None:
    async def test() -> None:
        shelf = Shelf()
        context = Context(Service(Arithmetic(), catalogue=shelf, manage=True), Limits())
        request = service_pb2.RepositoryModelLoadRequest(model_name="half")
        request.parameters["version"].string_param = "3"
        await _load(context, request)
        assert shelf.asked == [("load", "half", "3")]
        request.parameters["file:1"].bytes_param = b"code"
        with pytest.raises(InvalidRequest, match="send no 'file:1'"):
            await _load(context, request)

    asyncio.run(test())


def test_clients_change_nothing_unless_the_operator_lets_them() -> None:
    async def test(client: Any, shelf: Shelf) -> None:
        for change in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="--manage") as caught:
                await change("half")
            assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        assert not shelf.asked

    run(test, manage=False)
