"""Simulates a cluster: every machine runs the real scheduler, behind the ingress's own router and placement.

At the same moment machines die first, then the ingress hears reports, then requests come, each in the order of their
numbers; before anything of these, all machines do what is due. What the router learns, and when, is what an ingress
learns: its own calls under way at once, what is in the memories of machines once a second.
"""

from collections.abc import Sequence
from math import floor, inf

import numpy as np

from latebind.cluster.placement import Report
from latebind.cluster.routing import Replica, Router
from latebind.domain.actions import Action, Evict, Outcome, Reply
from latebind.domain.config import ClusterConfig, SchedulerConfig
from latebind.domain.events import Event, Loaded
from latebind.simulation.cluster.fleet import UNKNOWN, Fleet, Played, Requests
from latebind.simulation.hardware import Agenda
from latebind.simulation.machine import Ended, Machine
from latebind.simulation.workloads import Arrival

REPORTS = 1.0  # seconds between two reports of a machine
NOBODY = -1
DEATH, REPORT, REQUEST = range(3)  # what comes from outside, in the order in which it is handled


def play(
    fleet: Fleet,
    requests: Requests,
    *,
    router: Router | None = None,
    warm: float = 0.0,
    most_late: float = inf,
) -> Played:
    """Simulate all requests and return what became of each.

    As soon as more than `most_late` of the requests that come from `warm` (seconds) on were not answered in time, the
    simulation stops; requests that have not ended by then have the outcome `UNKNOWN`. So a cluster that is far too
    small is found out after a small part of its run.

    Raises `ConfigError` if a model does not fit in the memory of a machine.
    """
    return _Cluster(fleet, requests, router or Router(most=ClusterConfig().calls), warm, most_late).run()


class _Unit:
    """One machine of the cluster: its scheduler on the virtual clock, and what it reports to the ingress."""

    def __init__(self, number: int, config: SchedulerConfig, agenda: Agenda, ended: Ended) -> None:
        self.number = number
        self.seen = Replica(str(number))
        self.machine = Machine(config, agenda, ended, watch=self._watched)
        self._sizes = {served.spec.name: served.footprint.sizes for served in config.models}
        self._pieces: dict[str, set[int]] = {}

    def resident(self) -> frozenset[str]:
        """Return the models of which at least half is in memory, as a replica reports them."""
        there = [(name, self._sizes[name], pieces) for name, pieces in self._pieces.items()]
        return frozenset([name for name, sizes, some in there if 2 * sum(map(sizes.__getitem__, some)) >= sum(sizes)])

    def _watched(self, event: Event, actions: Sequence[Action], now: float) -> None:
        del now
        if isinstance(event, Loaded):
            self._pieces.setdefault(event.model, set()).update(event.pieces)
        for action in actions:
            if isinstance(action, Evict):
                self._pieces.get(action.model, set()).difference_update(action.pieces)


class _Cluster:
    """The state of the simulation: the machines that are up and the outcomes so far."""

    def __init__(self, fleet: Fleet, requests: Requests, router: Router, warm: float, most_late: float) -> None:
        self._fleet, self._requests, self._router = fleet, requests, router
        self._warm, self._most_late = warm, most_late
        self._agenda = Agenda()
        self._costs = fleet.costs()
        config = fleet.scheduler_config()
        self._units = [_Unit(number, config, self._agenda, self._ended) for number in range(fleet.machines)]
        self._up = list(self._units)
        self._names = [model.served.spec.name for model in fleet.models]
        self._allowed = [model.allowed for model in fleet.models]

        count = len(requests)
        self._times: list[float] = requests.times.tolist()
        self._models: list[int] = requests.models.tolist()
        self._leaves: list[int] = requests.leaves.tolist()
        self._rows: list[int] = requests.rows.tolist()
        self._end_times = [float("nan")] * count
        self._outcomes = [UNKNOWN] * count
        self._machines = [NOBODY] * count
        self._late = 0  # of the requests that count

    def run(self) -> Played:
        """Simulate everything from the first event to the last, or until too many are late."""
        last = self._times[-1] if self._times else 0.0
        outside = [(time, REQUEST, number) for number, time in enumerate(self._times)]
        outside += [(k * REPORTS, REPORT, k) for k in range(floor(last / REPORTS) + 1)]
        outside += [(time, DEATH, machine) for time, machine in self._fleet.losses]
        handlers = {DEATH: self._dies, REPORT: self._report, REQUEST: self._come}
        for time, what, number in sorted(outside):
            self._agenda.run_until(time)
            handlers[what](number, time)
            if self._late > self._most_late:
                break
        else:
            self._agenda.run_until()
        spent = [unit.machine.spent for unit in self._units]
        return Played(
            self._requests,
            np.array(self._end_times, dtype=np.float64),
            np.array(self._outcomes, dtype=np.int8),
            np.array(self._machines, dtype=np.int32),
            sum([one.loads for one in spent]),
            np.array([one.busy for one in spent], dtype=np.float64),
        )

    def _report(self, _number: int, now: float) -> None:
        for unit in self._up:
            unit.seen.report = Report(self._fleet.kind.memory, self._costs, unit.resident())
        self._router.see([unit.seen for unit in self._up], now)

    def _come(self, number: int, now: float) -> None:
        model = self._models[number]
        name, allowed, came = self._names[model], self._allowed[model], self._times[number]
        seen = self._router.choose(name, now)
        if seen is None:
            self._close(number, Outcome.REFUSED_FULL if self._up else Outcome.FAILED, NOBODY, now)
            return
        seen.under_way += 1
        rows = self._fleet.models[model].rows
        length, sizes = rows[self._rows[number]] if rows else (1, 0)
        arrival = Arrival(came, name, allowed, self._leaves[number], length, sizes=sizes)
        self._machines[number] = int(seen.name)
        unit = self._units[self._machines[number]]
        unit.machine.take((number,), arrival, came + allowed - self._fleet.hop, now=now)

    def _ended(self, reply: Reply, arrival: Arrival, now: float) -> None:
        del arrival
        machine = self._machines[reply.request]
        self._units[machine].seen.under_way -= 1
        self._close(reply.request, reply.outcome, machine, now + self._fleet.hop)

    def _close(self, number: int, outcome: Outcome, machine: int, ended: float) -> None:
        self._end_times[number], self._outcomes[number], self._machines[number] = ended, outcome, machine
        late = outcome is not Outcome.ANSWERED or ended > self._times[number] + self._allowed[self._models[number]]
        self._late += late and self._times[number] >= self._warm

    def _dies(self, machine: int, now: float) -> None:
        """Take a machine away; the ingress notices by its connections and sends what it had to others."""
        unit = self._units[machine]
        self._up.remove(unit)
        self._router.see([unit.seen for unit in self._up], now)
        for number in unit.machine.stop():
            self._come(number, now)
