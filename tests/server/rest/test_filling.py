"""From the bytes that the HTTP library hands over to the first stage a tensor is copied once, into its slots.

Here a call comes chunk by chunk, before a gateway that has places for a few large rows.
"""

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import numpy as np
import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.model import TensorSpec
from latebind.server.frontend import Frontend
from latebind.server.gateway import NO_DIMS, Array
from latebind.server.limits import Limits
from latebind.server.rest.infer import Context, infer
from latebind.server.service import Service
from tests.server.arithmetic import COMPUTE, Arithmetic, Places, spec
from tests.server.real import binary_body, read_reply, written
from tests.server.taking import arriving

SIDE = 512
CHUNK = 1 << 16
WHOLE = 1 << 30
SLOTS = 4
BRIGHTNESS = spec("brightness", [TensorSpec("image", "float32", (3, SIDE, SIDE))], [TensorSpec("y", "float32", (3,))])


class Large(Arithmetic):
    """Answers the mean of each channel, from places that are there from the start; calls wait for them."""

    def __init__(self) -> None:
        super().__init__(BRIGHTNESS)
        self.claimed = [Places(self, BRIGHTNESS, rows) for rows in range(SLOTS + 1)]
        self.waiting = asyncio.Event()

    async def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> Places:
        if self.taken + rows > SLOTS:
            self.waiting.set()
            await self.until_taken(0)
        self.taken += 1
        self.claimed[rows].released = False
        return self.claimed[rows]


@pytest.fixture(autouse=True)
def _computed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPUTE, "brightness", lambda rows: {"y": rows["image"].mean(axis=(2, 3))})
        yield


def images(rows: int) -> Array:
    return np.random.default_rng(rows).random((rows, 3, SIDE, SIDE), np.float32)


def test_nothing_of_a_tensors_size_is_allocated_between_its_bytes_and_the_answer() -> None:
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
        context = Context(Service(Large(), deadline=30.0), Limits())
        for rows, chunk in ((1, CHUNK), (1, WHOLE), (3, CHUNK), (3, WHOLE)):
            image = images(rows)
            least = min([await peak(context, image, chunk) for _ in range(3)])  # other threads allocate too
            assert least < image.nbytes / 10

    asyncio.run(test())


# Who does not send all of it, and who has to wait --------------------------------------------------------------------


@asynccontextmanager
async def before(limits: Limits | None = None) -> AsyncIterator[tuple[Large, int]]:
    """Have a frontend before such a gateway, and its port; in the end all places are free."""
    gateway = Large()
    async with Frontend(gateway, FrontendConfig(port=0), limits=limits) as frontend, asyncio.timeout(60.0):
        yield gateway, frontend.port
        await gateway.until_taken(0)


async def begun(port: int, rows: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """Send a call without its last byte; return that too."""
    body, json_bytes = binary_body({"image": images(rows)})
    content = b"".join(written("brightness", [body], json_bytes, chunked=False))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content[:-1])
    return reader, writer, content[-1:]


def test_a_client_that_hangs_up_within_a_tensor_gives_its_slots_back_and_the_engine_never_hears_of_it() -> None:
    async def test() -> None:
        async with before() as (gateway, port):
            _, writer, _ = await begun(port, 3)
            await gateway.until_taken(1)
            writer.close()
            await gateway.until_taken(0)
            assert not gateway.deadlines

    asyncio.run(test())


def test_a_tensor_that_does_not_arrive_in_time_gives_its_slots_back() -> None:
    async def test() -> None:
        async with before(Limits(body_seconds=1.0)) as (gateway, port):
            reader, writer, _ = await begun(port, 1)
            await gateway.until_taken(1)
            assert (await read_reply(reader)).status == 408
            writer.close()

    asyncio.run(test())


def test_the_time_that_a_client_takes_to_send_does_not_count() -> None:
    async def test() -> None:
        async with before() as (gateway, port):
            reader, writer, rest = await begun(port, 1)
            await gateway.until_taken(1)
            claimed = time.monotonic()
            await asyncio.sleep(0.2)  # of the client's time
            writer.write(rest)
            assert (await read_reply(reader)).status == 200
            assert gateway.deadlines[-1] > claimed - 0.1 + FrontendConfig().deadline + 0.2
            writer.close()

    asyncio.run(test())


def test_a_call_without_slots_is_not_read_until_it_has_some() -> None:
    async def test() -> None:
        async with before() as (gateway, port):
            _, holder, _ = await begun(port, 1)
            await gateway.until_taken(1)
            reader, writer, rest = await begun(port, SLOTS)
            await gateway.waiting.wait()
            await asyncio.sleep(0.1)  # in which all would have been read
            assert writer.transport.get_write_buffer_size() > 1 << 20  # the system takes no more
            holder.close()
            writer.write(rest)
            assert (await read_reply(reader)).status == 200
            writer.close()

    asyncio.run(test())
