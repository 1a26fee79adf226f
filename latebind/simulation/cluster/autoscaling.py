"""Scales the simulated cluster up and down by the same rule that Ray uses (`cluster/scaling.py`)."""

from latebind.cluster.scaling import Load, Since, next_since, replicas_needed
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.policies import Demand
from latebind.simulation.cluster.tables import NANO, Tables, tables_of


class BySlack:
    """Adds machines after answers were at risk of being late for `up` seconds, and removes one after `down` safe ones.

    The simulation reports the share of late answers and the lowest mean slack of any machine. The rule also needs to
    know how busy machines are. That is estimated from the request rates and from what a request takes in a full batch.
    """

    def __init__(self, up: float, down: float) -> None:
        self._up = up
        self._down = down
        self._since = Since()
        self._machines = 0  # wanted since `_changed`
        self._changed = float("-inf")
        self._tables: Tables | None = None

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        """Return how many machines should be up. While machines start, the answer does not change."""
        if self._machines > up and now <= self._changed + max(machine.startup for machine in fleet.machines):
            return self._machines
        load = Load(float(demand.rates.sum()) / up, demand.slack, demand.late, self._busy(fleet, demand) / up)
        loads = [load] * up
        self._since = next_since(loads, up, self._since, now)
        found = replicas_needed(loads, up, self._since, now, up=self._up, down=self._down)
        if found != up:
            self._machines, self._changed, self._since = found, now, Since()
        return found

    def _busy(self, fleet: Fleet, demand: Demand) -> float:
        """Return how many machines the requests would keep fully busy, averaged over the kinds of machines."""
        if self._tables is None:
            self._tables = tables_of(fleet)
        each = self._tables.each[self._tables.kind_of] / NANO / self._tables.workers[:, None]
        return float((each @ demand.rates).mean())
