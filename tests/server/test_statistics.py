"""The statistics extension: from the engine's figures to what tritonclient and perf_analyzer read."""

import json
from typing import Any

import pytest

from latebind.server.description import statistics
from latebind.server.gateway import MemoryMetrics, Snapshot
from tests.server.arithmetic import one_to_one
from tests.server.test_metrics import SNAPSHOT

SPEC = one_to_one("m", "float32", 1)
KINDS = {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"}


def of_model(snapshot: Snapshot) -> dict[str, Any]:
    (found,) = json.loads(json.dumps(statistics([SPEC], snapshot, epoch=1_000.0)))["model_stats"]
    assert isinstance(found, dict)
    return found


def test_successes_failures_and_times_come_from_the_engines_figures() -> None:
    told = of_model(SNAPSHOT)
    assert (told["name"], told["version"]) == ("m", "1")
    assert told["inference_count"] == 10
    assert told["execution_count"] == 5
    stats = told["inference_stats"]
    assert stats["success"] == {"count": 10, "ns": 500_000_000}
    assert stats["fail"] == {"count": 28, "ns": 1_500_000_000}
    assert stats["queue"] == {"count": 10, "ns": 25_000_000}
    assert stats["compute_infer"] == {"count": 10, "ns": 475_000_000}


def test_batches_are_told_by_their_size_in_order() -> None:
    told = of_model(SNAPSHOT)["batch_stats"]
    assert [(entry["batch_size"], entry["compute_infer"]) for entry in told] == [
        (2, {"count": 4, "ns": 500_000_000}),
        (16, {"count": 1, "ns": 250_000_000}),
    ]


def whole_numbers(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(whole_numbers, value.values()))
    if isinstance(value, list):
        return all(map(whole_numbers, value))
    return isinstance(value, str) or (type(value) is int and value >= 0)


@pytest.mark.parametrize("snapshot", [SNAPSHOT, Snapshot(models={})], ids=["with figures", "never asked"])
def test_every_key_is_there_and_every_number_whole_and_not_negative(snapshot: Snapshot) -> None:
    told = of_model(snapshot)
    assert set(told) == {
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    }
    assert set(told["inference_stats"]) == KINDS
    assert whole_numbers(told)


def test_memory_is_told_where_it_is_limited() -> None:
    assert of_model(SNAPSHOT)["memory_usage"] == []
    figures: Any = MemoryMetrics(resident_bytes=40, bytes=70)  # type: ignore[typeddict-item]
    limited = Snapshot(models=SNAPSHOT["models"], memory={"budget_bytes": 60, "models": {"m": figures}})
    assert of_model(limited)["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 40}]
