"""Random models, loads, crews and policies: whatever is decided, each request runs all of its work and ends once.

`python -m tests.batching.runs` plays 10,000 schedules of each policy in some minutes of a core.
"""

import argparse
from collections.abc import Sequence
from random import Random

from latebind.batching.late import BOUND, BOUND_PASSING
from latebind.domain.actions import Outcome, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve
from latebind.domain.events import Event
from latebind.domain.model import ModelSpec, StageKind
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival
from research.policies import BATCHING
from tests.batching.chains import DECODER, ENCODER, STATIC, chain

LIMIT = 4
SECONDS = (0.5, 1.0, 2.0)
LONGEST = 5  # steps of an answer
CREWS: tuple[tuple[int, ...], ...] = ((), (4,), (1, 2), (1, 1, 2, 4))  # granularities of the workers
FOREVER = 1e6


class Checked(Simulator):
    """Holds the scheduler to its invariants at every event and keeps what each request ran, in order."""

    def __init__(self, settings: SchedulerConfig) -> None:
        super().__init__(settings)
        self.ran: dict[int, list[int]] = {}
        self.largest = 0
        self.delayed = 0.0

    def _tell(self, event: Event, now: float) -> None:
        super()._tell(event, now)
        self.scheduler.check()
        assert isinstance(self.scheduler, Scheduler)
        for worker in self.scheduler._workers:
            for entry in worker.table.entries:
                self.delayed = max(self.delayed, *(request.delayed for request in entry.members.values()))

    def _run(self, action: Run, now: float) -> None:
        self.largest = max(self.largest, len(action.requests))
        for request in action.requests:
            self.ran.setdefault(request, []).append(action.stage)
        super()._run(action, now)


def play(random: Random, name: str) -> None:
    """Play one load with a policy and check what became of it."""
    served = (_model(random, "a"), _model(random, "b"))
    calls = _load(random, served)
    policy = PolicyConfig(BATCHING[name], window=random.choice(SECONDS), shed=_perhaps(random))
    crew = random.choice(CREWS)
    workers = len(crew) or random.randint(1, 2)
    simulator = Checked(SchedulerConfig(served, workers, policy, crew, random.randint(0, 2)))
    records = simulator.run(calls)

    arrivals = [call for call in calls for _ in range(call.rows)]
    assert sorted(record.request for record in records) == list(range(len(arrivals)))
    assert simulator.largest <= max(crew, default=LIMIT)
    stats = simulator.scheduler.stats()
    assert stats["queued"] == stats["running"] == 0
    specs = {model.spec.name: model.spec for model in served}
    for record in records:
        if record.outcome is Outcome.ANSWERED:
            ran = simulator.ran[record.request]
            _check_work(specs[record.model], arrivals[record.request], record, ran, leave=name != "waiting")
        else:
            assert policy.shed
    if not policy.shed:
        assert max(record.ended for record in records) <= _patience(served, calls, policy)


def hold_up(random: Random) -> None:
    """Play one load with `lazy+` and check that nobody was held up past its bound."""
    served = (_model(random, "a"), _model(random, "b"))
    calls = _load(random, served)
    simulator = Checked(SchedulerConfig(served, 1, PolicyConfig("lazy+", shed=False)))
    records = simulator.run(calls)
    longest = max(_whole(model, max(call.inputs for call in calls), LIMIT) for model in served)
    assert simulator.delayed <= (BOUND + BOUND_PASSING + 1.0) * longest
    assert len(records) == sum(call.rows for call in calls)


def _model(random: Random, name: str) -> ServedModel:
    """A chain of up to four stages, perhaps recurrent, on a flat or a steep curve."""
    body = [random.choice((STATIC, STATIC, ENCODER)) for _ in range(random.randint(0, 3))]
    kinds = (*body, DECODER) if not body or _perhaps(random) else (*body, STATIC)
    first = random.choice(SECONDS)
    curve = Curve((1, LIMIT), (first, first * random.choice((1.0, 1.5, 4.0))))
    early = range(len(kinds) - 1) if set(kinds) == {STATIC} else ()
    hit_rates = {stage: random.choice((0.1, 0.3)) for stage in early if _perhaps(random)}
    return chain(*kinds, name=name, max_batch=LIMIT, curve=curve, output_steps=(1, 2, 3, LONGEST), hit_rates=hit_rates)


def _load(random: Random, served: Sequence[ServedModel]) -> list[Arrival]:
    """Up to twelve calls, some of two rows, now and then in a rush."""
    calls, time = [], 0.0
    for _ in range(random.randint(1, 12)):
        time += random.choice((0.0, 0.3, 1.0, 4.0))
        spec = random.choice(served).spec
        exits = [stage for stage in range(spec.stages) if spec.kind(stage) is not ENCODER]
        calls.append(
            Arrival(
                time,
                spec.name,
                random.choice((3.0, 12.0, FOREVER)),
                exits[-1] if DECODER in spec.kinds else random.choice(exits),
                inputs=random.randint(1, 4),
                outputs=random.randint(1, LONGEST),
                rows=random.randint(1, 2),
                priority=random.choice((0, 0, 1, 7)),
            )
        )
    return calls


def _perhaps(random: Random) -> bool:
    return random.random() < 0.5


def _check_work(spec: ModelSpec, arrival: Arrival, record: Record, ran: list[int], *, leave: bool) -> None:
    """Check that a request ran what it runs alone, in that order; padding may run it for longer."""
    assert ran == sorted(ran)
    assert record.stage == arrival.leaves_at
    assert set(ran) == set(range(record.stage + 1 if leave else max(ran) + 1))
    for stage in range(record.stage + 1):
        kind = spec.kind(stage)
        least = {STATIC: 1, ENCODER: arrival.inputs, DECODER: arrival.outputs}[kind]
        exact = kind is STATIC or (kind is DECODER and leave)
        assert ran.count(stage) == least if exact else ran.count(stage) >= least


def _patience(served: Sequence[ServedModel], calls: Sequence[Arrival], policy: PolicyConfig) -> float:
    """Return when all must have ended at the latest: one after the other, padded, each after a window of its own."""
    inputs = max(call.inputs for call in calls)
    alone = {model.spec.name: _whole(model, inputs, LIMIT) for model in served}
    return calls[-1].time + sum(call.rows * (alone[call.model] + policy.window) for call in calls)


def _whole(model: ServedModel, inputs: int, rows: int) -> float:
    """Return the seconds of the longest batch of so many that there can be."""
    steps = {StageKind.STATIC: 1, StageKind.ENCODER: inputs, StageKind.DECODER: LONGEST}
    return sum(steps[model.spec.kind(i)] * model.costs.step(i, rows) for i in range(model.spec.stages))


def main() -> None:
    """Play so many schedules of each policy; each has a seed, by which it can be played again alone."""
    parser = argparse.ArgumentParser(description="Random schedules, in which each request has to end exactly once.")
    parser.add_argument("--schedules", type=int, default=10_000, help="of each policy")
    parser.add_argument("--policy", choices=[*BATCHING], action="append", help="all where none is named")
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    asked = parser.parse_args()
    for name in asked.policy or BATCHING:
        for seed in range(asked.seed, asked.seed + asked.schedules):
            try:
                play(Random(seed), name)
                if name == "lazy+":
                    hold_up(Random(seed))
            except BaseException:
                print(f"failed with --policy {name} --seed {seed} --schedules 1", flush=True)
                raise
        print(f"{name}: {asked.schedules} schedules, each request ended exactly once", flush=True)


if __name__ == "__main__":
    main()
