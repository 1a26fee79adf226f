"""What the scheduler tells and asks of the memory that models share. Pure.

What is known stands in `standing`; `doors` decides whose requests may begin, `loads` what comes and `room` what goes.
"""

from collections.abc import Iterable, Mapping, Sequence

from latebind.batching.lane import Lane
from latebind.batching.table import SubBatch
from latebind.batching.view import Models
from latebind.batching.worker import Crew
from latebind.domain.actions import Action
from latebind.domain.config import ResidencyConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.events import Loaded, LoadFailed
from latebind.residency import make_policy
from latebind.residency.back_off import BackOff
from latebind.residency.base import Oracle
from latebind.residency.caches import Caches
from latebind.residency.doors import Doors
from latebind.residency.held import Held
from latebind.residency.importance import ByImportance
from latebind.residency.loads import Loads
from latebind.residency.memory import Memory, require_room
from latebind.residency.room import Room
from latebind.residency.standing import Standing
from latebind.residency.turns import Turns
from latebind.residency.wishes import Wishes


class Residency:
    """The models' memory, and who waits for it. Raises `ConfigError` where a model can never be in it."""

    def __init__(
        self,
        config: ResidencyConfig,
        models: Iterable[ServedModel],
        lanes: Mapping[str, Lane],
        queues: Models,
        crew: Crew,
    ) -> None:
        policy = make_policy(config)
        if isinstance(policy, Oracle):
            raise ConfigError(
                f"residency.policy {config.policy!r} is told the future, which no server knows: take another"
            )
        whole = policy.whole or not config.stages
        self.memory = Memory(config.budget, {served.spec.name: served.footprint for served in models})
        for model in self.memory.models.values():
            require_room(model, config.budget, whole=whole)
        self._policy = policy
        self._streams = config.beside and not whole  # a model may begin before all of it is there
        self._standing = Standing(self.memory, lanes, queues, crew)
        self._doors = Doors(config, self._standing, whole=whole)
        self._caches = Caches()
        self._wishes = Wishes(policy)
        turns = Turns(config, lanes)
        self._room = Room(self._standing, policy, turns, self._caches)
        self._loads = Loads(config, self._standing, self._room, turns, self._wishes, self._caches, whole=whole)
        self._back_off = BackOff(config.back_off)

    # What the scheduler tells ---------------------------------------------------------------------------------------

    def arrived(self, name: str, requests: Sequence[int], now: float) -> None:
        """Hear that requests have been accepted."""
        self._standing.arrived(name, requests)
        model = self.memory.models[name]
        for _ in requests:
            self._policy.requested(model, now)

    def touch(self, name: str) -> None:
        """Hear that somebody of this model began, went on or ended."""
        self._standing.touched.add(name)

    def loaded(self, event: Loaded, now: float) -> None:
        """Hear that pieces have come."""
        expected = self.memory.models[event.model].seconds_of(event.pieces)
        model = self.memory.loaded(event.model, event.pieces, event.sizes)
        model.learn(event.pieces, event.seconds, expected)
        self._back_off.loaded(model.name)
        self._policy.loaded(model, now)
        self._caches.settle(model)
        self._standing.loaded(model)
        if model.complete:
            self._wishes.loaded(model, now)

    def failed(self, event: LoadFailed, now: float) -> None:
        """Hear that pieces could not be loaded; what there is of the model goes when nobody uses it."""
        model = self.memory.failed(event.model, event.pieces)
        self._back_off.failed(model.name, now)
        self._standing.failed(model)
        self._wishes.discard(model)

    def asked(self, name: str, requests: Sequence[int], now: float, actions: list[Action]) -> float | None:
        """Hear that requests are refused for want of their model alone, and have it loaded where that pays.

        Returns the seconds until it is expected, or None where it is not going to be loaded.
        """
        standing, model = self._standing, self.memory.models[name]
        for _ in requests:
            self._policy.requested(model, now)
        self._doors.settle()
        if not model.waiting and not model.loading and model.stage_bytes <= self.memory.budget:
            self._wishes.add(model)
            if not standing.is_loading and self._loads.next(now) is None:
                self._loads.grant(now, actions)
        if not (model.waiting or model.loading or model in self._wishes):
            return None
        others = [] if model.loading else [one for one in standing.waiting.values() if one is not model]
        return self.seconds_to(name, now) + sum([one.load_seconds for one in others if not one.loading])

    # What the scheduler asks ----------------------------------------------------------------------------------------

    def refuses(self, name: str, now: float) -> bool:
        """Tell whether a load has failed, and it is too early to try again."""
        return self._back_off.is_on(name, now) and not self.memory.models[name].complete

    def load_seconds(self, name: str) -> float:
        """Return the seconds that a model takes to load, if that began now."""
        return self.memory.models[name].load_seconds

    def seconds_to(self, name: str, now: float) -> float:
        """Return the seconds until a model may be there: behind what is on its way, if it is loaded next."""
        model = self.memory.models[name]
        if model.complete:
            return 0.0
        under_way = self._loads.seconds_left(now)
        if not model.loading:
            return under_way + (model.wait_seconds if self._streams else model.load_seconds)
        return under_way + model.seconds_of(model.missing)

    @property
    def coming(self) -> str | None:
        """The model that is on its way."""
        target = self._standing.target
        return target.name if target is not None and target.loading else None

    def present(self, batch: SubBatch) -> bool:
        """Tell whether the stage that a sub-batch is before is in memory."""
        return self._standing.present(batch)

    def worths(self, now: float) -> dict[str, tuple[Held, float | None]]:
        """Return every model, and what a byte of it is worth where the policy goes by importance."""
        policy = self._policy if isinstance(self._policy, ByImportance) else None
        return {
            name: (model, policy.worth(model, now) if policy is not None else None)
            for name, model in self.memory.models.items()
        }

    def decide(self, now: float) -> list[Action]:
        """Open and close lanes, and return what is to go and to come, in this order."""
        standing, actions = self._standing, list[Action]()
        self._doors.settle()
        self._room.make_good(now, actions)
        for _ in range(2):  # the second time where nobody is left whose end could make room
            if not standing.is_loading:
                self._loads.load(now, actions)
            self._doors.release_head()
            self._doors.settle()
            if standing.progresses():
                break
        return actions

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self._standing.check()
