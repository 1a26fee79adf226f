"""Groups of pieces that are evicted together, and how much of them has to go to free some bytes. Pure."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter

from latebind.domain.costs import Footprint
from latebind.residency.importance import utility
from latebind.residency.model_state import ModelState
from latebind.residency.policy import Victim

TAIL = 0.03  # worth of a tail over that of other stages: where two tails are useless, the rarer model loses its own


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """Pieces of one model whose bytes are all worth the same number of `seconds`, in the order of their eviction.

    The first `stay` bytes of the last of these pieces are not part of the group. Of the first of these pieces no more
    than `most` bytes are. Where `trims`, the last stage that is evicted loses only as many bytes as are needed.
    """

    seconds: float
    pieces: tuple[int, ...]
    stay: int = 0
    most: int = sys.maxsize
    trims: bool = False


@dataclass(frozen=True, slots=True)
class PieceGroups:
    """The groups of a model with this footprint, the one that is worth least first.

    A byte of its stages is worth `stage_seconds` on average. All stages together are worth `penalty` seconds. `idle`
    are the groups that apply while no other load is waited for.
    """

    footprint: Footprint
    penalty: float
    stage_seconds: float
    groups: list[PieceGroup]
    idle: list[PieceGroup]

    @property
    def tailed(self) -> bool:
        """Whether the model has a tail, which is a group of its own while loads are idle."""
        return len(self.idle) > len(self.groups)


@dataclass(slots=True)
class Eviction:
    """What is to be evicted of one group: pieces in this order, and of one stage all but its first bytes."""

    model: ModelState
    pieces: list[int]
    part: tuple[int, int] | None = None


Candidate = tuple[float, str, ModelState, PieceGroup]  # what a byte of the group is worth, the model's name, both
by_worth = itemgetter(0, 1)


def piece_groups_of(footprint: Footprint, *, trims: bool) -> PieceGroups:
    """Return all stages as a group, the last stage first, and each learned cache as a group; the cheapest group first.

    Where stages may be evicted in part, the first `grain` bytes of the model are a group of their own: without them the
    model is absent, and a load takes its fixed seconds as well. Where it is known how long stages run, so is the tail,
    the bytes that can be loaded while earlier stages run: no request waits for them unless another load goes first.
    """
    stages = tuple(reversed(range(footprint.stages)))
    size, seconds = sum(footprint.sizes[: footprint.stages]), sum(footprint.seconds[: footprint.stages])
    average = utility(footprint.fixed + seconds, size, 1.0)
    if trims and footprint.grain and footprint.stages:
        groups = _trimmed(footprint, stages, utility(seconds, size, 1.0))
    else:
        groups = [PieceGroup(average, stages)]
    caches = [
        PieceGroup(utility(gain, footprint.sizes[piece], 1.0), (piece,))
        for piece, gain in enumerate(footprint.gains, start=footprint.stages)
    ]
    usual = sorted([*groups, *caches], key=lambda group: group.seconds)
    idle = sorted([*_with_tail(footprint, groups), *caches], key=lambda group: group.seconds)
    return PieceGroups(footprint, footprint.penalty, average, usual, idle)


def _trimmed(footprint: Footprint, stages: tuple[int, ...], seconds: float) -> list[PieceGroup]:
    """Return the stages as two groups: all but the first `grain` bytes of the model, and these bytes."""
    first = min(footprint.grain, footprint.sizes[0])
    rest = stages if first < footprint.sizes[0] else stages[:-1]
    stay = first if first < footprint.sizes[0] else 0
    core = PieceGroup(seconds + utility(footprint.fixed, first, 1.0), (0,), most=first)
    return [PieceGroup(seconds, rest, stay, trims=True), core] if rest else [core]


def _with_tail(footprint: Footprint, groups: list[PieceGroup]) -> list[PieceGroup]:
    """Split the tail off the group that may be trimmed, where there is one."""
    rest = groups[0]
    stage, stays = _tail_start(footprint) if rest.trims else (footprint.stages, 0)
    if stage == footprint.stages:
        return groups
    tail = PieceGroup(TAIL * rest.seconds, tuple([piece for piece in rest.pieces if piece >= stage]), stays, trims=True)
    pieces = tuple([piece for piece in rest.pieces if piece < stage + (stays > 0)])
    others = [replace(rest, pieces=pieces, most=stays or sys.maxsize)] if pieces else []
    return [tail, *others, *groups[1:]]


def _tail_start(footprint: Footprint) -> tuple[int, int]:
    """Return the first stage that may be missing when a model starts, and how many of its first bytes may not be.

    All earlier stages are in memory. What is missing is loaded in the order of stages, and each is loaded by the time
    the stages before it have run.
    """
    sizes, seconds, runs = footprint.sizes, footprint.seconds, footprint.runs
    first, stays, left = footprint.stages, 0, inf
    for stage in range(len(runs) - 1, 0, -1):
        left = min(left, sum(runs[:stage]))  # seconds in which this stage and those behind it can be loaded
        if seconds[stage] > left:
            missing = int(sizes[stage] * left / seconds[stage]) // footprint.grain * footprint.grain
            stays = -(-(sizes[stage] - missing) // footprint.grain) * footprint.grain
            return (stage, stays) if 0 < stays < sizes[stage] else (first, 0)
        first, left = stage, left - seconds[stage]
    return first, stays


def is_in_memory(model: ModelState, group: PieceGroup) -> bool:
    """Return whether anything of a group is in memory."""
    if not model.resident.isdisjoint(group.pieces):
        return True
    for piece, size in model.parts.items():
        if piece in group.pieces and (piece != group.pieces[-1] or size > group.stay):
            return True
    return False


def choose_victims(candidates: Sequence[Candidate], need: int) -> tuple[list[Victim], float]:
    """Take candidates from the front until they free `need` bytes.

    Returns the victims, and what a byte of the most valuable one is worth; or nothing and infinity where all candidates
    together free less.
    """
    evictions: list[Eviction] = []
    for worth, _, model, group in candidates:
        eviction = Eviction(model, [])
        need = _take(eviction, group, need)
        if eviction.pieces or eviction.part is not None:
            evictions.append(eviction)
        if need <= 0:
            if len(evictions) > 1 or eviction.part is None:
                _return_spare(evictions, -need)
            return _victims(evictions), worth
    return [], inf


def _take(eviction: Eviction, group: PieceGroup, need: int) -> int:
    """Add pieces of a group to an eviction until they free `need` bytes.

    Returns the bytes that are still needed; below 0, those that are freed without need.
    """
    model, evicted = eviction.model, eviction.pieces
    resident, parts, sizes, needed_from = model.resident, model.parts, model.footprint.sizes, model.needed_from
    first, last = group.pieces[0] if group.most < sys.maxsize else None, group.pieces[-1]
    for piece in group.pieces:
        if piece in resident:
            size = sizes[piece]
        elif piece in parts and piece not in model.loading:
            size = parts[piece]
        else:
            continue
        if needed_from < inf and model.stage_of(piece) >= needed_from:
            continue
        if piece == first and size > group.most:
            size = group.most
        stays = group.stay if piece == last else 0
        if size <= stays:
            continue
        need -= size - stays
        if need > 0 and not stays:
            evicted.append(piece)
            continue
        if need <= 0 and group.trims:  # leave what is freed without need, in multiples of the grain
            grain = model.footprint.grain
            more = (stays - need) // grain * grain - stays
            stays, need = stays + more, need + more
        if stays:
            eviction.part = piece, stays
        else:
            evicted.append(piece)
        break
    return need


def _return_spare(evictions: Sequence[Eviction], spare: int) -> None:
    """Keep pieces that fit into `spare` bytes, the most valuable first; of a model, the pieces evicted last."""
    closed: set[str] = set()  # models of which something is evicted that would be evicted later than the rest
    for eviction in reversed(evictions):
        model, pieces = eviction.model, eviction.pieces
        if eviction.part is not None:
            closed.add(model.name)
        while pieces and model.name not in closed:
            size = model.resident_bytes(pieces[-1])
            if size <= spare:
                spare -= size
                pieces.pop()
            else:
                closed.add(model.name)


def _victims(evictions: Sequence[Eviction]) -> list[Victim]:
    """Return one victim for each model."""
    if len(evictions) == 1 and (evictions[0].pieces or evictions[0].part):
        eviction = evictions[0]
        return [Victim(eviction.model.name, tuple(eviction.pieces), eviction.part)]
    found: dict[str, Victim] = {}
    for eviction in evictions:
        name = eviction.model.name
        pieces, part = tuple(eviction.pieces), eviction.part
        if before := found.get(name):
            pieces, part = before.pieces + pieces, part or before.part
            if part is not None and part[0] in pieces:
                part = None  # its first bytes are evicted by a later group
        if pieces or part:
            found[name] = Victim(name, pieces, part)
    return list(found.values())
