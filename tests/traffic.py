"""Random traffic for a scheduler: models, workers, memory, failures, clients that leave. One seed, one play.

`python -m tests.traffic` plays 2,000 schedules of each policy.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from latebind.domain.actions import Action, Load, Outcome, Reply, Run, WakeAt
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts, at_any_length
from latebind.domain.events import Arrived, Cancelled, Event, Exited, Loaded, LoadFailed, StageDone, StageFailed, Woke
from latebind.domain.model import ModelSpec, StageKind
from latebind.scheduler import Scheduler
from latebind.simulation.hardware import Agenda
from research.policies import BATCHING
from tests.models import VECTOR

STATIC, ENCODER, DECODER = StageKind.STATIC, StageKind.ENCODER, StageKind.DECODER


def _model(random: Random, name: str) -> ServedModel:
    """One that leaves early at some stages, one with a decoder, or one with steps of its input; batches pay or not."""
    stages, kind = random.randint(1, 6), random.choice(("exits", "exits", "exits", "decoder", "encoder"))
    others = (STATIC,) * (stages - 1)
    kinds = {"exits": (), "decoder": (*others, DECODER), "encoder": (ENCODER, *others)}
    hits = {i: random.choice((0.05, 0.2, 0.3)) for i in range(stages - 1) if kind == "exits" and random.random() < 0.4}
    singles = [random.choice((1e-3, 2e-3, 5e-3)) for _ in range(stages)]
    costs = ModelCosts(
        at_any_length(*[Curve((1, 16), (one, one * random.choice((1.0, 2.0, 6.0, 16.0)))) for one in singles]),
        dict.fromkeys(hits, Curve((1, 16), (1e-4, 3e-4))),
        hits,
        aside=random.random() < 0.2,
        output_steps=tuple(sorted(random.randint(1, 12) for _ in range(10))) if kind == "decoder" else (1,),
    )
    sizes = tuple(random.choice((4, 8, 20)) for _ in range(stages)) + (1,) * len(hits)
    loads, runs = tuple(size * 1e-3 for size in sizes), tuple(singles) if random.random() < 0.7 else ()
    gains, row = (1e-3,) * len(hits), random.choice((0, 1))
    footprint = Footprint(sizes, loads, tuple(hits), gains, random.choice((0.0, 5e-3)), runs=runs, row=row)
    spec = ModelSpec(name, "1", (VECTOR,), (VECTOR,), stages, random.choice((1, 4, 8, 16)), tuple(hits), kinds[kind])
    return ServedModel(spec, costs, random.choice((16, 256)), footprint)


def settings(random: Random, policy: str, evict: str) -> SchedulerConfig:
    """Return random models and workers; `evict` is the policy of a memory that is too small, if any."""
    models = tuple([_model(random, f"m{i}") for i in range(random.randint(3, 8) if evict else random.randint(1, 4))])
    sizes, residency = random.choice(((), (), (4,), (1, 2, 8))), ResidencyConfig()
    if evict:
        whole = [sum(model.footprint.sizes[: model.spec.stages]) for model in models]
        budget = max(*whole, int(sum(whole) * random.choice((0.3, 0.5, 0.8))))
        patience, resting = random.choice((0.05, 30.0)), random.choice((0, 0, 20))
        residency = ResidencyConfig(budget, evict, random.random() < 0.8, patience, back_off=0.02, resting=resting)
    batching = PolicyConfig(BATCHING[policy], window=random.choice((0.0, 5e-3)), shed=random.random() < 0.8)
    workers = len(sizes) or random.choice((1, 1, 2))
    return SchedulerConfig(models, workers, batching, sizes, random.choice((0, 0, 1)), residency)


@dataclass(slots=True)
class Played:
    """What became of it: requests by outcome, launches, their rows, loads, last stages, and seconds of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    launches: int = 0
    rows: int = 0
    loads: int = 0
    stages: int = 0
    seconds: float = 0.0


class Play:
    """One play; each request has to end once, and where `checked` invariants have to hold at every event."""

    def __init__(self, seed: int, policy: str, evict: str = "", *, checked: bool = True) -> None:
        self.checked = checked
        self.random = Random(f"{seed} {policy} {evict}")
        self.config = settings(self.random, policy, evict)
        self.models = {served.spec.name: served for served in self.config.models}
        self.scheduler = Scheduler(self.config)
        self.agenda = Agenda()
        self.found = Played()
        self._left: dict[int, list[int]] = {}  # for each live request the stage that answers it, and steps of a decoder
        self._stages: dict[int, list[int]] = {}  # the stages that each live request ran
        self._wake = -1
        self._pace = self.random.choice((1.0, 1.0, 1.3, 0.6))

    def run(self, calls: int) -> Played:
        """Let clients call, and all of it come to an end."""
        time, count, rate = 0.0, 0, self.random.choice((100.0, 400.0, 1500.0))
        for _ in range(calls):
            time += self.random.expovariate(rate) if self.random.random() < 0.9 else 0.05
            ids = tuple(range(count, count + self.random.choice((1, 1, 1, 2, 5))))
            count += len(ids)
            self._call(self.random.choice([self.config.models[0], self.random.choice(self.config.models)]), ids, time)
        self.agenda.run_until()
        assert sum(self.found.outcomes.values()) == count
        assert not self._left
        stats = self.scheduler.stats()
        assert stats["queued"] == stats["running"] == 0
        return self.found

    def _call(self, model: ServedModel, ids: tuple[int, ...], time: float) -> None:
        random, due = self.random, time + self.random.choice((0.02, 0.1, 0.5, 5.0))
        inputs = tuple([random.randint(1, 5) for _ in ids]) if model.spec.kinds else ()
        event = Arrived(model.spec.name, due, ids, ids, inputs, random.choice((0,) * 9 + (1, 3)))
        self.agenda.at(time, lambda now: self._come(model, event, now))
        if random.random() < 0.05:
            gone = Cancelled(random.choice(ids))
            self.agenda.at(time + random.choice((0.001, 0.02)), lambda now: self.tell(gone, now))

    def _come(self, model: ServedModel, event: Arrived, now: float) -> None:
        for request in event.requests:
            draw, leaves = self.random.random(), model.spec.stages - 1
            for stage, share in model.costs.hit_rates.items():
                if draw < share:
                    leaves = stage
                    break
                draw -= share
            self._left[request] = [leaves, self.random.choice(model.costs.output_steps)]
        self.tell(event, now)

    def tell(self, event: Event, now: float) -> None:
        """Tell the scheduler, and do what it says."""
        actions = self.scheduler.handle(event, now)
        if self.checked:
            self.scheduler.check()
        for action in actions:
            self._perform(action, now)

    def _perform(self, action: Action, now: float) -> None:
        match action:
            case Run():
                self.found.launches += 1
                self.found.rows += len(action.requests)
                assert len(action.requests) <= self.models[action.model].spec.max_batch
                for request in action.requests:
                    self._stages.setdefault(request, []).append(action.stage)
                took = self._pace * self.models[action.model].costs.step(action.stage, len(action.requests))
                self.agenda.at(now + took * self.random.uniform(0.9, 1.1), lambda later: self._ran(action, later))
            case Reply():
                (leaves, _), ran = self._left.pop(action.request), self._stages.pop(action.request, [])
                assert ran == sorted(ran)
                if action.outcome is Outcome.ANSWERED:
                    assert action.stage == leaves
                    assert set(ran) == set(range(max(ran) + 1)) >= {leaves}
                self.found.outcomes[action.outcome.name] += 1
                self.found.stages += action.stage
                self.found.seconds += action.waited + 2.0 * action.ran
            case Load():
                self.found.loads += 1
                footprint = self.models[action.model].footprint
                took = sum(footprint.seconds[piece] for piece in action.pieces) + footprint.fixed * action.begins
                loaded: Event = Loaded(action.model, action.pieces, took * self.random.uniform(0.9, 1.2))
                if self.random.random() < 0.03:
                    loaded = LoadFailed(action.model, action.pieces)
                self.agenda.at(now + took, lambda later: self.tell(loaded, later))
            case WakeAt():
                self.agenda.cancel(self._wake)
                if action.time < 1e9:
                    self._wake = self.agenda.at(action.time, lambda later: self.tell(Woke(), later))

    def _ran(self, run: Run, now: float) -> None:
        if self.random.random() < 0.01:
            self.tell(StageFailed(run.worker), now)
            return
        model, exited = self.models[run.model], list[int]()
        for request in [one for one in run.requests if one in self._left]:
            if model.spec.kind(run.stage) is DECODER:
                self._left[request][1] -= 1
                exited += [request] * (self._left[request][1] <= 0)
            elif run.stage in model.spec.lookups and self._left[request][0] == run.stage:
                exited.append(request)
        if model.costs.aside and exited and not model.spec.kinds:
            later = Exited(run.worker, run.stage, tuple(exited))
            self.agenda.at(now + 5e-4, lambda then: self.tell(later, then))
            exited = []
        self.tell(StageDone(run.worker, tuple(exited)), now)


def main() -> None:
    """Play so many schedules of each policy; each has a seed, by which it can be played again alone."""
    parser = argparse.ArgumentParser(description="Random schedules, in which each request has to end exactly once.")
    parser.add_argument("--schedules", type=int, default=2_000, help="of each policy")
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    asked = parser.parse_args()
    for name in BATCHING:
        for seed in range(asked.seed, asked.seed + asked.schedules):
            try:
                Play(seed, name, "late" if seed % 2 else "").run(40)
            except BaseException:
                print(f"failed with {name}, --seed {seed} --schedules 1", flush=True)
                raise
        print(f"{name}: {asked.schedules} schedules, each request ended exactly once", flush=True)


if __name__ == "__main__":
    main()
