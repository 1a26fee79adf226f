"""Plays requests one after another over a memory that models share; each loads what it misses before the next runs.

Only the order counts: no request waits in a queue, and loads take no time on the clock. The latencies of mCache's
section 6.2 are taken to be measured so, since requests as often as in its trace, in real time, would have no steady
state. A request takes what it would take alone: it waits for a stage until that is loaded, and not for stages that are
loaded while earlier ones run.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError, IllegalEvent, LatebindError
from latebind.residency.memory import Memory, ModelState
from latebind.residency.policy import EvictionPolicy
from research.mcache.policies import Oracle
from research.mcache.traces import Request


@dataclass(frozen=True, slots=True)
class Served:
    """One request, for which `bytes` were loaded, and the `seconds` that it waited for them."""

    model: str
    seconds: float
    bytes: int

    @property
    def hit(self) -> bool:
        """Whether it waited for nothing."""
        return not self.seconds


class SequentialReplay:
    """Plays requests for models with `footprints` over `budget` bytes.

    With a `whole` policy, a model runs once all of it is loaded. With any other, it runs while its stages are loaded,
    and stages that have run may be evicted, so that it can run in less memory than it takes. A load takes the
    footprint's fixed seconds where nothing of the model is in memory. Learned caches are left out.
    """

    def __init__(self, budget: int, footprints: Mapping[str, Footprint], policy: EvictionPolicy) -> None:
        self.memory = Memory(budget, footprints)
        self._policy = policy
        self._load = self._load_whole if policy.whole else self._load_in_pieces
        self._hits = {name: Served(name, 0.0, 0) for name in footprints}
        self._waiting = 0

    def run(self, requests: Sequence[Request], known: int = 0) -> list[Served]:
        """Return what each request had to wait for, in their order.

        While one is served, the next `known` requests have arrived already and wait. Raises `ConfigError` where a model
        cannot run in this memory.
        """
        if isinstance(self._policy, Oracle):
            self._policy.foretell(_times(requests))
        self._come(requests[:known])
        backlog = _Backlog(self.memory.models, requests[:known])
        served: list[Served] = []
        for place, request in enumerate(requests):
            newest = requests[place + known : place + known + 1]
            self._come(newest)
            self._waiting = backlog.go_on(newest)
            now = requests[min(place + known, len(requests) - 1)].time
            served.append(self._serve(self.memory.models[request.model], now))
        return served

    def _come(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._policy.requested(self.memory.models[request.model], request.time)

    def _serve(self, model: ModelState, now: float) -> Served:
        if model.complete:
            return self._hits[model.name]
        fixed = 0.0 if model.resident else model.footprint.fixed
        return self._load(model, fixed, now)

    def _load_whole(self, model: ModelState, fixed: float, now: float) -> Served:
        pieces = model.missing
        if not self._made_room(model, pieces, now):
            raise _too_small(model, self.memory)
        return Served(model.name, fixed + model.seconds_of(pieces), self._fetch(model, pieces, now))

    def _load_in_pieces(self, model: ModelState, fixed: float, now: float) -> Served:
        stages = range(model.footprint.stages)
        runs = model.footprint.runs
        # Seconds after the start: when the last loaded stage is there, and when all stages before this one have run.
        loaded_at = ran_at = fixed
        under_way: dict[int, float] = {}  # the seconds of each stage whose load is under way
        size = 0
        for stage in stages:
            if stage not in model.resident:
                rest = tuple([piece for piece in stages[stage:] if piece not in model.resident])
                if model.size_of(rest) > self.memory.free:
                    bytes_before = model.bytes
                    self._find_room(model, stage, now)
                    rest = (stage,)
                    if model.bytes < bytes_before:  # its own stages made room, so the load starts once they have run
                        loaded_at = max(loaded_at, ran_at)
                under_way.update([(piece, model.seconds_of((piece,))) for piece in rest])
                size += self._fetch(model, rest, now)
            if stage in under_way:
                loaded_at += under_way[stage]
                ran_at = max(ran_at, loaded_at)
            ran_at += runs[stage] if runs else 0.0
        self._need_from(model, inf)
        return Served(model.name, max(0.0, ran_at - sum(runs)), size)

    def _find_room(self, model: ModelState, stage: int, now: float) -> None:
        """Make room for a stage by evicting, of its own model, only stages that have run; else later stages too.

        The latter can be necessary for a model of which only the last stages are in memory.
        """
        for needed in (stage, inf):
            self._need_from(model, needed)
            if self._made_room(model, (stage,), now):
                return
        raise _too_small(model, self.memory)

    def _need_from(self, model: ModelState, stage: float) -> None:
        if model.needed_from != stage:
            model.needed_from = stage
            self.memory.update_evictable(model)

    def _made_room(self, model: ModelState, pieces: tuple[int, ...], now: float) -> bool:
        """Make room for pieces; in several rounds where parts of the pieces themselves are evicted."""
        while (need := model.size_of(pieces) - self.memory.free) > 0:
            victims = self._policy.victims(self.memory.view(self._waiting), need, model, now)
            if not victims:
                return False
            for victim in victims:
                held = self.memory.evict(victim)
                if not held.resident:
                    self._policy.evicted(held, now)
        return True

    def _fetch(self, model: ModelState, pieces: tuple[int, ...], now: float) -> int:
        size = model.size_of(pieces)
        self.memory.begin(model.name, pieces)
        self._policy.loaded(self.memory.loaded(model.name, pieces), now)
        return size


class _Backlog:
    """The requests that wait behind the one being served; sets `waiting` and `queue_position` of the models."""

    def __init__(self, models: Mapping[str, ModelState], requests: Iterable[Request]) -> None:
        self._models = models
        self._waiting = deque([request.model for request in requests])
        self._counts = Counter(self._waiting)

    def go_on(self, newest: Iterable[Request]) -> int:
        """Add new requests and remove the oldest, which is served now; return how many wait."""
        for request in newest:
            self._waiting.append(request.model)
            self._counts[request.model] += 1
        served = self._waiting.popleft()
        self._counts[served] -= 1
        self._models[served].waiting, self._models[served].queue_position = self._counts[served], None
        for place, name in zip(range(len(self._waiting) - 1, -1, -1), reversed(self._waiting), strict=True):
            self._models[name].waiting, self._models[name].queue_position = self._counts[name], place
        return len(self._waiting)


def _times(requests: Sequence[Request]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for request in requests:
        times.setdefault(request.model, []).append(request.time)
    return times


def _too_small(model: ModelState, memory: Memory) -> LatebindError:
    if model.footprint.size <= memory.budget:
        return IllegalEvent(f"the policy has found no room for {model.name!r}, which fits into {memory.budget} bytes")
    return ConfigError(
        f"model {model.name!r} takes {model.footprint.size} bytes and cannot run in {memory.budget}: give more memory"
    )
