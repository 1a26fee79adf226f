"""Simulates a cluster: every machine runs the real scheduler, some thousand requests a second of a core.

The rules that this simulation follows are written down in `routing.py`.
"""

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from math import floor, inf

import numpy as np

from latebind.domain.actions import Outcome, Reply
from latebind.simulation.agenda import Agenda
from latebind.simulation.cluster.draws import drawn
from latebind.simulation.cluster.fleet import UNKNOWN, Fleet, Played, Requests
from latebind.simulation.cluster.policies import Autoscaler, Demand, Placer
from latebind.simulation.cluster.routing import NOBODY, TRIAL, Router, Sight
from latebind.simulation.cluster.tables import scheduler_config, tables_of
from latebind.simulation.cluster.unit import Unit
from latebind.simulation.workloads import Arrival


class Outside(IntEnum):
    """An event from outside the machines. Of simultaneous events, the one with the lower value is handled first."""

    DEATH = 0
    RETURN = 1
    UP = 2
    TICK = 3
    REQUEST = 4


def play(
    fleet: Fleet,
    requests: Requests,
    *,
    router: str = "home",
    placer: Placer | None = None,
    autoscaler: Autoscaler | None = None,
    period: float = 60.0,
    seed: int = 0,
    warm: float = 0.0,
    most_late: float = inf,
) -> Played:
    """Simulate all requests and return what became of each. Placer and autoscaler are asked every `period` seconds.

    As soon as more than `most_late` of the requests that come from `warm` (seconds) on were not answered in time, the
    simulation stops; requests that have not ended by then have the outcome `UNKNOWN`. So a cluster that is far too
    small is found out after a small part of its run.

    Raises `ConfigError` if there is no router of this name, or if a model does not fit in the memory of a kind of
    machine.
    """
    cluster = _Cluster(fleet, requests, router, placer, autoscaler, period, seed)
    return cluster.run(warm, most_late)


class _Cluster:
    """The state of the simulation: the machines, which of them are up, and the outcomes so far."""

    def __init__(
        self,
        fleet: Fleet,
        requests: Requests,
        router: str,
        placer: Placer | None,
        autoscaler: Autoscaler | None,
        period: float,
        seed: int,
    ) -> None:
        self._fleet, self._requests, self._placer, self._autoscaler = fleet, requests, placer, autoscaler
        self._period, self._seed = period, seed
        tables = tables_of(fleet)
        configs = [scheduler_config(fleet, kind) for kind in tables.kinds]
        self._agenda = Agenda()
        self._sight = Sight(tables)
        self._router = Router(router, self._sight)
        self._names = [model.served.spec.name for model in fleet.models]
        self._units = [
            Unit(number, configs[kind], self._agenda, self._sight, self._names, self._ended)
            for number, kind in enumerate(tables.kind_of.tolist())
        ]
        self._draining: set[int] = set()
        self._dead: dict[int, float] = {}  # until when
        self._off: set[int] = set()
        self._starting: dict[int, float] = {}  # when it is up

        count = len(requests)
        self._times: list[float] = requests.times.tolist()
        self._models: list[int] = requests.models.tolist()
        self._leaves: list[int] = requests.leaves.tolist()
        self._words: list[int] = drawn(seed, np.arange(count)).tolist()
        self._attempts: Counter[int] = Counter()
        self._trials: dict[int, tuple[int, int]] = {}  # unanswered: machine and model
        self._trial = count  # the number of the next
        self._end_times = [float("nan")] * count
        self._outcomes = [UNKNOWN] * count
        self._machines = [NOBODY] * count
        self._marks: list[float] = []
        self._started: list[int] = []
        self._came = [0] * len(fleet.models)  # since the last tick, as are the following
        self._over = self._late = 0
        self._warm, self._lost = 0.0, 0  # of those that came from `warm` on: how many were not answered in time

    def run(self, warm: float, most_late: float) -> Played:
        """Simulate everything from the first event to the last, or until too many are late."""
        self._warm = warm
        self._place(0.0, Demand(np.zeros(len(self._names)), late=0.0, slack=1.0))
        self._mark(0.0)
        handlers = {
            Outside.DEATH: self._dies,
            Outside.RETURN: self._returns,
            Outside.TICK: self._tick,
            Outside.REQUEST: self._comes,
        }
        for time, what, number in self._outside():
            self._start_up((time, what))
            self._agenda.run_until(time)
            handlers[what](number, time)
            if self._lost > most_late:
                break
        else:
            self._agenda.run_until()
        return Played(
            self._requests,
            np.array(self._end_times, dtype=np.float64),
            np.array(self._outcomes, dtype=np.int8),
            np.array(self._machines, dtype=np.int32),
            np.array(self._marks, dtype=np.float64),
            np.array(self._started, dtype=np.int32),
            sum([unit.spent.loads for unit in self._units]),
            sum([unit.spent.loaded for unit in self._units]),
            np.array([unit.spent.busy for unit in self._units], dtype=np.float64),
        )

    def _outside(self) -> Iterator[tuple[float, Outside, int]]:
        """Yield the events from outside in order, each with the number of its fault, tick or request."""
        last = self._times[-1] if self._times else 0.0
        ticks = range(1, floor(last / self._period) + 2)
        faults = self._fleet.faults
        every = [(time, Outside.REQUEST, number) for number, time in enumerate(self._times)]
        every += [(k * self._period, Outside.TICK, k) for k in ticks if k * self._period <= last]
        every += [(fault.time, Outside.DEATH, number) for number, fault in enumerate(faults)]
        every += [(fault.time + fault.away, Outside.RETURN, number) for number, fault in enumerate(faults)]
        yield from sorted(every)

    def _start_up(self, before: tuple[float, Outside]) -> None:
        """Put those machines into service whose start is over before the next event from outside."""
        for due, machine in sorted((due, machine) for machine, due in self._starting.items()):
            if (due, Outside.UP) < before:
                self._agenda.run_until(due)
                del self._starting[machine]
                self._units[machine].begins()
                self._sight.rises(machine)

    # Requests -------------------------------------------------------------------------------------------------------

    def _comes(self, number: int, now: float) -> None:
        self._came[self._models[number]] += 1
        self._route(number, self._words[number], now)

    def _route(self, number: int, word: int, now: float) -> None:
        model = self._models[number]
        choice = self._router.choose(model, word)
        if choice.machine == NOBODY:
            self._close(number, Outcome.FAILED, NOBODY, now)
            return
        came, allowed = self._times[number], self._fleet.models[model].allowed
        arrival = Arrival(came, self._names[model], allowed, self._leaves[number])
        self._units[choice.machine].take(number, model, arrival, came + allowed - self._fleet.hop, now)
        if choice.ought != NOBODY and self._sight.lacks(choice.ought, model):
            self._try(choice.ought, model, now)

    def _try(self, machine: int, model: int, now: float) -> None:
        """Send a trial: a request that belongs to no client, and that makes a machine load a model."""
        number, self._trial = self._trial, self._trial + 1
        self._trials[number] = machine, model
        self._sight.tried.add((machine, model))
        arrival = Arrival(now, self._names[model], TRIAL, self._fleet.models[model].served.spec.stages - 1)
        self._units[machine].take(number, model, arrival, now + TRIAL, now)

    def _ended(self, unit: Unit, reply: Reply, arrival: Arrival, now: float) -> None:
        if reply.request in self._trials:
            self._sight.tried.discard(self._trials.pop(reply.request))
            return
        if reply.slack is not None:
            unit.slacks.append(reply.slack / arrival.allowed)
        self._close(reply.request, reply.outcome, unit.number, now + self._fleet.hop)

    def _close(self, number: int, outcome: Outcome, machine: int, ended: float) -> None:
        self._end_times[number], self._outcomes[number], self._machines[number] = ended, outcome, machine
        due = self._times[number] + self._fleet.models[self._models[number]].allowed
        late = outcome is not Outcome.ANSWERED or ended > due
        self._over += 1
        self._late += late
        self._lost += late and self._times[number] >= self._warm

    # Faults ---------------------------------------------------------------------------------------------------------

    def _dies(self, fault: int, now: float) -> None:
        machine, back = self._fleet.faults[fault].machine, now + self._fleet.faults[fault].away
        if machine in self._dead:
            self._dead[machine] = max(self._dead[machine], back)
            return
        self._dead[machine] = back
        if self._sight.is_up[machine]:
            self._sight.falls(machine)
        else:
            self._draining.discard(machine)
            self._starting.pop(machine, None)
            self._off.add(machine)
        for number in self._units[machine].ends():
            if number in self._trials:
                self._sight.tried.discard(self._trials.pop(number))
                continue
            self._attempts[number] += 1
            word = drawn(self._seed, np.array([number]), salt=self._attempts[number])
            self._route(number, int(word[0]), now)

    def _returns(self, fault: int, now: float) -> None:
        machine = self._fleet.faults[fault].machine
        if now < self._dead.get(machine, now + 1.0):
            return
        del self._dead[machine]
        if machine not in self._off:
            self._units[machine].begins()
            self._sight.rises(machine)

    # Every so often -------------------------------------------------------------------------------------------------

    def _tick(self, _number: int, now: float) -> None:
        for machine in sorted(self._draining):
            if not self._sight.unanswered[machine]:
                self._draining.remove(machine)
                self._off.add(machine)
                self._units[machine].ends()
        demand = self._demand()
        if self._autoscaler is not None and len(self._dead) < len(self._units):
            self._scale(self._autoscaler.wanted(self._fleet, len(self._sight.up), demand, now), now)
        self._place(now, demand)
        self._mark(now)

    def _demand(self) -> Demand:
        rates = np.array(self._came, dtype=np.float64) / self._period
        late = self._late / self._over if self._over else 0.0
        means = [sum(unit.slacks) / len(unit.slacks) for unit in self._units if unit.slacks]
        self._came = [0] * len(self._names)
        self._over = self._late = 0
        for unit in self._units:
            unit.slacks.clear()
        return Demand(rates, late, min(means, default=1.0))

    def _scale(self, wanted: int, now: float) -> None:
        wanted = min(max(1, wanted), len(self._units) - len(self._dead))
        missing = wanted - len(self._sight.up) - len(self._starting)
        resting = sorted(machine for machine in self._draining | self._off if machine not in self._dead)
        for machine in resting[: max(0, missing)]:
            self._bring(machine, now)
        for machine in sorted(self._starting, reverse=True)[: max(0, -missing)]:
            del self._starting[machine]
            self._off.add(machine)
        for machine in self._sight.up[max(0, wanted - len(self._starting)) :]:
            self._sight.falls(machine)
            self._draining.add(machine)

    def _bring(self, machine: int, now: float) -> None:
        """Put a machine back into service: at once if it is draining, after its start-up time if it is off."""
        startup = self._fleet.machines[machine].startup
        if machine in self._off:
            self._off.remove(machine)
            if startup:
                self._starting[machine] = now + startup
                return
            self._units[machine].begins()
        self._draining.discard(machine)
        self._sight.rises(machine)

    def _place(self, now: float, demand: Demand) -> None:
        if self._placer is None:
            return
        placement = self._placer.place(self._fleet, tuple(self._sight.up), demand, now)
        if placement is not None:
            self._sight.homes = placement.homes

    def _mark(self, now: float) -> None:
        self._marks.append(now)
        still = sum([self._sight.unanswered[machine] > 0 for machine in self._draining])
        self._started.append(len(self._sight.up) + len(self._starting) + still)
