"""One machine of a cluster through its lives: what lies in it is told to the router, and it can die and begin anew."""

from collections.abc import Callable, Sequence

from latebind.domain.actions import Action, Evict, Reply
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Event, Loaded
from latebind.simulation.agenda import Agenda
from latebind.simulation.cluster.routing import Sight
from latebind.simulation.machine import Machine, Spent
from latebind.simulation.workloads import Arrival

Ended = Callable[["Unit", Reply, Arrival, float], None]


class Unit:
    """Machine `number` of a cluster. `slacks` are those of its replies since somebody cleared them, over the allowed.

    `spent` is what it has done in all its lives.
    """

    def __init__(
        self,
        number: int,
        config: SchedulerConfig,
        agenda: Agenda,
        sight: Sight,
        names: Sequence[str],
        ended: Ended,
    ) -> None:
        self.number = number
        self.slacks: list[float] = []
        self._config = config
        self._agenda = agenda
        self._sight = sight
        self._models = {name: model for model, name in enumerate(names)}
        self._ended = ended
        self._before = Spent()  # in the lives that are over
        self._stages = [served.footprint.stages for served in config.models]
        self.begins()

    @property
    def spent(self) -> Spent:
        """The seconds of its runs, its loads and the seconds of these."""
        now, before = self._machine.spent, self._before
        return Spent(before.busy + now.busy, before.loads + now.loads, before.loaded + now.loaded)

    def take(self, number: int, model: int, arrival: Arrival, due: float, now: float) -> None:
        """Have a request come."""
        self._sight.sent(self.number, model)
        self._machine.take((number,), arrival, due, now=now)

    def begins(self) -> None:
        """Begin a life, with nothing in memory."""
        self._machine = Machine(self._config, self._agenda, self._replied, watch=self._watched)
        self._lacks = list(self._stages)
        self._sight.came(self.number, [model for model, stages in enumerate(self._lacks) if not stages])

    def ends(self) -> list[int]:
        """End it; returns the numbers of those who have no answer, ascending."""
        self._before = self.spent
        self._machine.spent = Spent()
        self.slacks.clear()
        self._sight.emptied(self.number)
        return self._machine.stop()

    def _replied(self, reply: Reply, arrival: Arrival, now: float) -> None:
        self._sight.replied(self.number, self._models[reply.model])
        self._ended(self, reply, arrival, now)

    def _watched(self, event: Event, actions: Sequence[Action], now: float) -> None:
        del now
        if isinstance(event, Loaded):
            self._changed(event.model, event.pieces, -1)
        for action in actions:
            if isinstance(action, Evict):
                self._changed(action.model, action.pieces, 1)

    def _changed(self, name: str, pieces: Sequence[int], lacks: int) -> None:
        """Tell the router of a model that has become complete, or is so no more."""
        model = self._models[name]
        before = self._lacks[model]
        self._lacks[model] += lacks * sum([piece < self._stages[model] for piece in pieces])
        if before and not self._lacks[model]:
            self._sight.came(self.number, (model,))
        elif self._lacks[model] and not before:
            self._sight.went(self.number, (model,))
