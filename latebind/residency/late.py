"""`late`: evicts single pieces, first those worth least until their model runs again, given the waiting requests.

The worth of a byte is the seconds that it takes to load it again (of a learned cache: that it saves a request), divided
by the time until its model is requested next. For a model that requests wait for, that is the time to serve the
requests before them; for any other model it is longer than the time to serve all waiting requests.

The model that is being loaded is a candidate too, with the pieces that have run. If these are worth least, the model
passes through a part of the memory that is smaller than itself, and no other model loses anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from operator import itemgetter

from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.residency.importance import FEW, ByImportance, utility
from latebind.residency.memory import MemoryView, ModelState, Victim
from latebind.residency.policy import first_whole
from latebind.residency.rates import Gaps, JumpingGaps, MovingGap

JUMP = 0.03  # probability that a model's rate changes after a request; .01 and .1 are within 1 %
ALPHA_OF_ALL = 0.02  # weight of the newest gap between any two requests
AT_ONCE = 2  # models whose groups are looked at together
TAIL = 0.03  # worth of a tail over that of other stages: where two tails are useless, the rarer model loses its own


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """Pieces of one model whose bytes are all worth the same number of `seconds`, in the order of their eviction."""

    seconds: float
    pieces: tuple[int, ...]


@dataclass(slots=True)
class PieceGroups:
    """The groups of a model with this footprint, the one that is worth least first.

    A byte of its stages is worth `average` seconds. `idle` are the groups that apply while no other load is waited for:
    more than the others where the model has a tail. `until` are the seconds until it is requested next, as of the last
    time it was scored.
    """

    footprint: Footprint
    average: float
    groups: list[PieceGroup]
    idle: list[PieceGroup]
    until: float = inf


Candidate = tuple[float, str, ModelState, PieceGroup]  # what a byte of the group is worth, the model's name, both
by_worth = itemgetter(0, 1)


class Late(ByImportance):
    """The default policy: evicts stages and learned caches, or whole models where `stages` is off."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self.whole = not config.stages
        self._gaps: Gaps = JumpingGaps(config.window, JUMP)
        self._all_gaps = MovingGap(ALPHA_OF_ALL, config.window)  # between requests for any model
        self._groups: dict[str, PieceGroups] = {}
        self._waiting = 0
        self._tailed = False  # whether any model has a tail
        self._wanted: ModelState | None = None
        self._idle = False  # whether no request waits that a load would delay; always False with more than `FEW` models

    def requested(self, model: ModelState, now: float) -> None:
        """Update the rates of the model and of all requests."""
        self._gaps.observe(model.name, now)
        self._all_gaps.observe(now)
        super().requested(model, now)

    def gain(self, model: ModelState, now: float) -> float:
        """Return the worth of a byte of its stages, whether they are in memory or not."""
        return self._groups_of(model).average / self._until(model, now)

    def worth(self, model: ModelState, now: float) -> float:
        """Return the worth of a byte of what would be evicted first, as if loads were never idle."""
        return _lowest(model, self._groups_of(model).groups) / self._until(model, now)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Choose what is worth least: look at the groups of ever more models until they free enough.

        If tails are groups of their own, go on until no model is left that could be cheaper.
        """
        self._waiting = view.waiting
        self._wanted = wanted
        self._idle = not view.waiting and len(view.evictable) <= FEW
        models = self._queue.ascending(view.evictable, now)
        if self.whole:
            return first_whole(models, view, need, wanted)
        candidates: list[Candidate] = []
        victims: list[Victim] = []
        size, dearest = 0, inf
        while some := list(islice(models, AT_ONCE)):
            if victims and self._importance(some[0], now) >= dearest:
                break
            for model in some:
                known = self._groups[model.name]
                candidates += [
                    (group.seconds / known.until, model.name, model, group) for group in self._offered(model, known)
                ]
                size += model.bytes
            if size >= need:
                candidates.sort(key=by_worth)
                victims, dearest = choose_victims(candidates, need)
                if victims and not (self._idle and self._tailed):
                    break
        return victims

    def _importance(self, model: ModelState, now: float) -> float:
        """Return the worth of a byte of what would be evicted first of a model."""
        known = self._groups_of(model)
        known.until = until = self._until(model, now)
        return _lowest(model, self._offered(model, known)) / until

    def _until(self, model: ModelState, now: float) -> float:
        """Return the expected seconds until a model is requested or, where requests wait, served next."""
        if not self._waiting:
            return self._gaps.gap(model.name, now)
        per_request = self._all_gaps.gap(now)
        if model.waiting and model.queue_position is not None:
            return per_request * (model.queue_position + 1)
        return per_request * self._waiting + self._gaps.gap(model.name, now)

    def _offered(self, model: ModelState, known: PieceGroups) -> list[PieceGroup]:
        """Return the groups of a model. The wanted model's tail is not a group: it is loaded after all the rest."""
        return known.idle if self._idle and model is not self._wanted else known.groups

    def _groups_of(self, model: ModelState) -> PieceGroups:
        known = self._groups.get(model.name)
        if known is None or known.footprint is not model.footprint:
            known = self._groups[model.name] = piece_groups_of(model.footprint, whole=self.whole)
            self._tailed = self._tailed or len(known.idle) > len(known.groups)
        return known


def _lowest(model: ModelState, groups: Sequence[PieceGroup]) -> float:
    """Return the seconds of the first group of which anything is in memory; 0 if nothing is."""
    for group in groups:
        if not model.resident.isdisjoint(group.pieces):
            return group.seconds
    return 0.0


def piece_groups_of(footprint: Footprint, *, whole: bool) -> PieceGroups:
    """Return all stages as a group, the last stage first, and each learned cache as a group; the cheapest group first.

    Unless models go `whole`, the first stage is a group of its own: without it a load takes its fixed seconds as well.
    So is the tail, if it is known how long stages run: the stages that can be loaded while earlier stages run. No
    request waits for them unless another load goes first.
    """
    count = footprint.stages
    stages, size, seconds = range(count), sum(footprint.sizes[:count]), sum(footprint.seconds[:count])
    average = utility(footprint.fixed + seconds, size, 1.0)
    caches = [
        PieceGroup(utility(gain, footprint.sizes[piece], 1.0), (piece,))
        for piece, gain in enumerate(footprint.gains, start=count)
    ]
    if whole or not count:
        every = sorted([PieceGroup(average, tuple(stages[::-1])), *caches], key=_seconds)
        return PieceGroups(footprint, average, every, every)
    each, start = utility(seconds, size, 1.0), _tail_start(footprint)
    first = PieceGroup(each + utility(footprint.fixed, footprint.sizes[0], 1.0), (0,))
    rest, body, tail = (tuple(some[::-1]) for some in (stages[1:], stages[1:start], stages[start:]))
    usual = [PieceGroup(each, rest), first, *caches]
    idle = [PieceGroup(each, body), PieceGroup(TAIL * each, tail), first, *caches]
    groups, idle = (sorted([one for one in some if one.pieces], key=_seconds) for some in (usual, idle))
    return PieceGroups(footprint, average, groups, idle)


def _seconds(group: PieceGroup) -> float:
    return group.seconds


def _tail_start(footprint: Footprint) -> int:
    """Return the first stage that may be missing when a model starts, together with all behind it.

    What is missing is loaded in the order of stages, and each is loaded by the time the stages before it have run.
    """
    first, left, runs = footprint.stages, inf, footprint.runs
    for stage in range(len(runs) - 1, 0, -1):
        left = min(left, sum(runs[:stage]))  # seconds in which this stage and those behind it can be loaded
        if footprint.seconds[stage] > left:
            break
        first, left = stage, left - footprint.seconds[stage]
    return first


def choose_victims(candidates: Sequence[Candidate], need: int) -> tuple[list[Victim], float]:
    """Take candidates from the front until they free `need` bytes.

    Returns the victims, and what a byte of the most valuable one is worth; or nothing and infinity if all candidates
    together free less.
    """
    chosen: list[tuple[ModelState, list[int]]] = []
    for worth, _, model, group in candidates:
        pieces = []
        for piece in group.pieces:
            if need > 0 and piece in model.resident and model.stage_of(piece) < model.needed_from:
                pieces.append(piece)
                need -= model.footprint.sizes[piece]
        if pieces:
            chosen.append((model, pieces))
        if need <= 0:
            return _victims(chosen, -need), worth
    return [], inf


def _victims(chosen: Sequence[tuple[ModelState, list[int]]], spare: int) -> list[Victim]:
    """Return one victim for each model, without pieces that fit into `spare` bytes.

    Of these the most valuable are kept first, and of a model those that would be evicted last.
    """
    closed: set[str] = set()  # models of which something is evicted that would be evicted later than the rest
    for model, pieces in reversed(chosen):
        while pieces and model.name not in closed:
            size = model.footprint.sizes[pieces[-1]]
            if size <= spare:
                spare -= size
                pieces.pop()
            else:
                closed.add(model.name)
    found: dict[str, tuple[int, ...]] = {}
    for model, pieces in chosen:
        if pieces:
            found[model.name] = (*found.get(model.name, ()), *pieces)
    return [Victim(name, pieces) for name, pieces in found.items()]
