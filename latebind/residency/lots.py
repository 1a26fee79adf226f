"""Lots: what of a model goes together, and how much of it has to go for others to have room. Pure."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter

from latebind.domain.footprint import Footprint
from latebind.residency.base import Victim
from latebind.residency.held import Held
from latebind.residency.importance import utility

TAIL = 0.03  # of what others are worth: where two tails are of no use, the one goes that is asked for less


@dataclass(frozen=True, slots=True)
class Lot:
    """Pieces of one model of which a byte is worth the same `seconds`, in the order in which they go.

    Of the last of these pieces so many bytes from its start are no part of it: they `stay`. Of the first one no more
    than `most` bytes count. Where `trims`, the last stage that goes does so in part if the rest is not needed.
    """

    seconds: float
    pieces: tuple[int, ...]
    stay: int = 0
    most: int = sys.maxsize
    trims: bool = False


@dataclass(frozen=True, slots=True)
class Lots:
    """What a model with this footprint consists of, what is worth least first.

    A byte of its `stages` is worth so many seconds on average, and all of them its `penalty`. Where loads have nothing
    else to do, it consists of `idle`.
    """

    footprint: Footprint
    penalty: float
    stages: float
    lots: list[Lot]
    idle: list[Lot]

    @property
    def tailed(self) -> bool:
        """Whether it has a tail."""
        return len(self.idle) > len(self.lots)


@dataclass(slots=True)
class Going:
    """Pieces of a model that are to go, in this order, and of one stage all but its first bytes."""

    model: Held
    pieces: list[int]
    part: tuple[int, int] | None = None


Offer = tuple[float, str, Held, Lot]  # what a byte is worth of a lot of this model, in front of that its name
worth_of = itemgetter(0, 1)


def lots_of(footprint: Footprint, *, trims: bool) -> Lots:
    """Return the stages, the last one first, and each learned cache by itself; what is worth least first.

    Where stages may go in part, what makes a model absent when it goes is a lot of its own: the `grain` of bytes that
    it begins with, which saves the fixed part of a load as well. Where it is known how long stages run, so is the tail
    that comes while those before it run: a request waits for none of it, if no load is in front.
    """
    stages = tuple(reversed(range(footprint.stages)))
    size, seconds = sum(footprint.sizes[: footprint.stages]), sum(footprint.seconds[: footprint.stages])
    average = utility(footprint.fixed + seconds, size, 1.0)
    if trims and footprint.grain and footprint.stages:
        lots = _trimmed(footprint, stages, utility(seconds, size, 1.0))
    else:
        lots = [Lot(average, stages)]
    caches = [
        Lot(utility(gain, footprint.sizes[piece], 1.0), (piece,))
        for piece, gain in enumerate(footprint.gains, start=footprint.stages)
    ]
    known, idle = (
        sorted([*some, *caches], key=lambda lot: lot.seconds) for some in (lots, _with_tail(footprint, lots))
    )
    return Lots(footprint, footprint.penalty, average, known, idle)


def _trimmed(footprint: Footprint, stages: tuple[int, ...], seconds: float) -> list[Lot]:
    first = min(footprint.grain, footprint.sizes[0])
    rest = stages if first < footprint.sizes[0] else stages[:-1]
    stay = first if first < footprint.sizes[0] else 0
    core = Lot(seconds + utility(footprint.fixed, first, 1.0), (0,), most=first)
    return [Lot(seconds, rest, stay, trims=True), core] if rest else [core]


def _with_tail(footprint: Footprint, lots: list[Lot]) -> list[Lot]:
    """Split the tail off what may be trimmed, where there is one."""
    rest = lots[0]
    stage, stays = _hidden(footprint) if rest.trims else (footprint.stages, 0)
    if stage == footprint.stages:
        return lots
    tail = Lot(TAIL * rest.seconds, tuple([piece for piece in rest.pieces if piece >= stage]), stays, trims=True)
    pieces = tuple([piece for piece in rest.pieces if piece < stage + (stays > 0)])
    others = [replace(rest, pieces=pieces, most=stays or sys.maxsize)] if pieces else []
    return [tail, *others, *lots[1:]]


def _hidden(footprint: Footprint) -> tuple[int, int]:
    """Return the first stage that need not be there as a model begins, and how many of its bytes have to be.

    All before are there. What lacks comes in the order of stages, each before those in front of it have run.
    """
    sizes, seconds, runs = footprint.sizes, footprint.seconds, footprint.runs
    first, stays, left = footprint.stages, 0, inf
    for stage in range(len(runs) - 1, 0, -1):
        left = min(left, sum(runs[:stage]))
        if seconds[stage] > left:
            lacks = int(sizes[stage] * left / seconds[stage]) // footprint.grain * footprint.grain
            stays = -(-(sizes[stage] - lacks) // footprint.grain) * footprint.grain
            return (stage, stays) if 0 < stays < sizes[stage] else (first, 0)
        first, left = stage, left - seconds[stage]
    return first, stays


def lies_in(model: Held, lot: Lot) -> bool:
    """Tell whether anything of a lot is in memory."""
    if not model.resident.isdisjoint(lot.pieces):
        return True
    for piece, there in model.parts.items():
        if piece in lot.pieces and (piece != lot.pieces[-1] or there > lot.stay):
            return True
    return False


def enough(offers: Sequence[Offer], need: int) -> tuple[list[Victim], float]:
    """Return what goes of these from the front on to free `need` bytes, and what a byte of the dearest is worth.

    Nothing goes where all of it is less.
    """
    every: list[Going] = []
    for worth, _, model, lot in offers:
        going = Going(model, [])
        need = _take(going, lot, need)
        if going.pieces or going.part is not None:
            every.append(going)
        if need <= 0:
            if len(every) > 1 or going.part is None:
                _without_spare(every, -need)
            return _victims(every), worth
    return [], inf


def _take(going: Going, lot: Lot, need: int) -> int:
    """Have pieces of a lot go until they free `need` bytes; returns what is still needed, below 0 what is spare."""
    model, goes = going.model, going.pieces
    resident, parts, sizes, needed = model.resident, model.parts, model.footprint.sizes, model.needed
    first, last = lot.pieces[0] if lot.most < sys.maxsize else None, lot.pieces[-1]
    for piece in lot.pieces:
        if piece in resident:
            there = sizes[piece]
        elif piece in parts and piece not in model.loading:
            there = parts[piece]
        else:
            continue
        if needed < inf and model.stage_of(piece) >= needed:
            continue
        if piece == first and there > lot.most:
            there = lot.most
        stays = lot.stay if piece == last else 0
        if there <= stays:
            continue
        need -= there - stays
        if need > 0 and not stays:
            goes.append(piece)
            continue
        if need <= 0 and lot.trims:
            grain = model.footprint.grain
            more = (stays - need) // grain * grain - stays
            stays, need = stays + more, need + more
        if stays:
            going.part = piece, stays
        else:
            goes.append(piece)
        break
    return need


def _without_spare(every: Sequence[Going], spare: int) -> None:
    """Let what is worth most stay where `spare` bytes have room for it; of a model always what would go last."""
    goes: set[str] = set()
    for going in reversed(every):
        model, pieces = going.model, going.pieces
        if going.part is not None:
            goes.add(model.name)
        while pieces and model.name not in goes:
            there = model.there(pieces[-1])
            if there <= spare:
                spare -= there
                pieces.pop()
            else:
                goes.add(model.name)


def _victims(every: Sequence[Going]) -> list[Victim]:
    if len(every) == 1 and (every[0].pieces or every[0].part):
        going = every[0]
        return [Victim(going.model.name, tuple(going.pieces), going.part)]
    found: dict[str, Victim] = {}
    for going in every:
        name = going.model.name
        pieces, part = tuple(going.pieces), going.part
        if before := found.get(name):
            pieces, part = before.pieces + pieces, part or before.part
            if part is not None and part[0] in pieces:
                part = None  # its first bytes have followed
        if pieces or part:
            found[name] = Victim(name, pieces, part)
    return list(found.values())
