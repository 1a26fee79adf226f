"""Random models, loads and policies: whatever is decided, every request runs all of its work once and is answered once.

`HYPOTHESIS_PROFILE=thorough pytest tests/batching/test_schedules.py` tries 12,500 for each policy, 100,000 in all.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.batching import POLICIES
from latebind.batching.lazy_plus import BOUND, BOUND_PASSING
from latebind.domain.actions import Outcome, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve
from latebind.domain.events import Event
from latebind.domain.model import StageKind
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival
from tests.batching.chains import DECODER, ENCODER, STATIC, chain

LIMIT = 4
SECONDS = st.sampled_from((0.5, 1.0, 2.0))


@st.composite
def models(draw: st.DrawFn, name: str) -> ServedModel:
    """A chain of up to four stages, perhaps recurrent, on a flat or a steep curve."""
    body = draw(st.lists(st.sampled_from((STATIC, STATIC, ENCODER)), min_size=0, max_size=3))
    kinds = (*body, DECODER) if draw(st.booleans()) or not body else (*body, STATIC)
    first = draw(SECONDS)
    curve = Curve((1, LIMIT), (first, first * draw(st.sampled_from((1.0, 1.5, 4.0)))))
    early = range(len(kinds) - 1) if set(kinds) == {STATIC} else ()
    hit_rates = {stage: draw(st.sampled_from((0.1, 0.3))) for stage in early if draw(st.booleans())}
    wide = draw(st.sampled_from((None, 0.5, 1.0)))
    return chain(
        *kinds, name=name, max_batch=LIMIT, curve=curve, output_steps=(1, 2, 3, 5), hit_rates=hit_rates, wide=wide
    )


@st.composite
def loads(draw: st.DrawFn, served: tuple[ServedModel, ...]) -> list[Arrival]:
    """Up to twelve calls, some of two rows, now and then in a rush."""
    calls, time = [], 0.0
    for _ in range(draw(st.integers(1, 12))):
        time += draw(st.sampled_from((0.0, 0.3, 1.0, 4.0)))
        model = draw(st.sampled_from(served))
        exits = [stage for stage in range(model.spec.stages) if model.spec.kind(stage) is not ENCODER]
        calls.append(
            Arrival(
                time,
                model.spec.name,
                draw(st.sampled_from((3.0, 12.0, 1e6))),
                exits[-1] if DECODER in model.spec.kinds else draw(st.sampled_from(exits)),
                inputs=draw(st.integers(1, 4)),
                outputs=draw(st.integers(1, 5)),
                rows=draw(st.integers(1, 2)),
                priority=draw(st.sampled_from((0, 0, 1, 7))),
            )
        )
    return calls


class Checked(Simulator):
    """Holds the scheduler to its invariants at every event and counts what each request ran."""

    def __init__(self, settings: SchedulerConfig) -> None:
        super().__init__(settings)
        self.work: dict[int, Counter[int]] = {}
        self.largest = 0
        self.delays: list[float] = []

    def _tell(self, event: Event, now: float) -> None:
        super()._tell(event, now)
        self.scheduler.check()
        assert isinstance(self.scheduler, Scheduler)
        for worker in self.scheduler._workers:
            for entry in worker.table.entries:
                self.delays += [request.delayed for request in entry.members.values()]

    def _run(self, action: Run, now: float) -> None:
        self.largest = max(self.largest, len(action.requests))
        for request in action.requests:
            self.work.setdefault(request, Counter())[action.stage] += 1
        super()._run(action, now)


def run(settings: SchedulerConfig, calls: list[Arrival]) -> tuple[Checked, list[Record]]:
    simulator = Checked(settings)
    return simulator, simulator.run(calls)


@pytest.mark.parametrize("name", POLICIES)
@given(
    data=st.data(),
    leave=st.booleans(),
    shed=st.booleans(),
    crew=st.sampled_from(((), (4,), (1, 2), (1, 1, 2, 4))),
    at_once=st.integers(0, 2),
    window=SECONDS,
)
def test_every_request_runs_its_work_and_ends_once(
    name: str, data: st.DataObject, leave: bool, shed: bool, crew: tuple[int, ...], at_once: int, window: float
) -> None:
    served = (data.draw(models("a")), data.draw(models("b")))
    calls = data.draw(loads(served))
    policy = PolicyConfig(name, window=window, leave=leave, shed=shed)
    workers = len(crew) or data.draw(st.integers(1, 2))
    simulator, records = run(SchedulerConfig(served, workers, policy, crew, at_once), calls)
    arrivals = [call for call in calls for _ in range(call.rows)]
    assert sorted(record.request for record in records) == list(range(len(arrivals)))
    assert simulator.largest <= max(crew, default=LIMIT)
    specs = {model.spec.name: model.spec for model in served}
    for record in records:
        if record.outcome is not Outcome.ANSWERED:
            assert shed
            continue
        arrival, spec, work = arrivals[record.request], specs[record.model], simulator.work[record.request]
        for stage in range(record.stage + 1):
            kind = spec.kind(stage)
            least = {STATIC: 1, ENCODER: arrival.inputs, DECODER: arrival.outputs}[kind]
            exact = kind is STATIC or (kind is DECODER and leave)
            assert work[stage] == least if exact else work[stage] >= least
        assert set(work) == set(range(record.stage + 1 if leave else max(work) + 1))
        assert record.stage == arrival.leaves_at


@given(data=st.data())
def test_lazy_plus_holds_nobody_up_past_its_bound(data: st.DataObject) -> None:
    served = (data.draw(models("a")), data.draw(models("b")))
    calls = data.draw(loads(served))
    simulator, records = run(SchedulerConfig(served, 1, PolicyConfig("lazy+", shed=False)), calls)
    longest = max(_longest(model, calls) for model in served)
    assert all(delayed <= (BOUND + BOUND_PASSING + 1.0) * longest for delayed in simulator.delays)
    assert len(records) == sum(call.rows for call in calls)


def _longest(model: ServedModel, calls: list[Arrival]) -> float:
    """Return the seconds of the longest batch that there can be."""
    steps = {
        StageKind.STATIC: 1,
        StageKind.ENCODER: max(call.inputs for call in calls),
        StageKind.DECODER: max(5, *(call.outputs for call in calls), 5),
    }
    return sum(steps[model.spec.kind(i)] * model.costs.step(i, LIMIT) for i in range(model.spec.stages))
