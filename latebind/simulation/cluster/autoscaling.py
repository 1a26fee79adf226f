"""How many simulated machines are up, by the rule that decides for Ray (`cluster/scaling.py`)."""

from latebind.cluster.scaling import Load, Since, next_since, replicas_needed
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.policies import Demand
from latebind.simulation.cluster.tables import NANO, Tables, tables_of


class BySlack:
    """More machines where answers were at risk for `up` seconds, one fewer where that would have done for `down`.

    Of how machines fared a simulation tells the share that came late and the lowest mean slack. How busy they were is
    worked out from what came, by what requests take in full batches.
    """

    def __init__(self, up: float, down: float) -> None:
        self._up = up
        self._down = down
        self._since = Since()
        self._machines = 0  # wanted since `_changed`
        self._changed = float("-inf")
        self._tables: Tables | None = None

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        """Return the number of machines wanted; the same again while machines start."""
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
        """Return how many machines would be busy all the time, on average over their kinds."""
        if self._tables is None:
            self._tables = tables_of(fleet)
        each = self._tables.each[self._tables.kind_of] / NANO / self._tables.workers[:, None]
        return float((each @ demand.rates).mean())
