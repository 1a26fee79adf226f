"""Whoever has a slot, nobody else writes to it: a real scheduler and two workers, in any order of events.

A stage or a lookup that runs lets other things happen meanwhile: calls arrive, clients leave, the other worker runs on,
and lookups aside come late.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Outcome, Reply, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.events import Arrived, Cancelled, Event, StageFailed, Woke
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.loaded import LoadedModel
from latebind.engine.worker import Worker
from latebind.learned.lookup import Lookup
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.scheduler import Scheduler
from tests.engine.rows import memory_of

SLOTS, STAGES, WORKERS = 4, 3, 2
EMPTY = 0.5  # what lies in the outputs of a slot that nobody has written to
POISON = 100_000  # a request of this number or more raises at the second stage
RUNS, MOVES = 100, 60
MOST_DEPTH = 3  # of things that happen while others happen
SPEC = ModelSpec(
    "net",
    "1",
    (TensorSpec("x", "float32", (1,)),),
    (TensorSpec("y", "float32", (1,)),),
    STAGES,
    SLOTS,
    lookups=(0, 1),
)


LOOKED = dict.fromkeys(SPEC.lookups, Curve((1,), (0.001,)))
RATES = dict.fromkeys(SPEC.lookups, 0.5)


class Cache:
    """A learned cache that answers every second request, with its number below zero."""

    there = True

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    def __call__(
        self, activation: NDArray[np.float32], *about: object
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Answer rows `(B, 1)`."""
        numbers = activation.copy()
        self._meanwhile()
        return -numbers, numbers[:, 0] % 2 == 0


class House:
    """Scheduler and workers of one engine; the test is its frontend, its driver and its clock."""

    def __init__(self, draw: Callable[[int], int], policy: str, *, aside: bool) -> None:
        self._draw = draw
        self._depth = 0
        self._looking: set[int] = set()  # workers whose thread for lookups is in the middle of one
        self.now, self._last = 0.0, 0
        self.memory = memory_of(SPEC, rows=SLOTS)
        self.inputs, self.outputs = self.memory.models[0].inputs[0], self.memory.models[0].outputs[0]
        self.outputs[:] = EMPTY
        costs = ModelCosts(at_any_length(Curve((1, SLOTS), (0.01, 0.02))) * STAGES, LOOKED, RATES, aside=aside)
        self.workers = [Worker({SPEC.name: self._model(costs)}, self.memory) for _ in range(WORKERS)]
        self.scheduler = Scheduler(SchedulerConfig((ServedModel(SPEC, costs, 100),), WORKERS, PolicyConfig(policy)))
        self.free = list(range(SLOTS))
        self.running: dict[int, Run] = {}  # by worker; not begun yet
        self.unheard: dict[int, Event] = {}  # by worker; what came of a stage, before the driver hears of it
        self.live: dict[int, int] = {}  # the slot of each request that has not ended
        self.answers: dict[int, float] = {}  # what lay first in the slot of each that has not ended
        self.kept: dict[int, tuple[int, float]] = {}  # of each that has ended, its slot and what lay there then
        self.outcomes: dict[int, Outcome] = {}

    def _model(self, costs: ModelCosts) -> LoadedModel:
        """Return the model of one worker, whose stages write to the same memory each time."""

        def stage(number: int) -> Callable[..., tuple[Tensor, ...]]:
            buffer = torch.zeros(SLOTS, 1)

            def run(rows: Tensor) -> tuple[Tensor, ...]:
                self.meanwhile()
                if number == 1 and bool((rows >= POISON).any()):
                    raise ValueError("a row is poisoned")
                buffer[: len(rows)] = rows
                return (buffer[: len(rows)],)

            return run

        stages = tuple(map(stage, range(STAGES)))
        program = Program(SPEC, costs, "eager", 1, stages, (), costs_fit=True)
        lookups = {number: cast(Lookup, Cache(self.meanwhile)) for number in SPEC.lookups}
        return LoadedModel(SPEC, costs, program, lookups, cast(ModelDirectory, None))

    def meanwhile(self) -> None:
        """Let other things happen, while a stage or a lookup runs."""
        if self._depth < MOST_DEPTH:
            self._depth += 1
            for _ in range(self._draw(3)):
                self.move()
            self._depth -= 1

    def move(self) -> None:
        """Let one thing happen, if it can."""
        self.now += 0.001
        kind = self._draw(9)
        if kind <= 2:
            self.arrive(poisoned=kind == 0)
        elif kind == 3 and self.live and self._draw(3) == 0:
            self.tell(Cancelled(sorted(self.live)[self._draw(len(self.live) - 1)]))
        elif kind == 4:
            self.now += 0.03 * self._draw(2)  # deadlines may pass
            self.tell(Woke())
        elif kind == 5 and self.kept:
            self.release(sorted(self.kept)[self._draw(len(self.kept) - 1)])
        elif kind == 6:
            self.look_up(self._draw(WORKERS - 1))
        elif self.unheard and self._draw(1):
            self.hear(min(self.unheard))
        elif self.running:
            self.run(sorted(self.running)[self._draw(len(self.running) - 1)])
        self.check()

    def arrive(self, *, poisoned: bool) -> None:
        """Have a call come, if a slot is free."""
        self._last += 1
        number = self._last + POISON * poisoned
        if self.free:
            slot = self.free.pop(0)
            self.inputs[slot] = number
            self.live[number] = slot
            self.tell(Arrived(SPEC.name, self.now + 0.15, (number,), (slot,)))

    def run(self, number: int) -> None:
        """Run a stage on a worker, as a thread of the driver does."""
        run, event = self.running.pop(number), cast(Event, StageFailed(number))
        with suppress(ValueError):
            event = self.workers[number].run(run)
        self.unheard[number] = event
        if self._draw(1) == 0:
            self.hear(number)

    def hear(self, number: int) -> None:
        """Have the driver hear what came of the stage that a worker ran."""
        self.tell(self.unheard.pop(number))

    def look_up(self, number: int) -> None:
        """Perform a lookup aside, as the thread of a worker does, one at a time."""
        aside = self.workers[number]._aside
        if aside is not None and number not in self._looking:
            self._looking.add(number)
            exited = aside.perform()
            self._looking.remove(number)
            if exited is not None:
                self.meanwhile()
                self.tell(exited)

    def release(self, number: int) -> None:
        """Have the frontend give a slot back, once it has copied the answer."""
        slot, _ = self.kept.pop(number)
        self.outputs[slot] = EMPTY
        self.free.append(slot)

    def tell(self, event: Event) -> None:
        """Have the scheduler hear of an event, and perform what it says, as the driver does."""
        for action in self.scheduler.handle(event, self.now):
            if isinstance(action, Run):
                assert action.worker not in self.running
                self.running[action.worker] = action
            elif isinstance(action, Reply):
                self.memory.owners.end(action.request)
                slot = self.live.pop(action.request)
                self.kept[action.request] = slot, float(self.outputs[slot, 0])
                self.answers.pop(action.request, None)
                self.outcomes[action.request] = action.outcome
        self.scheduler.check()

    def check(self) -> None:
        """Look at every slot: what lies in it is its owner's, and stays what it was when that ended."""
        owned = {**self.live, **{number: slot for number, (slot, _) in self.kept.items()}}
        of = {slot: number for number, slot in owned.items()}
        for slot in range(SLOTS):
            found, number = float(self.outputs[slot, 0]), of.get(slot)
            own = (EMPTY,) if number is None else (EMPTY, float(number), -float(number))
            assert found in own, f"{found} lies in slot {slot} of request {number}"
        for number, slot in self.live.items():
            if (found := float(self.outputs[slot, 0])) != EMPTY:
                assert self.answers.setdefault(number, found) == found, f"request {number} was answered twice"
        for number, (slot, answer) in self.kept.items():
            assert float(self.outputs[slot, 0]) == answer, (
                f"slot {slot} of request {number} was written to after its end"
            )
            outcome = self.outcomes[number]
            assert outcome is not Outcome.ANSWERED or answer != EMPTY, f"request {number} has no answer"
            assert outcome is not Outcome.FAILED or number >= POISON, f"request {number} failed for another"

    def settle(self) -> None:
        """Let all that is under way come to its end."""
        while self.running or self.unheard:
            if self.unheard:
                self.hear(min(self.unheard))
            else:
                self.run(min(self.running))
        for number in range(WORKERS):
            self.look_up(number)
        self.check()
        assert not self.live


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("policy", ["late", "lazy+"])
def test_in_any_order_of_events_each_slot_has_what_its_own_request_was_answered_and_nothing_is_kept_of_the_others(
    policy: str, aside: bool
) -> None:
    for seed in range(RUNS):
        print(f"seed {seed}")
        house = House(partial(Random(seed).randint, 0), policy, aside=aside)
        with torch.inference_mode():
            for _ in range(MOVES):
                house.move()
            house._draw = lambda most: 0  # nothing else happens any more
            house._depth = MOST_DEPTH
            house.settle()
        assert len(house.memory.owners) == 0, "a request that has ended is known"
        for worker in house.workers:
            last = worker._activations._last
            assert last is None or last() is None, "activations of requests that have ended are kept"
            assert worker._aside is None or not worker._aside._waiting, "a lookup waits that nobody waits for"
