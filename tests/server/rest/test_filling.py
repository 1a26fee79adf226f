"""From the bytes that the HTTP library hands over to the first stage a tensor is copied once, into its slots.

What the library does before is said in `server/rest/body.py`; here a call comes chunk by chunk.
"""

import asyncio
import json
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.config import EngineConfig, FrontendConfig, PolicyConfig
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.claim import Claims, Engine
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.engine.slots import SlotMemory, create_file, file_bytes
from latebind.server.access import Guard
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.rest.app import RequestFilter, RestApp
from latebind.server.rest.infer import Codec, fill, read_call
from latebind.server.rest.request import Body, Request
from latebind.server.service import Service
from tests.building import build_stages
from tests.engine.started import Started, started
from tests.server.real import binary_body, frontend_before, read_reply, until_all_is_free, written
from tests.server.taking import Arriving

SIDE = 512
CHUNK = 1 << 16
WHOLE = 1 << 30
SLOTS = 4


class Brightness(nn.Module):
    """The mean of each channel: next to no work for a large image."""

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 3, SIDE, SIDE) float32`, 3 MiB a row, to `(B, 3) float32`."""
        return image.mean(dim=(2, 3))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    example = {"image": torch.zeros(1, 3, SIDE, SIDE)}
    build_stages(Brightness().eval(), example, root / "brightness" / "1", name="brightness", max_batch=2)
    return root


@pytest.fixture(scope="module")
def large_engine(large: Path) -> Iterator[Started]:
    order = EngineOrder((str(large / "brightness" / "1"),), EngineConfig(slots=SLOTS), PolicyConfig())
    with started(order) as found:
        yield found


def images(rows: int) -> Array:
    return np.random.default_rng(rows).random((rows, 3, SIDE, SIDE), np.float32)


class Chunks:
    """A connection on which the next chunk of a body comes whenever somebody wants it."""

    def __init__(self, chunks: list[bytes], json_bytes: int) -> None:
        self._left = list(chunks)
        self._loop = asyncio.get_running_loop()
        headers = [(b"inference-header-content-length", b"%d" % json_bytes)]
        self.request = Request(self, self._loop, "POST", b"/v2/models/brightness/infer", headers)

    def hold(self) -> None:
        pass

    def read_on(self) -> None:
        """Nobody is held."""

    def go_on(self) -> None:
        self._loop.call_soon(self._bring)

    def _bring(self) -> None:
        self.request.feed(self._left.pop(0))
        if not self._left:
            self.request.complete()


def test_nothing_of_a_tensors_size_is_allocated_between_its_bytes_and_the_answer(large_engine: Started) -> None:
    async def peak(app: RestApp, image: Array, chunk: int) -> int:
        """The bytes that this process has allocated at once by the time the call is answered, whoever wanted them."""
        body, json_bytes = binary_body({"image": image})
        chunks = [body[start : start + chunk] for start in range(0, len(body), chunk)]
        tracemalloc.start()
        try:
            reply = await app(Chunks(chunks, json_bytes).request)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert reply is not None
        assert reply.status == 200
        found = np.array(json.loads(reply.body)["outputs"][0]["data"]).reshape(-1, 3)
        np.testing.assert_allclose(found, image.mean(axis=(2, 3)), rtol=1e-4)
        return most

    async def test() -> None:
        engine = large_engine.client
        async with frontend_before(engine):
            app = RestApp(Service(engine, deadline=30.0), Limits(), RequestFilter(FrontendConfig(), Guard()))
            for rows, chunk in ((1, CHUNK), (1, WHOLE), (3, CHUNK), (3, WHOLE)):
                image = images(rows)
                least = min(
                    [await peak(app, image, chunk) for _ in range(3)]
                )  # other threads allocate too, now and then
                assert least < image.nbytes / 10

    large_engine.run(test())


class Counting(Body):
    """Notes which bytes of memory are written, and how many bytes of the body are taken for each."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.written: Counter[tuple[int, int]] = Counter()
        self.cut = 0

    async def read_into(self, place: memoryview) -> bool:
        array = np.frombuffer(place, np.uint8)
        self.written[array.ctypes.data, array.nbytes] += 1
        return await super().read_into(place)

    def _cut(self, most: int) -> memoryview:
        part = super()._cut(most)
        self.cut += len(part)
        return part


def test_every_byte_goes_once_to_its_place_in_the_slots_themselves() -> None:
    tensor = TensorSpec("image", "float32", (3, SIDE, SIDE))
    spec = ModelSpec("brightness", "1", (tensor,), (TensorSpec("output", "float32", (3,)),), 1, 2)
    fd = create_file()
    os.ftruncate(fd, file_bytes([spec], {spec.name: SLOTS}))
    (shared,) = SlotMemory(fd, [spec], {spec.name: SLOTS}).models
    (as_the_engine_sees_it,) = SlotMemory(fd, [spec], {spec.name: SLOTS}).models
    os.close(fd)
    claims = Claims(cast(Engine, None), 0, spec, shared, count(1))
    image = images(2)
    content, json_bytes = binary_body({"image": image})
    parts = [content[start : start + CHUNK] for start in range(0, len(content), CHUNK)]

    async def test() -> None:
        sender = Arriving(parts, {b"content-length": b"%d" % len(content)})
        body = Counting(cast(Request, sender), Limits())
        described = await read_call(Codec(spec, Limits()), body, json_bytes)
        claim = await claims.claim(described.rows, deadline=time.monotonic() + 30)
        await fill(described, body, claim.rows)
        first, size = shared.inputs[0].ctypes.data, tensor.row_bytes
        assert dict(body.written) == {(first, size): 1, (first + size, size): 1}
        assert body.cut == len(content)

    asyncio.run(test())
    np.testing.assert_array_equal(as_the_engine_sees_it.inputs[0][:2], image)


# Who does not send all of it, and who has to wait --------------------------------------------------------------------


def free(engine: EngineClient) -> int:
    return engine._claims["brightness"].pool.free


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.001)


async def begun(port: int, rows: int, *, but: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """Send a call without its last bytes; return those too."""
    body, json_bytes = binary_body({"image": images(rows)})
    content = b"".join(written("brightness", [body], json_bytes, chunked=False))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content[:-but])
    return reader, writer, content[-but:]


def test_a_client_that_hangs_up_within_a_tensor_gives_its_slots_back_and_the_engine_never_hears_of_it(
    large_engine: Started,
) -> None:
    async def test() -> None:
        engine = large_engine.client
        before = (await engine.metrics())["models"]["brightness"]["requests"]
        async with frontend_before(engine) as frontend:
            _, writer, _ = await begun(frontend.port, 3, but=1)
            await until(lambda: free(engine) == SLOTS - 3)
            writer.close()
            await until_all_is_free(engine)
            assert (await engine.metrics())["models"]["brightness"]["requests"] == before

    large_engine.run(test())


def test_a_tensor_that_does_not_arrive_in_time_gives_its_slots_back(large_engine: Started) -> None:
    async def test() -> None:
        engine = large_engine.client
        limits = Limits(body_seconds=1.0)
        async with frontend_before(engine, limits=limits) as frontend:
            reader, writer, _ = await begun(frontend.port, 1, but=1)
            await until(lambda: free(engine) == SLOTS - 1)
            assert (await read_reply(reader)).status == 408
            await until_all_is_free(engine)
            writer.close()

    large_engine.run(test())


def test_the_time_that_a_client_takes_to_send_does_not_count(large_engine: Started) -> None:
    async def test() -> None:
        engine = large_engine.client
        async with frontend_before(engine, deadline=1.0) as frontend:
            reader, writer, rest = await begun(frontend.port, 1, but=1)
            await asyncio.sleep(1.1)
            writer.write(rest)
            assert (await read_reply(reader)).status == 200
            writer.close()

    large_engine.run(test())


def test_a_call_without_slots_is_not_read_until_it_has_some(large_engine: Started) -> None:
    async def test() -> None:
        engine = large_engine.client
        async with frontend_before(engine) as frontend:
            _, holder, _ = await begun(frontend.port, 1, but=1)
            await until(lambda: free(engine) == SLOTS - 1)
            reader, writer, rest = await begun(frontend.port, SLOTS, but=1)
            await until(lambda: bool(engine._claims["brightness"]._waiting))
            await asyncio.sleep(0.1)  # in which all would have been read
            assert writer.transport.get_write_buffer_size() > 1 << 20  # the system takes no more
            holder.close()
            writer.write(rest)
            assert (await read_reply(reader)).status == 200
            writer.close()
            await until_all_is_free(engine)

    large_engine.run(test())
