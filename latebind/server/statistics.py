"""The engine's figures as the protocol's statistics extension tells them: whole numbers, and every key always there."""

from collections.abc import Iterable, Mapping
from typing import Any

from latebind.domain.model import ModelSpec
from latebind.server.gateway import ModelMetrics, Snapshot

NANOSECONDS = 1e9
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
PARTS = ("compute_input", "compute_infer", "compute_output")

Duration = dict[str, int]


def statistics(specs: Iterable[ModelSpec], snapshot: Snapshot) -> dict[str, object]:
    """Return the statistics of these models and queries since the start.

    Every row is a request of its own here, so `inference_count` is the number of successes. `execution_count` counts
    batches as they begin: one that rows leave early still counts as one. What the engine does not tell is 0.
    """
    return {"model_stats": [_of_model(spec, snapshot) for spec in specs]}


def _of_model(spec: ModelSpec, snapshot: Snapshot) -> dict[str, object]:
    figures = snapshot["models"].get(spec.name)
    batches = figures["batches"] if figures else {}
    return {
        "name": spec.name,
        "version": spec.version,
        "last_inference": 0,
        "inference_count": figures["requests"]["answered"] if figures else 0,
        "execution_count": sum(batches.values()),
        "inference_stats": {**dict.fromkeys(KINDS, _duration(0, 0.0)), **(_durations(figures) if figures else {})},
        "response_stats": {},
        "batch_stats": [_of_batches(int(size), count) for size, count in sorted(batches.items(), key=_size)],
        "memory_usage": _memory(spec, snapshot),
    }


def _durations(figures: ModelMetrics) -> dict[str, Duration]:
    outcomes: Mapping[str, Any] = figures["requests"]
    answered, latency, queue = outcomes["answered"], figures["latency_seconds"], figures["queue_seconds"]
    return {
        "success": _duration(answered, latency["sum"]),
        "fail": _duration(sum(outcomes.values()) - answered, 0.0),
        "queue": _duration(queue["count"], queue["sum"]),
        "compute_infer": _duration(latency["count"], latency["sum"] - queue["sum"]),
    }


def _of_batches(size: int, count: int) -> dict[str, object]:
    return {"batch_size": size, **{part: _duration(count, 0.0) for part in PARTS}}


def _memory(spec: ModelSpec, snapshot: Snapshot) -> list[dict[str, object]]:
    """Return what a model has in memory, where that is limited; of other models nobody counts it."""
    found = snapshot["memory"]["models"].get(spec.name) if "memory" in snapshot else None
    return [] if found is None else [{"type": "CPU", "id": 0, "byte_size": found["resident_bytes"]}]


def _duration(count: int, seconds: float) -> Duration:
    return {"count": count, "ns": max(0, round(seconds * NANOSECONDS))}


def _size(batches: tuple[str, int]) -> int:
    return int(batches[0])
