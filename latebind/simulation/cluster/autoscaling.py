"""How many machines are up: by what requests have to spare, and by how busy machines would be for comparison."""

from math import ceil

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.policies import Demand
from latebind.simulation.cluster.tables import NANO, Tables, tables_of


class BySlack:
    """More machines where too many are late or the scarcest machine has little slack, less where there is plenty.

    Late may be a share `late` of all. Slack is kept between `low` and `high`, in shares of the deadline. It grows by a
    share `more` at once, and shrinks by a share `less` after `calm` periods with plenty.
    """

    def __init__(
        self,
        *,
        late: float = 0.01,
        low: float = 0.3,
        high: float = 0.6,
        more: float = 0.25,
        less: float = 0.05,
        calm: int = 3,
    ) -> None:
        if not low < high:
            raise ConfigError(f"slack is to be kept between {low} and {high}: give the lower one first")
        self._late, self._low, self._high = late, low, high
        self._more, self._less, self._calm = more, less, calm
        self._plenty = 0  # periods in a row

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        """Return the number of machines wanted."""
        if demand.late > self._late or demand.slack < self._low:
            self._plenty = 0
            return up + ceil(self._more * up)
        self._plenty = self._plenty + 1 if demand.slack > self._high and demand.late <= 0.5 * self._late else 0
        if self._plenty < self._calm:
            return up
        self._plenty = 0
        return up - ceil(self._less * up)


class ByUtilisation:
    """As many machines as keep workers busy for a share `target` of the time, by what requests take in full batches."""

    def __init__(self, target: float = 0.5) -> None:
        if not 0.0 < target <= 1.0:
            raise ConfigError(f"workers are to be busy for a share {target}: give one above 0 and at most 1")
        self._target = target
        self._tables: Tables | None = None

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        """Return the number of machines wanted."""
        if self._tables is None:
            self._tables = tables_of(fleet)
        each = self._tables.each[self._tables.kind_of] / NANO / self._tables.workers[:, None]
        return ceil(float((each @ demand.rates).mean()) / self._target)
