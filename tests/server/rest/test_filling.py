"""From the bytes that the HTTP library hands over to the first stage a tensor is copied once, into its slots.

Here a call comes chunk by chunk.
"""

import asyncio
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.rest.infer import Context, infer
from latebind.server.service import Service
from tests.building import build_stages
from tests.engine.started import Started, started
from tests.server.real import binary_body, frontend_before, read_reply, until_all_is_free, written
from tests.server.taking import arriving

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


def test_nothing_of_a_tensors_size_is_allocated_between_its_bytes_and_the_answer(large_engine: Started) -> None:
    async def peak(context: Context, image: Array, chunk: int) -> int:
        """The bytes that this process has allocated at once by the time the call is answered, whoever wanted them."""
        body, json_bytes = binary_body({"image": image})
        chunks = [body[start : start + chunk] for start in range(0, len(body), chunk)]
        tracemalloc.start()
        try:
            fields = {b"inference-header-content-length": b"%d" % json_bytes}
            reply = await infer(context, arriving(chunks, fields=fields, context=context, model="brightness"))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert reply.status == 200
        found = np.array(json.loads(reply.body)["outputs"][0]["data"]).reshape(-1, 3)
        np.testing.assert_allclose(found, image.mean(axis=(2, 3)), rtol=1e-4)
        return most

    async def test() -> None:
        engine = large_engine.client
        async with frontend_before(engine):
            context = Context(Service(engine, deadline=30.0), Limits())
            for rows, chunk in ((1, CHUNK), (1, WHOLE), (3, CHUNK), (3, WHOLE)):
                image = images(rows)
                least = min([await peak(context, image, chunk) for _ in range(3)])  # other threads allocate too
                assert least < image.nbytes / 10

    large_engine.run(test())


# Who does not send all of it, and who has to wait --------------------------------------------------------------------


def free(engine: EngineClient) -> int:
    return engine._claims["brightness"].free


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
