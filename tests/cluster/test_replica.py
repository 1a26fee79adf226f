"""A replica with a real engine, behind an ingress, without Ray."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from latebind.bench.client import Caller, encode
from latebind.cluster.fleet import ReplicaInfo
from latebind.cluster.homes import BUDGET, MODELS
from latebind.cluster.ingress import Ingress
from latebind.cluster.replica import Application, Replica
from latebind.cluster.scaling import Load
from latebind.domain.config import DoorConfig, ResidencyConfig, ServeConfig
from latebind.repository.listing import Selection
from tests.versions import WIDTH, add_version

BYTES = 1 << 24
SETTINGS = ServeConfig(
    server=DoorConfig(port=0, deadline=30.0),
    residency=ResidencyConfig(budget=BYTES),
)


async def serve_and_ask(root: Path) -> tuple[dict[str, object], Load]:
    application = Application(Selection(root), SETTINGS, "a-secret-of-the-application")
    replica = await Replica.start(application, "127.0.0.1")
    try:
        await replica.load()

        async def look(on_reply: Callable[[Sequence[ReplicaInfo]], None]) -> None:
            on_reply([ReplicaInfo("only", replica.host, replica.port, await replica.figures())])

        ingress = await Ingress.start(application, look)
        try:
            await asyncio.to_thread(ask, ingress.ports[0])
        finally:
            await ingress.close()
        replica.check()
        return await replica.figures(), await replica.load()
    finally:
        await replica.close()


def ask(port: int) -> None:
    caller = Caller(f"http://127.0.0.1:{port}", "scale")
    for value in range(1, 6):
        rows = np.full((1, WIDTH), value, np.float32)
        np.testing.assert_array_equal(caller(encode({"x": rows}, timeout=30.0)).outputs["output"], 3 * rows)
    caller.close()


@pytest.mark.slow
def test_a_replica_tells_of_its_memory_and_of_how_it_fared(tmp_path: Path) -> None:
    add_version(tmp_path, "scale", 1, 3.0)
    figures, load = asyncio.run(serve_and_ask(tmp_path))
    budget = figures[BUDGET]
    assert isinstance(budget, int)
    assert BYTES // 2 < budget < BYTES  # slots take some of it
    models = figures[MODELS]
    assert isinstance(models, dict)
    resident, size, seconds, work = models["scale"]
    assert 0 < resident <= size
    assert seconds > 0
    assert work > 0
    assert load.requests > 0
    assert load.shed == 0.0
    assert 0.9 < load.slack <= 1.0
    assert 0 < load.busy < 1.0
