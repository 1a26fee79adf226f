"""Figures from events and actions."""

from dataclasses import replace

from latebind.domain.actions import Evict, Load, Outcome, Reply, Run
from latebind.domain.config import ResidencyConfig
from latebind.domain.events import Arrived, Loaded, LoadFailed, StageDone, Woke
from latebind.domain.footprint import Footprint
from latebind.domain.metrics import Histogram, Metrics
from tests.models import config, served


def test_a_histogram_counts_by_upper_bound_and_keeps_what_is_above_the_last() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.add(value)
    assert histogram.snapshot() == {"le": [0.1, 1.0], "counts": [2, 1, 1], "sum": 3.65, "count": 4}


def test_metrics_follow_a_batch_from_arrival_to_answers() -> None:
    metrics = Metrics(config())
    metrics.observe(Arrived("net", 1.0, (1, 2), (0, 1)), [Run(0, "net", 0, (1, 2), (0, 1))])
    metrics.observe(
        StageDone(0, (1,)),
        [Reply(1, "net", Outcome.ANSWERED, 0, 0.001, 0.002), Run(0, "net", 1, (2,), (1,))],
    )
    figures = metrics.snapshot()["models"]["net"]
    assert figures["pending"] == 1
    assert figures["requests"]["answered"] == 1
    assert figures["left_at"] == [1, 0, 0]
    assert figures["batches"] == {"2": 1}
    assert (figures["stage_runs"], figures["row_stages"]) == (2, 3)
    assert figures["latency_seconds"]["sum"] == 0.003
    assert figures["queue_seconds"]["sum"] == 0.001


def test_a_refused_request_is_no_longer_pending() -> None:
    metrics = Metrics(config())
    metrics.observe(Arrived("net", 1.0, (1,), (0,)), [Reply(1, "net", Outcome.REFUSED_FULL, -1, 0.0, 0.0)])
    figures = metrics.snapshot()["models"]["net"]
    assert figures["pending"] == 0
    assert figures["requests"]["refused_full"] == 1
    assert figures["latency_seconds"]["count"] == 0


def test_memory_is_counted_from_events_and_actions() -> None:
    model = replace(served(), footprint=Footprint((10, 20, 30), (0.1, 0.1, 0.1)))
    metrics = Metrics(replace(config(model), residency=ResidencyConfig(100, "lru")))
    metrics.observe(Woke(), [Load("net", (0, 1))])
    metrics.observe(Loaded("net", (0, 1), 0.3, (12, 20), 32, 8), [Load("net", (2,)), Evict("net", (0,))])
    metrics.observe(LoadFailed("net", (2,)), [])
    memory = metrics.snapshot()["memory"]
    assert memory["budget_bytes"] == 100
    found = memory["models"]["net"]
    assert (found["resident_bytes"], found["bytes"]) == (20, 62)
    assert (found["loads"], found["evictions"], found["failures"]) == (2, 1, 1)
    assert (found["read_bytes"], found["cached_bytes"]) == (32, 8)
    assert found["load_seconds"]["sum"] == 0.3


def test_memory_without_a_bound_is_not_told_of() -> None:
    assert "memory" not in Metrics(config()).snapshot()
