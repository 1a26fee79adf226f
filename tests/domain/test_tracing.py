"""The life of single requests, from events and actions."""

from dataclasses import replace

import pytest

from latebind.domain.actions import Evict, Load, Outcome, Reply, Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Arrived, Event, Exited, Loaded, StageDone, StageFailed, Woke
from latebind.domain.tracing import MOST_SPANS, Trace, Tracer
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from tests.models import config, served
from tests.queries import graphs


class Watched:
    """A scheduler whose events and actions a tracer sees."""

    def __init__(self, settings: SchedulerConfig) -> None:
        self.scheduler = Scheduler(settings)
        self.tracer = Tracer(settings)

    def tell(self, event: Event, now: float) -> list[Trace]:
        return list(self.tracer.observe(event, self.scheduler.handle(event, now), now=now))


def arrived(request: int, *, trace: int = 0, deadline: float = 10.0, priority: int = 0) -> Arrived:
    return Arrived("net", deadline, (request,), (request,), priority=priority, trace=trace)


def told(trace: Trace) -> list[tuple[str, float, float]]:
    return [(span.what, span.start, span.end) for span in trace.spans]


def test_a_life_is_told_from_wait_to_answer() -> None:
    watched = Watched(config(served(stages=2), max_batch=1))
    watched.tell(arrived(1), 0.0)
    watched.tell(arrived(2, trace=7, priority=3), 1.0)
    watched.tell(StageDone(0), 2.0)
    watched.tell(StageDone(0), 3.0)
    watched.tell(StageDone(0), 4.0)
    (trace,) = watched.tell(StageDone(0), 5.0)
    assert (trace.number, trace.request, trace.model, trace.priority) == (7, 2, "net", 3)
    assert (trace.arrived, trace.deadline, trace.ended) == (1.0, 10.0, 5.0)
    assert (trace.outcome, trace.left_at) == ("answered", 1)
    assert told(trace) == [("wait", 1.0, 3.0), ("stage", 3.0, 4.0), ("stage", 4.0, 5.0)]
    assert trace.spans[1].facts == {"stage": 0, "worker": 0, "batch": 1, "runs": 1, "joined": 0}


def test_who_is_refused_is_told_with_what_it_lacked() -> None:
    watched = Watched(config(served()))
    (trace,) = watched.tell(arrived(1, trace=7, deadline=0.01), 0.0)
    assert (trace.outcome, trace.left_at) == ("refused_late", -1)
    assert trace.slack == pytest.approx(-0.02)


def test_who_rests_while_others_catch_up_is_joined_by_them() -> None:
    watched = Watched(config(served(), policy="lazy"))
    watched.tell(arrived(1, trace=7), 0.0)
    watched.tell(arrived(2), 0.5)
    for second in (1.0, 2.0, 3.0):
        watched.tell(StageDone(0), second)
    (trace,) = watched.tell(StageDone(0), 4.0)
    stages = [("stage", 0.0, 1.0), ("rest", 1.0, 2.0), ("stage", 2.0, 3.0), ("stage", 3.0, 4.0)]
    assert told(trace) == [("wait", 0.0, 0.0), *stages]
    assert [span.facts["joined"] for span in trace.spans if span.what == "stage"] == [0, 1, 0]
    assert [span.facts["batch"] for span in trace.spans if span.what == "stage"] == [1, 2, 2]


def test_a_lookup_is_the_end_of_its_stage_and_hits_or_misses() -> None:
    watched = Watched(config(served(hit_rates={0: 0.3, 1: 0.3})))
    watched.tell(arrived(1, trace=7), 0.0)
    watched.tell(StageDone(0, (), 0.25), 1.0)
    (trace,) = watched.tell(StageDone(0, (1,), 0.5), 2.0)
    assert told(trace)[1:] == [
        ("stage", 0.0, 0.75),
        ("lookup", 0.75, 1.0),
        ("stage", 1.0, 1.5),
        ("lookup", 1.5, 2.0),
    ]
    assert [span.facts["hit"] for span in trace.spans if span.what == "lookup"] == [False, True]


def test_a_lookup_aside_ends_when_it_answers() -> None:
    watched = Watched(config(served(hit_rates={0: 0.3, 1: 0.3}, aside=0.01)))
    watched.tell(arrived(1, trace=7), 0.0)
    watched.tell(StageDone(0), 1.0)
    watched.tell(StageDone(0), 2.0)
    (trace,) = watched.tell(Exited(0, 1, (1,)), 2.5)
    assert told(trace)[1:] == [
        ("stage", 0.0, 1.0),
        ("lookup", 1.0, 1.0),
        ("stage", 1.0, 2.0),
        ("lookup", 2.0, 2.5),
        ("stage", 2.0, 2.5),
    ]
    assert [span.facts["hit"] for span in trace.spans if span.what == "lookup"] == [False, True]


def test_a_stage_that_raised_is_told_as_failed() -> None:
    watched = Watched(config(served()))
    watched.tell(arrived(1, trace=7), 0.0)
    (trace,) = watched.tell(StageFailed(0), 1.0)
    assert trace.outcome == "failed"
    assert trace.spans[-1].facts["failed"]


def test_loads_that_it_waited_for_are_told_from_its_arrival_on() -> None:
    tracer = Tracer(config())
    tracer.observe(arrived(1, trace=7), [Load("net", (0, 1))], now=5.0)
    tracer.observe(Loaded("net", (0, 1), 2.0), [Run(0, "net", 0, (1,), (1,))], now=6.0)
    tracer.observe(Loaded("other", (0,), 2.0), [Evict("net", (0,))], now=6.5)
    (trace,) = tracer.observe(StageDone(0), [Reply(1, "net", Outcome.ANSWERED, 0, 1.0, 1.0)], now=7.0)
    assert told(trace) == [("load", 5.0, 6.0), ("wait", 5.0, 6.0), ("stage", 6.0, 7.0)]


def test_steps_of_a_decoder_that_follow_each_other_are_one_span() -> None:
    tracer = Tracer(config(served(stages=2)))
    tracer.observe(arrived(1, trace=7), [Run(0, "net", 1, (1,), (1,))], now=0.0)
    tracer.observe(StageDone(0), [Run(0, "net", 1, (1, 2), (1, 2))], now=1.0)
    tracer.observe(Woke(), [], now=1.5)
    (trace,) = tracer.observe(StageDone(0), [Reply(1, "net", Outcome.ANSWERED, 1, 0.0, 2.0)], now=2.0)
    assert told(trace) == [("wait", 0.0, 0.0), ("stage", 0.0, 2.0)]
    assert trace.spans[1].facts == {"stage": 1, "worker": 0, "batch": 2, "runs": 2, "joined": 1}


def test_a_trace_is_bounded() -> None:
    tracer = Tracer(config())
    tracer.observe(arrived(1, trace=7), [], now=0.0)
    for second in range(2 * MOST_SPANS):
        tracer.observe(Loaded("net", (0,), 0.5), [], now=float(second))
    (trace,) = tracer.observe(Woke(), [Reply(1, "net", Outcome.EXPIRED, -1, 0.0, 0.0)], now=1e3)
    assert len(trace.spans) == MOST_SPANS
    assert trace.dropped == MOST_SPANS + 1


def test_a_query_is_told_with_its_steps_one_within_the_other() -> None:
    gate, rest = served("gate", stages=1), served("rest", stages=1)
    query = graphs.query(graphs.node("first", "gate"), graphs.node("second", "rest", after=[0]))
    simulator = Simulator(graphs.config(gate, rest, queries=[query]), mapping=0.5, traces=True)
    simulator.run([graphs.asked(query, (gate, rest))])
    (trace,) = simulator.traces
    assert (trace.model, trace.outcome) == ("query", "answered")
    assert trace.ended == pytest.approx(1.52)
    spans = [(span.step, span.what) for span in trace.spans]
    assert spans == [
        *[("first", what) for what in ("map", "wait", "stage", "step")],
        *[("second", what) for what in ("map", "wait", "stage", "step")],
        ("outputs", "map"),
    ]
    step = trace.spans[7]
    assert [step.start, step.end] == pytest.approx([0.51, 1.02])
    assert step.facts["model"] == "rest"


def test_every_simulated_request_is_told_once_and_its_spans_lie_within_its_life() -> None:
    model = served(hit_rates={0: 0.5}, per_row=0.002)
    settings = replace(config(model), workers=2)
    arrivals = [Arrival(0.003 * i, "net", 0.08, 0 if i % 3 else 2, priority=i % 2) for i in range(60)]
    simulator = Simulator(settings, traces=True)
    records = {record.request: record for record in simulator.run(arrivals)}
    assert sorted(trace.request for trace in simulator.traces) == sorted(records)
    for trace in simulator.traces:
        assert trace.ended == records[trace.request].ended
        assert trace.outcome == records[trace.request].outcome.name.lower()
        assert all(trace.arrived <= span.start <= span.end <= trace.ended for span in trace.spans)
