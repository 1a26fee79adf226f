"""Figures from events and actions."""

from dataclasses import replace

from latebind.domain.actions import Evict, Load, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import ResidencyConfig, SchedulerConfig
from latebind.domain.costs import Footprint, Level
from latebind.domain.events import Arrived, Loaded, LoadFailed, Mapped, StageDone, StageFailed, Woke
from latebind.domain.metrics import Metrics
from latebind.domain.model import ModelSpec, StageKind, StepSpec
from latebind.domain.query import Node, PlannerConfig, Query
from latebind.domain.sizes import Dim
from tests.batching.chains import STATIC, chain
from tests.models import SCORES, VECTOR, config, served

QUERY = Query(
    ModelSpec("traffic", "1", (VECTOR,), (SCORES,), 1, 4, steps=(StepSpec("gate", ("net", "other")),)),
    (Node("gate", ("net", "other"), (0.5, 1.0)),),
)


def test_metrics_follow_a_batch_from_arrival_to_answers() -> None:
    metrics = Metrics(config())
    metrics.observe(Arrived("net", 1.0, (1, 2), (0, 1)), [Run(0, "net", 0, (1, 2), (0, 1))], now=0.0)
    metrics.observe(
        StageDone(0, (1,)),
        [Reply(1, "net", Outcome.ANSWERED, 0, 0.001, 0.002), Run(0, "net", 1, (2,), (1,))],
        now=0.5,
    )
    figures = metrics.snapshot()["models"]["net"]
    assert figures["pending"] == 1
    assert figures["requests"]["answered"] == 1
    assert figures["left_at"] == [1, 0, 0]
    assert figures["batches"] == {"2": 1}
    assert (figures["stage_runs"], figures["row_stages"]) == (2, 3)
    assert figures["latency_seconds"]["sum"] == 0.003
    assert figures["queue_seconds"]["sum"] == 0.001


def test_stages_count_by_how_many_were_in_them_with_the_time_that_they_took() -> None:
    metrics = Metrics(config())
    metrics.observe(Arrived("net", 1.0, (1, 2), (0, 1)), [Run(0, "net", 0, (1, 2), (0, 1))], now=1.0)
    exited = Reply(1, "net", Outcome.ANSWERED, 0, 0.0, 0.25)
    metrics.observe(StageDone(0, (1,)), [exited, Run(0, "net", 1, (2,), (1,))], now=1.25)
    metrics.observe(StageFailed(0), [Reply(2, "net", Outcome.FAILED, 0, 0.0, 1.0)], now=2.0)
    figures = metrics.snapshot()["models"]["net"]
    assert figures["runs"] == {"1": 1, "2": 1}
    assert figures["run_seconds"] == {"1": 0.75, "2": 0.25}
    assert figures["failed_seconds"] == 1.0
    assert figures["stage_failures"] == 1


def test_slack_counts_whoever_is_refused_too() -> None:
    metrics = Metrics(config())
    late = Reply(1, "net", Outcome.REFUSED_LATE, -1, 0.0, 0.0, -0.5)
    metrics.observe(Arrived("net", 1.0, (1,), (0,)), [late], now=0.0)
    metrics.observe(Woke(), [Reply(2, "net", Outcome.ANSWERED, 2, 0.0, 0.0, 0.002)], now=0.0)
    slack = metrics.snapshot()["models"]["net"]["slack_seconds"]
    assert slack["count"] == 2
    assert (slack["le"][0], slack["counts"][0]) == (0.0, 1)


def test_a_step_planned_behind_another_is_a_replan() -> None:
    node = Node("cars", ("net", "other"), (0.5, 1.0), after=(0,))
    steps = (*QUERY.spec.steps, StepSpec("cars", ("net", "other")))
    query = replace(QUERY, spec=replace(QUERY.spec, stages=2, steps=steps), nodes=(*QUERY.nodes, node))
    beforehand = replace(query, planner=PlannerConfig(replan=False))
    for planned, replans in ((query, 1), (beforehand, 0)):
        metrics = Metrics(replace(config(served("net"), served("other")), queries=(planned,), slots=4))
        metrics.observe(Arrived("traffic", 1.0, (1,), (0,)), [Map("traffic", (1,), (0,), 0, (1, -1))], now=0.0)
        metrics.observe(Woke(), [Map("traffic", (1,), (0,), 1, (1, 0)), Map("traffic", (1,), (0,), 2, (1, 0))], now=0.0)
        steps_told = metrics.snapshot()["steps"]["traffic"]
        assert (steps_told["gate"]["replanned"], steps_told["cars"]["replanned"]) == (0, replans)


def test_memory_is_counted_from_events_and_actions() -> None:
    model = replace(served(), footprint=Footprint((10, 20, 30), (0.1, 0.1, 0.1)))
    metrics = Metrics(replace(config(model), residency=ResidencyConfig(100, "lru")))
    metrics.observe(Woke(), [Load("net", (0, 1))], now=0.0)
    metrics.observe(Loaded("net", (0, 1), 0.3, (12, 20), 32, 8), [Load("net", (2,)), Evict("net", (0,))], now=0.0)
    metrics.observe(LoadFailed("net", (2,)), [], now=0.0)
    memory = metrics.snapshot()["memory"]
    assert memory["budget_bytes"] == 100
    found = memory["models"]["net"]
    assert (found["resident_bytes"], found["bytes"]) == (20, 62)
    assert (found["loads"], found["evictions"], found["failures"]) == (2, 1, 1)
    assert (found["read_bytes"], found["cached_bytes"]) == (32, 8)
    assert found["load_seconds"]["sum"] == 0.3


def test_a_step_of_a_query_counts_for_its_model_and_for_its_query() -> None:
    metrics = Metrics(replace(config(served("net"), served("other")), queries=(QUERY,), slots=4))
    metrics.observe(Arrived("traffic", 1.0, (1,), (0,)), [Map("traffic", (1,), (0,), 0, (1,))], now=0.0)
    ended = StepEnded("traffic", 1, 0, 1, "other", Outcome.ANSWERED, 1, 0.001, 0.002, 0.01, 0.004)
    metrics.observe(Woke(), [ended], now=0.0)
    metrics.observe(Mapped((1,), 1), [Reply(1, "traffic", Outcome.ANSWERED, 0, 0.001, 0.005)], now=0.0)
    found = metrics.snapshot()
    assert found["models"]["other"]["requests"]["answered"] == 1
    assert found["models"]["other"]["left_at"] == [0, 1, 0]
    assert found["models"]["other"]["pending"] == 0
    assert found["models"]["traffic"]["latency_seconds"]["sum"] == 0.006
    step = found["steps"]["traffic"]["gate"]
    assert step["answered"] == {"net": 0, "other": 1}
    assert (step["budget_seconds"], step["spent_seconds"]["sum"]) == (0.01, 0.004)


def speaker() -> Metrics:
    """Of the model `net`, whose stage 1 writes tokens."""
    net = served(stages=2)
    return Metrics(config(replace(net, spec=replace(net.spec, kinds=(StageKind.STATIC, StageKind.DECODER)))))


def test_tokens_are_counted_and_the_first_of_each_answer_is_timed() -> None:
    metrics = speaker()
    metrics.observe(Arrived("net", 9.0, (1,), (0,)), [Run(0, "net", 0, (1,), (0,))], now=0.0)
    metrics.observe(Arrived("net", 9.0, (2,), (1,)), [], now=0.5)
    metrics.observe(StageDone(0), [Run(0, "net", 1, (1,), (0,))], now=1.0)
    metrics.observe(StageDone(0), [Run(0, "net", 1, (1, 2), (0, 1))], now=2.0)
    answered = Reply(1, "net", Outcome.ANSWERED, 1, 0.0, 3.0)
    metrics.observe(StageDone(0, (1,)), [answered, Run(0, "net", 1, (2,), (1,))], now=3.0)
    figures = metrics.snapshot()["models"]["net"]
    assert figures["tokens"] == 3
    assert (figures["first_token_seconds"]["count"], figures["first_token_seconds"]["sum"]) == (2, 2.0 + 2.5)


def test_a_step_that_raises_writes_no_token_and_who_goes_before_the_first_has_none() -> None:
    metrics = speaker()
    metrics.observe(Arrived("net", 9.0, (1, 2), (0, 1)), [Run(0, "net", 1, (1,), (0,))], now=0.0)
    metrics.observe(StageFailed(0), [Reply(1, "net", Outcome.FAILED, 1, 0.0, 1.0)], now=1.0)
    metrics.observe(Woke(), [Reply(2, "net", Outcome.EXPIRED, -1, 1.0, 0.0)], now=2.0)
    metrics.observe(Woke(), [Run(0, "net", 1, (1, 2), (0, 1))], now=3.0)
    metrics.observe(StageDone(0), [], now=4.0)
    figures = metrics.snapshot()["models"]["net"]
    assert figures["tokens"] == 2
    assert figures["first_token_seconds"]["count"] == 0


def test_lengths_count_as_they_are_and_as_the_longest_of_each_run() -> None:
    net = served("net")
    sized = replace(net, spec=replace(net.spec, dims=(Dim("L", 1, 9),)))
    metrics = Metrics(config(sized))
    arrived = Arrived("net", 1.0, (1, 2), (0, 1), inputs=(3, 7))
    metrics.observe(arrived, [Run(0, "net", 0, (1, 2), (0, 1))], now=0.0)
    metrics.observe(
        StageDone(0, (2,)),
        [Reply(2, "net", Outcome.ANSWERED, 0, 0.0, 0.25), Run(0, "net", 1, (1,), (0,))],
        now=0.25,
    )
    metrics.observe(StageFailed(0), [Reply(1, "net", Outcome.FAILED, 1, 0.0, 0.5)], now=0.5)
    figures = metrics.snapshot()["models"]["net"]
    assert (figures["lengths"], figures["run_lengths"], figures["padded_lengths"]) == (7, 10 + 3, 14 + 3)
    assert "lengths" not in Metrics(config()).snapshot()["models"]["net"]


def test_lengths_of_steps_are_those_that_they_were_mapped_with_and_none_is_kept() -> None:
    net = served("net")
    sized = replace(net, spec=replace(net.spec, dims=(Dim("L", 1, 9),)))
    metrics = Metrics(replace(config(sized, served("other")), queries=(QUERY,)))
    mapped = Mapped((10, 20), 0, inputs=(4, 6))
    metrics.observe(mapped, [Run(0, "net", 0, (11, 21), (0, 1))], now=0.0)
    ended = StepEnded("traffic", 10, 0, 0, "net", Outcome.ANSWERED, 2, 0.0, 0.5, 0.4, 0.6)
    answered = [Reply(10, "traffic", Outcome.ANSWERED, 0, 0.0, 1.0), Reply(20, "traffic", Outcome.EXPIRED, 0, 0.0, 1.0)]
    metrics.observe(StageDone(0, (11,)), [ended, *answered], now=1.0)
    figures = metrics.snapshot()["models"]["net"]
    assert (figures["lengths"], figures["run_lengths"], figures["padded_lengths"]) == (4, 10, 12)
    assert not metrics._lengths


def test_who_starts_counts_by_the_fidelity_that_it_is_promised() -> None:
    model = chain(STATIC, STATIC, hit_rates={0: 0.5})
    levels = Level(1.0), Level(0.99, {0: 0.5})
    model = replace(model, costs=replace(model.costs, levels=levels, target=1))
    metrics = Metrics(SchedulerConfig((model,)))
    metrics.observe(
        Arrived("net", 1.0, (1, 2, 3), (0, 1, 2)), [Run(0, "net", 0, (1, 2, 3), (0, 1, 2), (1, 0, 1))], now=0.0
    )
    metrics.observe(StageDone(0), [Run(0, "net", 1, (1, 2), (0, 1), (1, 0))], now=1.0)
    assert metrics.snapshot()["models"]["net"]["promised"] == {"0.99": 2, "1": 1}
