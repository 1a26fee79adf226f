"""Decides what is loaded and what goes, and which models' requests may begin. Pure; the scheduler asks it.

Requests of a model that cannot begin are held in its lane, where no batching policy sees them. One load is under way at
a time. A model opens as soon as whoever begins would not wait for a stage: a start held back so long ends no later, and
more begin together. What does not fit as a whole opens at its first stage and streams through.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from latebind.batching.lane import Lane
from latebind.batching.table import SubBatch
from latebind.batching.view import Models
from latebind.batching.worker import Crew
from latebind.domain.actions import Action, Evict, Load
from latebind.domain.config import ResidencyConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.events import Loaded, LoadFailed
from latebind.residency import make_policy
from latebind.residency.base import Oracle, Victim
from latebind.residency.caches import Caches
from latebind.residency.held import Held
from latebind.residency.importance import ByImportance
from latebind.residency.memory import Memory, require_room
from latebind.residency.opening import arrives_in_time
from latebind.residency.turns import Turns
from latebind.residency.wishes import Wishes

MOST_BACK_OFF = 60.0  # seconds


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
        self._config = config
        self._lanes = lanes
        self._queues = queues
        self._crew = crew
        self._policy = make_policy(config)
        if isinstance(self._policy, Oracle):
            raise ConfigError(
                f"residency.policy {config.policy!r} is told the future, which no server knows: take another"
            )
        self._whole = self._policy.whole or not config.stages
        self.memory = Memory(config.budget, {served.spec.name: served.footprint for served in models})
        for model in self.memory.models.values():
            require_room(model, config.budget, whole=self._whole)
        for lane in lanes.values():
            lane.open = False
        self._touched: set[str] = set()
        self._waiting: dict[str, Held] = {}  # models that somebody waits for
        self._newest = -1  # the request that came last
        self._guards: dict[str, int] = {}  # of a loaded model, the last request that must have begun before it may go
        self._target: Held | None = None  # what is being loaded, until it is complete
        self._streams: set[str] = set()  # models of which not all fits
        self._drains = False  # whether nobody begins, for one who has waited too long needs room
        self._turns = Turns(config, lanes)
        self._wishes = Wishes(self._policy)
        self._ends = 0.0  # when what is on its way is expected
        self._caches = Caches()
        self._failures: dict[str, tuple[int, float]] = {}  # how often in a row, and when to try again

    # What the scheduler tells ---------------------------------------------------------------------------------------

    def arrived(self, name: str, requests: Sequence[int], now: float) -> None:
        """Hear that requests have been accepted."""
        model = self.memory.models[name]
        self._newest = max(self._newest, *requests)
        for _ in requests:
            self._policy.requested(model, now)
        self._touched.add(name)

    def touch(self, name: str) -> None:
        """Hear that somebody of this model began, went on or ended."""
        self._touched.add(name)

    def loaded(self, event: Loaded, now: float) -> None:
        """Hear that pieces have come."""
        expected = self.memory.models[event.model].seconds_of(event.pieces)
        model = self.memory.loaded(event.model, event.pieces, event.sizes)
        model.learn(event.pieces, event.seconds, expected)
        self._failures.pop(event.model, None)
        self._policy.loaded(model, now)
        self._caches.settle(model)
        self._guards[event.model] = self._newest
        if model.complete:
            self._target = None
            self._streams.discard(event.model)
            self._wishes.loaded(model, now)
        self._touched.add(event.model)

    def failed(self, event: LoadFailed, now: float) -> None:
        """Hear that pieces could not be loaded; what there is of the model goes when nobody uses it."""
        model = self.memory.failed(event.model, event.pieces)
        times = self._failures.get(event.model, (0, 0.0))[0] + 1
        self._failures[event.model] = times, now + min(MOST_BACK_OFF, self._config.back_off * 2.0 ** (times - 1))
        self._target = None
        self._streams.discard(event.model)
        self._wishes.discard(model)
        self._touched.add(model.name)

    def asked(self, name: str, requests: Sequence[int], now: float, actions: list[Action]) -> float | None:
        """Hear that requests are refused for want of their model alone, and have it loaded where that pays.

        Returns the seconds until it is expected, or None where it is not going to be loaded.
        """
        model = self.memory.models[name]
        for _ in requests:
            self._policy.requested(model, now)
        self._settle()
        if not model.waiting and not model.loading and model.stage_bytes <= self.memory.budget:
            self._wishes.add(model)
            if not self._is_loading and self._next(now) is None:
                self._grant(now, actions)
        if not (model.waiting or model.loading or model in self._wishes):
            return None
        others = [] if model.loading else [one for one in self._waiting.values() if one is not model]
        return self.seconds_to(name, now) + sum([one.load_seconds for one in others if not one.loading])

    # What the scheduler asks ----------------------------------------------------------------------------------------

    def refuses(self, name: str, now: float) -> bool:
        """Tell whether a load has failed, and it is too early to try again."""
        return now < self._failures.get(name, (0, -inf))[1] and not self.memory.models[name].complete

    def load_seconds(self, name: str) -> float:
        """Return the seconds that a model takes to load, if that began now."""
        return self.memory.models[name].load_seconds

    def seconds_to(self, name: str, now: float) -> float:
        """Return the seconds until a model may be there: behind what is on its way, if it is loaded next."""
        model = self.memory.models[name]
        if model.complete:
            return 0.0
        under_way = max(0.0, self._ends - now) if self._is_loading else 0.0
        if not model.loading:
            streams = self._config.beside and not self._whole
            return under_way + (model.wait_seconds if streams else model.load_seconds)
        return under_way + model.seconds_of(model.missing)

    @property
    def coming(self) -> str | None:
        """The model that is on its way."""
        return self._target.name if self._target is not None and self._target.loading else None

    def present(self, batch: SubBatch) -> bool:
        """Tell whether the stage that a sub-batch is before is in memory."""
        return batch.stage in self.memory.models[batch.spec.name].resident

    def worths(self, now: float) -> dict[str, tuple[Held, float | None]]:
        """Return every model, and what a byte of it is worth where the policy goes by importance."""
        policy = self._policy if isinstance(self._policy, ByImportance) else None
        return {
            name: (model, policy.worth(model, now) if policy is not None else None)
            for name, model in self.memory.models.items()
        }

    def decide(self, now: float) -> list[Action]:
        """Open and close lanes, and return what is to go and to come, in this order."""
        self._settle()
        actions: list[Action] = []
        self._make_good(now, actions)
        for _ in range(2):  # the second time where nobody is left whose end could make room
            if not self._is_loading:
                self._load(now, actions)
            if self._config.order == "fifo":
                self._release_head()
            self._settle()
            if self._progresses():
                break
        return actions

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self.memory.check()
        for worker in self._crew.workers:
            for entry in worker.table.entries:
                assert self.present(entry), f"stage {entry.stage} of {entry.spec.name} is about to run and not there"
            assert worker.running or not any(map(self.present, worker.aside)), "who could go on is left aside"
        loading = any(model.loading for model in self.memory.models.values())
        goes_on = loading or self._progresses() or not any(lane.held for lane in self._lanes.values())
        assert goes_on, "who waits for a model is forgotten"

    # Who may begin --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Bring up to date what is known of models since somebody came, began, went on or ended."""
        names = set(self._waiting) if not self._config.beside or self._drains else set()
        for name in self._touched | names:
            model, lane = self.memory.models[name], self._lanes[name]
            model.waiting = len(lane)
            if model.waiting:
                self._waiting[name] = model
            else:
                self._waiting.pop(name, None)
            model.needed = min([b.stage for b in self._crew.begun() if b.spec is lane.spec], default=inf)
            model.kept = self._keeps(model)
            self.memory.settle(model)
            if self._config.order != "fifo":
                self._open(model, lane)
        self._touched.clear()

    def _open(self, model: Held, lane: Lane) -> None:
        opens = self._opens(model, lane)
        if opens:
            lane.open = True
            if lane.held:
                lane.release()
        elif lane.open:
            lane.withhold()

    def _opens(self, model: Held, lane: Lane) -> bool:
        if self._drains and not self._is_guarded(model):
            return False
        if not self._config.beside and self._is_loading and model.name not in self._streams:
            return False
        if model.complete:
            return True
        if self._whole or model is not self._target or 0 not in model.resident:
            return False
        return model.name in self._streams or (self._config.beside and arrives_in_time(model, lane))

    def _release_head(self) -> None:
        """Of all in the order in which they came, let those of one model begin once nothing else has begun."""
        if not self._waiting or self._busy():
            return
        heads = sorted((lane.oldest.id, name) for name in self._waiting for lane in (self._lanes[name],))
        (_, name), *others = heads
        if self.memory.models[name].complete:
            self._lanes[name].release(others[0][0] if others else inf)
            self._touched.add(name)

    # What comes and what goes ---------------------------------------------------------------------------------------

    def _load(self, now: float, actions: list[Action]) -> None:
        """Have the next pieces of whoever is to be loaded first come, if there is room or can be made."""
        model = self._next(now)
        if model is None:
            if self._drains and all(one.complete for one in self._waiting.values()):  # who waited too long has gone
                self._drains = False
                self._touched.update(self._waiting)
            if not self._grant(now, actions) and self._target is None:
                cache = self._caches.next(self.memory.free)
                if cache is not None:
                    self._begin(cache[0], (cache[1],), self._aim_at(cache[0]), now, actions)
            return
        begins, pieces = self._aim_at(model), self._pieces(model)
        if begins and not self._whole and self._streams_through(model):
            self._streams.add(model.name)
        # Room for all of it is made at once: a piece at a time, over a long load, each idle model would lose its last.
        wanted = pieces if model.name in self._streams else model.missing
        need = model.lacking(wanted) - self.memory.free
        own = sum([model.there(piece) for piece in pieces if piece < model.needed < inf])  # may go for itself
        if need > 0 and not self._make_room(model, need + own, now, actions):
            self._drains = self._turns.is_overdue(model, self._waiting, now)
            return
        self._drains = False
        self._begin(model, pieces, begins, now, actions)

    def _aim_at(self, model: Held) -> bool:
        """Have a model be the one that is loaded; returns whether it was another one before."""
        begins = model is not self._target
        if begins and self._target is not None:
            self._touched.add(self._target.name)
        self._target = model
        return begins

    def _pieces(self, model: Held) -> tuple[int, ...]:
        """Return the next pieces of a model: all that are missing, or the first that those want who have begun."""
        ahead = tuple([piece for piece in model.missing if model.needed <= piece < inf]) or model.missing
        return model.missing if self._whole else ahead[:1]

    def _begin(self, model: Held, pieces: tuple[int, ...], begins: bool, now: float, actions: list[Action]) -> None:
        begins = begins and model.absent
        there = tuple([model.there(piece) for piece in pieces]) if model.parts else ()
        self._ends = now + (model.seconds_of(pieces) + model.footprint.fixed * begins)
        self.memory.begin(model.name, pieces)
        actions.append(Load(model.name, pieces, begins, there))
        self._touched.add(model.name)

    def _grant(self, now: float, actions: list[Action]) -> bool:
        """Where nobody waits for a load, have more come of a model that requests were refused for want of.

        That is the first for which there is room, or whose worth is more than that of what goes; others are forgotten.
        """
        if not self._config.beside and self._busy():
            return False
        for model in self._wishes:
            need = model.lacking(model.missing) - self.memory.free
            if need > 0:
                model.kept = True  # what has come of it already
                self.memory.settle(model)
                victims = self._victims(need, model, now)
                model.kept = self._keeps(model)
                self.memory.settle(model)
                if not victims or not self._wishes.pays(model, victims, self.memory.models, now):
                    self._wishes.discard(model)
                    continue
                self._go(victims, now, actions)
            self._begin(model, self._pieces(model), self._aim_at(model), now, actions)
            return True
        return False

    def _next(self, now: float) -> Held | None:
        """Return the model to load: one that has begun without all of it, whoever waited too long, the most urgent."""
        for batch in self._crew.begun():
            model = self.memory.models[batch.spec.name]
            if any(piece >= batch.stage for piece in model.missing):
                return model
        if all(model.complete for model in self._waiting.values()) or (not self._config.beside and self._busy()):
            return None
        if self._config.order == "fifo":
            first = min(self._waiting.values(), key=self._turns.oldest)
            return None if first.complete or self._busy() else first
        return self._turns.next(self._waiting, now)

    def _streams_through(self, model: Held) -> bool:
        """Tell whether a model is not to wait until all of it has a place: it never has, or nobody else wants any.

        In that case the policy says, piece by piece, whether others make room or the pieces that have run.
        """
        alone = all(other is model for other in self._waiting.values())
        return alone or model.size_of(tuple(range(model.footprint.stages))) > self.memory.budget

    def _make_room(self, model: Held, need: int, now: float, actions: list[Action]) -> bool:
        """Let go of `need` bytes that the policy chooses; of models that are waited for only where nothing goes on."""
        stuck = not self._progresses()
        if stuck or self._drains:
            for other in self._waiting.values():
                other.kept = (other is model and model.needed == inf) or (self._keeps(other) and not stuck)
                self.memory.settle(other)
        victims = self._victims(need, model, now)
        if not victims and stuck and model.name in self._streams:  # its last stages lie where the next has to
            model.kept = False
            self.memory.settle(model)
            victims = self._victims(need + model.there(self._pieces(model)[0]), model, now)
        self._go(victims, now, actions)
        self._touched.update(self._waiting)
        return bool(victims)

    def _make_good(self, now: float, actions: list[Action]) -> None:
        """Let go of what is too much, where something was found larger than it was taken to be."""
        if self.memory.free < 0:
            first = next(iter(self.memory.models.values()))
            self._go(self._victims(-self.memory.free, first, now), now, actions)

    def _victims(self, need: int, model: Held, now: float) -> list[Victim]:
        """Have the policy choose. Those who wait for `model` will be served by what is loaded now, and do not count."""
        waiting = list(self._waiting.values())
        first = min(map(self._turns.oldest, waiting), default=0)
        for one in waiting:
            one.place = self._turns.oldest(one) - first
        kept, model.waiting, model.place = model.waiting, 0, None
        view = self.memory.view(sum([one.waiting for one in waiting]))
        victims = self._policy.victims(view, need, model, now)
        model.waiting = kept
        return victims

    def _go(self, victims: Iterable[Victim], now: float, actions: list[Action]) -> None:
        for victim in victims:
            model = self.memory.evict(victim)
            if model.absent:
                self._policy.evicted(model, now)
            self._caches.settle(model)
            self._touched.add(model.name)
            actions.append(Evict(victim.model, victim.pieces, victim.part))

    # What is so -----------------------------------------------------------------------------------------------------

    def _keeps(self, model: Held) -> bool:
        """Tell whether nothing of a model may go: somebody waits for it who has not begun."""
        if model.name in self._streams and model.needed < inf:
            return False
        return model.waiting > 0 and (not self._drains or model is self._target or self._is_guarded(model))

    def _is_guarded(self, model: Held) -> bool:
        """Tell whether somebody waits who already did when the model was loaded."""
        lane = self._lanes[model.name]
        return len(lane) > 0 and model.complete and lane.oldest.id <= self._guards.get(model.name, -1)

    def _progresses(self) -> bool:
        """Tell whether something runs, or could."""
        runs = any(worker.running is not None or worker.table.entries for worker in self._crew.workers)
        return runs or self._queues.requests > 0

    def _busy(self) -> bool:
        """Tell whether anybody has begun, or may."""
        return any(True for _ in self._crew.begun()) or self._queues.requests > 0

    @property
    def _is_loading(self) -> bool:
        return self._target is not None and bool(self._target.loading)
