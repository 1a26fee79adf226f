"""One machine of a simulated cluster. It can die and start again, and tells the router which models it holds."""

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
    """Machine `number` of a cluster.

    `slacks` collects the slack of its replies, as a share of the time allowed, until the caller clears the list.
    `spent` adds up its work since the beginning of the run, over all of its restarts.
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
        """The total seconds that its batches ran, the number of its loads, and the seconds that the loads took."""
        now, before = self._machine.spent, self._before
        return Spent(before.busy + now.busy, before.loads + now.loads, before.loaded + now.loaded)

    def take(self, number: int, model: int, arrival: Arrival, due: float, now: float) -> None:
        """Hand a request to the machine."""
        self._sight.sent(self.number, model)
        self._machine.take((number,), arrival, due, now=now)

    def begins(self) -> None:
        """Start the machine with an empty memory and a new scheduler."""
        self._machine = Machine(self._config, self._agenda, self._replied, watch=self._watched)
        self._lacks = [set(range(stages)) for stages in self._stages]
        self._sight.came(self.number, [model for model, lacks in enumerate(self._lacks) if not lacks])

    def ends(self) -> list[int]:
        """Stop the machine, and return the numbers of the requests that it has not answered, in ascending order."""
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
        """Tell the router that a model is now complete, if it is."""
        model = self._models[name]
        self._lacks[model].difference_update(pieces)
        if not self._lacks[model]:
            self._sight.came(self.number, (model,))

    def _went(self, action: Evict) -> None:
        """Tell the router that a model is no longer complete, if it was."""
        model = self._models[action.model]
        was_complete = not self._lacks[model]
        pieces = action.pieces if action.part is None else (*action.pieces, action.part[0])
        self._lacks[model].update([piece for piece in pieces if piece < self._stages[model]])
        if was_complete and self._lacks[model]:
            self._sight.went(self.number, (model,))
