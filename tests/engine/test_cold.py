"""Over HTTP, a model that loads for longer than calls may take: they are told when to come again, and it comes."""

import asyncio
import json
from pathlib import Path

import numpy as np

from latebind.bench.client import Reply
from latebind.domain.config import EngineConfig, ResidencyConfig
from latebind.engine.client import EngineClient
from latebind.server.door import Door
from tests.engine.resident import MB, WIDTH
from tests.program.test_backends import usable
from tests.server.real import json_body, read_reply, real_door, written

ROWS = {"x": np.zeros((1, WIDTH), np.float32)}


async def ask(door: Door, model: str, *, allowed: float) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    body = json_body(ROWS, parameters={"timeout": round(1e6 * allowed)})
    writer.writelines(written(model, [body], None, chunked=False))
    reply = await read_reply(reader)
    writer.close()
    return reply


async def refused_for_want_of(door: Door, model: str) -> Reply:
    """Return what a call is told that may take less than a load; one that is late before it is heard tells nothing."""
    for allowed in (0.01, 0.02, 0.04, 0.08, 0.16, 0.32):  # on a busy machine a load takes longer too
        reply = await ask(door, model, allowed=allowed)
        assert reply.status == 503
        if b"cannot answer by the deadline" not in reply.data:
            break
    return reply


async def is_there(client: EngineClient, model: str) -> bool:
    """Tell whether all of a model is in memory."""
    memory = (await client.metrics()).get("memory")
    assert memory is not None
    found = memory["models"][model]
    return found["resident_bytes"] == found["bytes"] > 0


def test_calls_that_are_refused_for_want_of_a_model_have_it_come(wide: Path) -> None:
    usable("openvino")  # which compiles a stage when it is loaded

    async def test() -> None:
        engine, residency = EngineConfig(slots=8, backend="openvino"), ResidencyConfig(200 * MB)
        async with asyncio.timeout(400), real_door(wide, engine=engine, residency=residency) as (client, door):
            assert (await ask(door, "two", allowed=30.0)).status == 200
            refused = await refused_for_want_of(door, "one")
            assert "one is not in memory and is being loaded" in json.loads(refused.data)["error"]
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.metrics())["models"]["one"]["requests"]["refused_loading"] == 1
            while not await is_there(client, "one"):  # nobody else asks for it
                pass
            assert (await ask(door, "one", allowed=30.0)).status == 200

    asyncio.run(test())
