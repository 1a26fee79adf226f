"""The engine's figures in the form of the protocol's statistics extension: integers, and every key always present."""

from collections.abc import Iterable, Mapping
from typing import Any

from latebind.domain.model import ModelSpec
from latebind.server.gateway import ModelMetrics, Snapshot

NANOSECONDS = 1e9
MILLISECONDS = 1e3
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")

Duration = dict[str, int]


def statistics(specs: Iterable[ModelSpec], snapshot: Snapshot, *, epoch: float) -> dict[str, object]:
    """Return the statistics of these models and queries since the start.

    Every row is a request of its own here, so `inference_count` is the number of successes. `execution_count` counts
    batches when they begin: a batch that some rows leave early still counts once, and each query counts as one. The
    time for inputs and outputs is part of `compute_infer`. `epoch` is the Unix time, in seconds, at which the clock of
    the snapshot was 0.
    """
    return {"model_stats": [_of_model(spec, snapshot, epoch) for spec in specs]}


def executions(figures: ModelMetrics, *, is_query: bool) -> int:
    """Return how often a model was executed: the batches that began. Each answered query counts as one."""
    return figures["requests"]["answered"] if is_query else sum(figures["batches"].values())


def _of_model(spec: ModelSpec, snapshot: Snapshot, epoch: float) -> dict[str, object]:
    figures = snapshot["models"].get(spec.name)
    last = figures["last"] if figures else None
    answered = figures["requests"]["answered"] if figures else 0
    return {
        "name": spec.name,
        "version": spec.version,
        "last_inference": 0 if last is None else round((epoch + last) * MILLISECONDS),
        "inference_count": answered,
        "execution_count": executions(figures, is_query=bool(spec.steps)) if figures else 0,
        "inference_stats": {**dict.fromkeys(KINDS, _duration(0, 0.0)), **(_durations(figures) if figures else {})},
        "response_stats": {},
        "batch_stats": _of_batches(figures) if figures else [],
        "memory_usage": _memory(spec, snapshot),
    }


def _durations(figures: ModelMetrics) -> dict[str, Duration]:
    outcomes: Mapping[str, Any] = figures["requests"]
    answered, latency, queue = outcomes["answered"], figures["latency_seconds"], figures["queue_seconds"]
    aside = _duration(latency["count"], 0.0)  # perf_analyzer gives up unless the three counts are equal
    return {
        "success": _duration(answered, latency["sum"]),
        "fail": _duration(sum(outcomes.values()) - answered, figures["failed_seconds"]),
        "queue": _duration(queue["count"], queue["sum"]),
        "compute_input": aside,
        "compute_infer": _duration(latency["count"], latency["sum"] - queue["sum"]),
        "compute_output": aside,
    }


def _of_batches(figures: ModelMetrics) -> list[dict[str, object]]:
    """Return, by batch size, how many batches began and how long all stages ran with that many requests."""
    counts, seconds = figures["batches"], figures["run_seconds"]
    return [
        {
            "batch_size": size,
            "compute_input": _duration(counts.get(str(size), 0), 0.0),
            "compute_infer": _duration(counts.get(str(size), 0), seconds.get(str(size), 0.0)),
            "compute_output": _duration(counts.get(str(size), 0), 0.0),
        }
        for size in sorted(map(int, {*counts, *seconds}))
    ]


def _memory(spec: ModelSpec, snapshot: Snapshot) -> list[dict[str, object]]:
    """Return the memory that a model takes, where memory is limited; otherwise it is not counted."""
    found = snapshot["memory"]["models"].get(spec.name) if "memory" in snapshot else None
    return [] if found is None else [{"type": "CPU", "id": 0, "byte_size": found["resident_bytes"]}]


def _duration(count: int, seconds: float) -> Duration:
    return {"count": count, "ns": max(0, round(seconds * NANOSECONDS))}
