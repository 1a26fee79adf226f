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
        self._lacks = [set(range(stages)) for stages in self._stages]
        self._sight.came(self.number, [model for model, lacks in enumerate(self._lacks) if not lacks])

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
            self._came(event.model, event.pieces)
        for action in actions:
            if isinstance(action, Evict):
                self._went(action)

    def _came(self, name: str, pieces: Sequence[int]) -> None:
        """Tell the router of a model that has become complete."""
        model = self._models[name]
        self._lacks[model].difference_update(pieces)
        if not self._lacks[model]:
            self._sight.came(self.number, (model,))

    def _went(self, action: Evict) -> None:
        """Tell the router of a model that is complete no more."""
        model = self._models[action.model]
        was_complete = not self._lacks[model]
        pieces = action.pieces if action.part is None else (*action.pieces, action.part[0])
        self._lacks[model].update([piece for piece in pieces if piece < self._stages[model]])
        if was_complete and self._lacks[model]:
            self._sight.went(self.number, (model,))
