"""A replica with a real engine, behind an ingress, without Ray."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from latebind.bench.client import Caller, encode
from latebind.cluster.ingress import Ingress
from latebind.cluster.placement import Costs, Report
from latebind.cluster.replica import ADDRESS, REPORT, Application, Replica, report_of
from latebind.cluster.scaling import Load
from latebind.cluster.upstream import ReplicaInfo
from latebind.domain.config import FrontendConfig, ResidencyConfig, ServeConfig
from latebind.repository.listing import Selection
from tests.versions import WIDTH, add_version

BYTES = 1 << 24
SETTINGS = ServeConfig(
    server=FrontendConfig(port=0, deadline=30.0),
    residency=ResidencyConfig(budget=BYTES),
)


async def serve_and_ask(root: Path) -> tuple[Report | None, Load]:
    application = Application(Selection(root), SETTINGS, "a-secret-of-the-application")
    replica = Replica()
    await replica.open(application, "127.0.0.1")
    try:
        await replica.record_autoscaling_stats()

        async def look(on_reply: Callable[[Sequence[ReplicaInfo]], None]) -> None:
            host, port = replica.record_replica_metadata()[ADDRESS]
            on_reply([ReplicaInfo("only", host, port, (await replica.record_routing_stats())[REPORT])])

        ingress = Ingress()
        await ingress.open(application, look)
        try:
            await asyncio.to_thread(ask, (await ingress.ports())[0])
        finally:
            await ingress.close()
        await replica.check_health()
        load = Load(**await replica.record_autoscaling_stats())
        return (await replica.record_routing_stats())[REPORT], load
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
    report, load = asyncio.run(serve_and_ask(tmp_path))
    assert report is not None
    assert BYTES // 2 < report.memory < BYTES  # slots take some of it
    assert report.resident == {"scale"}
    costs = report.costs["scale"]
    assert costs.size > 0
    assert costs.load > 0
    assert costs.work > 0
    assert costs.allowed == 30.0
    assert load.requests > 0
    assert load.shed == 0.0
    assert 0.9 < load.slack <= 1.0
    assert 0 < load.busy < 1.0


def test_a_report_is_of_memory_where_it_is_limited() -> None:
    assert report_of({"models": {}}, 1, {"": 10.0}) is None
    load, none = {"sum": 3.0, "count": 2}, {"sum": 0.0, "count": 0}
    memory = {
        "budget_bytes": 9,
        "models": {
            "a": {"resident_bytes": 4, "bytes": 6, "load_seconds": load},
            "b": {"resident_bytes": 2, "bytes": 6, "load_seconds": none},
        },
    }
    models = {
        "a": {"requests": {"answered": 4}, "run_seconds": {"1": 1.0, "2": 1.0}},
        "b": {"requests": {"answered": 0}, "run_seconds": {}},
    }
    report = report_of({"models": models, "memory": memory}, 2, {"": 10.0, "b": 0.5})
    costs = {"a": Costs(6, 1.5, 0.25, 10.0), "b": Costs(6, 1.0, 0.005, 0.5)}
    assert report == Report(9, costs, frozenset({"a"}))
