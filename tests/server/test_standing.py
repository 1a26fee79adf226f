"""A frontend before an engine that stands still: it answers by itself, whatever it is asked."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from latebind.domain.config import EngineConfig, FrontendConfig, PolicyConfig
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.repository.listing import Selection
from latebind.server.frontend import Frontend
from tests.engine.started import is_stopped
from tests.forked import FORKS
from tests.versions import QUERY, WIDTH, add_version

PATIENCE = 30.0
SOON = 50_000  # microseconds that calls get
INFER = "/v2/models/{}/infer"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`scale`, and a query over it."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("shop")
    add_version(root, "scale", 1, 2.0)
    (root / "asking.query.toml").write_text(QUERY)
    return root


@asynccontextmanager
async def standing(shop: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, Frontend]]:
    """Have a frontend that has answered each kind of call, and whose engine stands still since."""
    selection = Selection(shop)
    engines = await Engines.start(EngineOrder((), EngineConfig(), PolicyConfig()), selection.first(), FORKS)
    process = engines.process_id
    config = FrontendConfig(port=0, grpc_port=0, dashboard=True)
    try:
        async with Frontend(engines, config, catalogue=Catalogue(engines, selection)) as frontend:
            url, patience = f"http://127.0.0.1:{frontend.port}", aiohttp.ClientTimeout(total=PATIENCE)
            async with aiohttp.ClientSession(url, timeout=patience) as session:
                for model in ("scale", "asking"):
                    assert await status(session, model, timeout=60_000_000) == 200
                for path in ("/metrics", "/dashboard/data", "/dashboard/picture"):
                    assert (await session.get(path)).status == 200
                os.kill(process, signal.SIGSTOP)
                while not is_stopped(process):
                    pass
                try:
                    yield session, frontend
                finally:
                    os.kill(process, signal.SIGCONT)
    finally:
        await engines.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 100))


def body(**parameters: object) -> dict[str, object]:
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0] * WIDTH}
    return {"inputs": [tensor], "parameters": parameters}


async def status(session: aiohttp.ClientSession, model: str, **parameters: object) -> int:
    async with session.post(INFER.format(model), json=body(**parameters)) as reply:
        return reply.status


def test_calls_end_with_504_at_their_deadline_of_models_and_queries_again_and_again(shop: Path) -> None:
    async def test() -> None:
        async with standing(shop) as (session, _):
            for model in ("scale", "asking", "scale", "scale"):  # the later ones take a shorter way
                assert await status(session, model, timeout=SOON) == 504

    run(test())


def test_figures_are_told_with_their_age_and_health_says_what_is_so(shop: Path) -> None:
    async def test() -> None:
        async with standing(shop) as (session, _):
            async with session.get("/metrics") as reply:
                lines = (await reply.text()).splitlines()
            (age,) = [line for line in lines if line.startswith("latebind_figures_age_seconds ")]
            assert float(age.split()[1]) > 0.0
            assert 'latebind_requests_total{model="scale",outcome="answered",version="1"} 2.0' in lines
            async with session.get("/v2/models/scale/stats") as reply:
                assert int(reply.headers["age"]) >= 1
                assert (await reply.json())["model_stats"][0]["inference_count"] == 2
            async with asyncio.timeout(PATIENCE):
                while "age" not in (await (await session.get("/dashboard/data")).json())["snapshot"]:
                    await asyncio.sleep(0.01)  # it shows what it took within the last second
            async with session.get("/dashboard/picture") as reply:
                assert (await reply.json())["age"] > 0.0
            async with session.post("/v2/repository/index", json={}) as reply:
                assert [entry["name"] for entry in await reply.json()] == ["asking", "scale"]
            assert (await session.get("/v2/health/live")).status == 200
            async with asyncio.timeout(PATIENCE):
                while (await session.get("/v2/health/ready")).status == 200:
                    await asyncio.sleep(0.01)
            assert (await session.get("/v2/models/scale/ready")).status == 400
            async with session.post("/v2/repository/index", json={}) as reply:
                for entry in await reply.json():
                    assert entry["state"] == "UNAVAILABLE"
                    assert "the engine hangs" in entry["reason"]
            async with session.post("/v2/repository/index", json={"ready": True}) as reply:
                assert await reply.json() == []

    run(test())
