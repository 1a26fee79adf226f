"""The main part: answers in time a second, by load and deadline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from latebind.bench.client import past
from latebind.bench.rounds import Progress, in_rounds
from research.joint.bound import most_in_time
from research.joint.report import Block, Capacity, Cell, JointReport
from research.joint.sides import OURS, Contender, Kind, contenders, knowing, of_kind
from research.live.contest import Contest
from research.live.played import Played
from research.live.sides import SERIAL, chosen

LOADS = (0.8, 1.0, 1.2)
DEADLINES = (2.0, 3.0, 5.0, 10.0)
CAPACITY_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """In each of so many `rounds`, at each load and deadline a block of `seconds` for each side.

    Loads are multiples of what the base model does at most, with the best policy without exits; deadlines are
    multiples of what a request takes alone. Where `sides` are named, only they are asked, besides serial and `late`.
    """

    loads: tuple[float, ...] = LOADS
    deadlines: tuple[float, ...] = DEADLINES
    rounds: int = 6
    seconds: float = 1.5
    sides: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """All loads at all deadlines."""
        return [Cell(load, deadline) for load in self.loads for deadline in self.deadlines]

    def chosen(self) -> dict[str, Contender]:
        """Return the sides that take part; raises `ConfigError`."""
        return chosen(contenders(), self.sides, always=(SERIAL, OURS))


async def measure(
    report: JointReport, contest: Contest, plan: Plan, random: Random, tell: Progress, work: Sequence[float] = ()
) -> None:
    """Add what all rounds show to the report.

    `work` is what a request takes at least, in units of what the base model takes alone: if it leaves at the first
    exit, and if it goes through.
    """
    whole = of_kind(report.contenders, Kind.WHOLE)
    saturated = await contest.saturated(
        whole, plan.seconds, CAPACITY_ROUNDS, random, lambda text, share: tell(text, 0.1 * share)
    )
    capacity = capacity_of(saturated, contest.alone)
    report.capacities.append(capacity)
    for number in in_rounds(plan.rounds):
        for at, cell in enumerate(plan.cells):
            share = (number + at / len(plan.cells)) / plan.rounds
            tell(f"{cell.load:.0%} of capacity, {cell.deadline:g} times alone", 0.1 + 0.9 * share)
            times = past(plan.seconds, cell.load * capacity.most, random)
            allowed = cell.deadline * capacity.alone
            played = await contest.block(list(report.contenders), times, random, alone=capacity.alone, allowed=allowed)
            found = {name: Block(times[-1], allowed, one) for name, one in played.items()}
            report.add(cell, found, _bound(report, played, times, [share * capacity.alone for share in work], allowed))


def _bound(
    report: JointReport, played: Mapping[str, Played], times: Sequence[float], work: Sequence[float], allowed: float
) -> float | None:
    """Return an upper bound on answers in time a second, if a side shows which requests may leave early."""
    side = knowing(report.contenders)
    if side is None or not work or not played[side].answered.all():
        return None
    first, whole = work
    return most_in_time(times, [first if early else whole for early in played[side].early], allowed) / times[-1]


def capacity_of(times_over: Mapping[str, list[float]], alone: float) -> Capacity:
    """Return the saturated throughput of the best of several sides, from times in units of `alone`."""
    best = min(times_over, key=lambda name: float(np.mean(times_over[name])))
    return Capacity(best, 1.0 / (alone * float(np.mean(times_over[best]))), alone)
