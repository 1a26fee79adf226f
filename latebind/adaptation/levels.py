"""Decides from samples which levels of a model's operating curve may be used. Pure: takes no action.

Every sample counts for every level: what a level would answer follows from the scores of the lookups, whichever level
the request ran at. So the levels used under high load have been watched before the load comes, and a stopped level is
watched further.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from latebind.adaptation.controller import (
    COMPARED,
    ESTABLISHED,
    FELL,
    FIRST_LESSON,
    FULL_DEPTH,
    GROWTH,
    SHOWN,
    Controller,
    Decision,
    FidelityWatch,
    Retrain,
    Use,
    Version,
    down_to,
)

Shows = Callable[[int, int, float], bool]  # whether this many wrong answers among this many show this fidelity


@dataclass(slots=True)
class Level:
    """One level: its watch, and what was compared since the start or its last alarm.

    It is `held` to what it promises unless an alarm, which came at answer `stopped`, refuted that; `again` is the
    number of comparisons after which it is checked next whether these show it again. It `suits` the current classes.
    """

    fidelity: float
    watch: FidelityWatch
    last: deque[bool] = field(default_factory=lambda: deque(maxlen=COMPARED))
    held: bool = True
    suits: bool = True
    compared: int = 0
    wrong: int = 0
    alarms: int = 0
    again: int = FIRST_LESSON
    stopped: float = -inf

    def stop(self, at: float = inf) -> None:
        """Start counting again, until enough is compared to show the level again."""
        self.held, self.compared, self.wrong, self.again, self.stopped = False, 0, 0, FIRST_LESSON, at

    def hear(self, same: bool, *, at: int, gap: float, shows: Shows) -> bool:
        """Take in whether the level would have given answer `at` like the base model; True is an alarm."""
        self.last.append(same)
        self.compared += 1
        self.wrong += not same
        if self.watch.compared(same, at=at, gap=gap, established=self.compared >= ESTABLISHED):
            held = self.held
            self.alarms += held  # a stopped one has merely not recovered
            self.stop(at)
            return held
        if not self.held and self.compared >= self.again:
            self.again = round(GROWTH * self.again)
            self.held = shows(self.wrong, self.compared, self.fidelity)
        return False


class Levels(Controller):
    """Decides for one model that is served with a floor: also which levels of the wanted version may be used.

    `fidelities` are those of the levels below the whole network, the highest first, with the target among them. An
    alarm at one below the target stops it and all below it, until the samples since, or a version made since, show what
    it promises; `shows` says whether samples do. One at the target or a higher level stops exits: what these were shown
    on no longer represents the traffic, and a new version is called for.
    """

    def __init__(
        self,
        fidelities: Sequence[float],
        target: float,
        full_depth: Version,
        versions: Mapping[str, Version],
        wanted: str,
        shows: Shows,
        *,
        stopped: bool = False,
    ) -> None:
        name, least = down_to(wanted)
        super().__init__(target, full_depth, versions, name, stopped=stopped, among=len(fidelities))
        among = [self.watch if one == target else FidelityWatch(one, among=len(fidelities)) for one in fidelities]
        self._levels = [Level(one, watch) for one, watch in zip(fidelities, among, strict=True)]
        self._target = list(fidelities).index(target)
        self._shows = shows
        self._fresh = ""  # a version just made or chosen, all of whose levels may be used
        self._lesson_from = 0  # answers, when the last lesson was called for
        for level in self._levels:
            if level.fidelity < least:
                level.stop()
        self._reported = self.asked

    @property
    def levels(self) -> Sequence[Level]:
        """All levels below the whole network, the highest first."""
        return self._levels

    @property
    def open(self) -> int:
        """How many of them may be used: the strictest ones, up to the first that is stopped or that no version has."""
        there = {level.fidelity for level in self._versions[self.wanted].levels} if self.wanted != FULL_DEPTH else {}
        usable = [level.held and level.suits for level in self._levels]
        until = usable.index(False) if False in usable else len(usable)
        return max([place + 1 for place in range(until) if self._levels[place].fidelity in there], default=0)

    @property
    def asked(self) -> str:
        """The version to use, with the least fidelity that it may promise if some levels are stopped."""
        used = self.open
        if not used:
            return FULL_DEPTH
        lowest = min([level.fidelity for level in self._versions[self.wanted].levels])
        least = self._levels[used - 1].fidelity
        return self.wanted if least <= lowest else f"{self.wanted}@{least:g}"

    @property
    def alarms(self) -> int:
        """How many alarms there were, at any level or because inputs look different."""
        return self.looks.alarms + sum([level.alarms for level in self._levels])

    def answered(self, answer: int) -> list[Decision]:
        """Take in the class of one answer."""
        return self._with_levels(super().answered(answer), "it suits the classes that come")

    def compared_each(
        self, same: Sequence[bool | None], *, at: int, strange: bool = False, used: str = ""
    ) -> list[Decision]:
        """Take in whether each level would have given answer `at` like the base model; for the others see `compared`.

        What a client was answered counts for the level that it was promised. None: it says nothing about a level.
        """
        if at <= self._alarmed:
            return []
        target, decisions = self._levels[self._target], list[Decision]()
        if (of_target := same[self._target]) is not None:
            target.last.append(of_target)
            before = self.watch.alarms
            decisions = self.compared(of_target, at=at, strange=strange, used=used)
            target.alarms += self.watch.alarms - before
        for place, (level, right) in enumerate(zip(self._levels, same, strict=True)):
            if place == self._target or right is None or at <= self._alarmed or self.wanted == FULL_DEPTH:
                continue
            if level.hear(right, at=at, gap=self._gap, shows=self._shows) and place < self._target:
                level.held = True  # once a version has it that is shown
                decisions += self._stop(f"{FELL} of {level.fidelity:g}")
        fell = [level.fidelity for level in self._levels if level.stopped == at]
        why = (
            f"fidelity fell under {fell[0]:g}: no request runs at that level until it is shown again" if fell else SHOWN
        )
        return self._with_levels(decisions, why)

    def learned(self, version: Version | None, now: float, *, trusted: bool = True) -> list[Decision]:
        """A retraining has ended, as for any controller; levels without an alarm since it began may be used."""
        self._fresh = "" if version is None else version.name
        return super().learned(version, now, trusted=trusted)

    def chosen(self, name: str, version: Version | None, *, stopped: bool = False) -> list[Decision]:
        """An operator, or the leader, has chosen this version, with all of its levels."""
        self._fresh, self._lesson_from = name, self.total + 1
        return super().chosen(name, version, stopped=stopped)

    def _use(self, name: str, reason: str) -> Use:
        self.wanted = name
        if name == self._fresh:
            self._fresh = ""
            for level in self._levels:
                if level.stopped < self._lesson_from or level.stopped == inf:
                    level.held = level.suits = True
        self._reported = self.asked
        return Use(self._reported, reason)

    def _learn(self, reason: str, *, moved: bool = False, alarmed: bool = False) -> Retrain:
        self._lesson_from = self.total
        return super()._learn(reason, moved=moved, alarmed=alarmed)

    def _look(self) -> list[Decision]:
        """Leave also the levels below the target that err too often on the current classes."""
        decisions = super()._look()
        version = self._versions.get(self.wanted)
        wrong = {level.fidelity: level.wrong for level in version.levels} if version is not None else {}
        for level in self._levels[self._target + 1 :]:
            if version is not None and level.fidelity in wrong:
                allowed = 1.0 - level.fidelity
                level.suits = self._is_good(version, wrong[level.fidelity], allowed, stays=level.suits)
        return decisions

    def _with_levels(self, decisions: list[Decision], reason: str) -> list[Decision]:
        """Add to the decisions that more or fewer levels of the same version are used."""
        if (asked := self.asked) != self._reported:
            self._reported = asked
            decisions.append(Use(asked, reason))
        return decisions


def of_each_level(would: Sequence[bool], level: int | None, same: bool, *, overload: bool) -> list[bool | None]:
    """Return what a sample says about each level, as `Levels.compared_each` takes it.

    `would` says which levels would have given the base model's answer. The client was promised `level`, and got the
    `same` answer or not, which says more than what would have been. If requests may be dropped at the last level (at
    `overload`), a sample at it says nothing about the others: those that were dropped were hard, so stricter levels
    would err on a larger share of the rest than of all.
    """
    if level is None:
        return list(would)
    found: list[bool | None] = [None] * len(would) if overload and level + 1 == len(would) else list(would)
    found[level] = same
    return found
