"""Which levels of a model's operating curve may be used, as samples show how each answers. Pure: decides, does nothing.

Every sample tells of every level: what a level would answer follows from the scores of the lookups, at whichever level
the request ran. So the levels of a crowd have been watched when the crowd comes, and one that is stopped is heard on.
Nothing is made here: a level is used as it was calibrated, or not at all.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from latebind.adaptation.controller import (
    BUILT,
    ESTABLISHED,
    FIRST_LESSON,
    FULL_DEPTH,
    GROWTH,
    NEWEST_GAP,
    SHOWN,
    TOLD,
    Decision,
    FidelityWatch,
    Use,
    Version,
    down_to,
)

Shows = Callable[[int, int, float], bool]  # whether so many wrong answers among so many show this fidelity


@dataclass(slots=True)
class Level:
    """One level: its watch, and what was compared since the start or its last alarm.

    It is `held` to what it promises unless an alarm says otherwise; `again` is after how many comparisons it is asked
    next whether these show it again.
    """

    fidelity: float
    watch: FidelityWatch
    last: deque[bool] = field(default_factory=lambda: deque(maxlen=TOLD))
    held: bool = True
    compared: int = 0
    wrong: int = 0
    alarms: int = 0
    again: int = FIRST_LESSON

    def stop(self) -> None:
        """Begin to count anew, until so much is compared that the level is shown again."""
        self.held, self.compared, self.wrong, self.again = False, 0, 0, FIRST_LESSON

    def hear(self, same: bool, *, at: int, gap: float, shows: Shows) -> None:
        """Take in whether the level would have given answer `at` as the base model did."""
        self.last.append(same)
        self.compared += 1
        self.wrong += not same
        if self.watch.compared(same, at=at, gap=gap, established=self.compared >= ESTABLISHED):
            self.alarms += self.held  # one that is stopped already has come to be no better
            self.stop()
        elif not self.held and self.compared >= self.again:
            self.again = round(GROWTH * self.again)
            self.held = shows(self.wrong, self.compared, self.fidelity)


class Levels:
    """Decides for one model that is served with a floor. Feed it every answer and every comparison, as a `Controller`.

    `fidelities` are those of the levels below the whole network, the surest first. An alarm at one stops it and all
    below it, for what they were calibrated on no longer speaks for the traffic. It is used again once the samples since
    show what it promises, and all that is surer is used; `shows` tells whether they do.
    """

    def __init__(self, fidelities: Sequence[float], wanted: str, shows: Shows, *, stopped: bool = False) -> None:
        self._levels = [Level(one, FidelityWatch(one, among=len(fidelities))) for one in fidelities]
        self._shows = shows
        self._stopped = stopped  # by an operator
        self.total = 0  # answers in all
        self._compared_at = 0
        self._gap = 1.0  # mean answers between two comparisons
        name, least = down_to(wanted)
        for level in self._levels:
            if name != BUILT or level.fidelity < least:
                level.stop()

    @property
    def levels(self) -> Sequence[Level]:
        """All levels below the whole network, the surest first."""
        return self._levels

    @property
    def open(self) -> int:
        """How many of them may be used: the surest ones, up to the first that is stopped."""
        if self._stopped:
            return 0
        return next((place for place, level in enumerate(self._levels) if not level.held), len(self._levels))

    @property
    def wanted(self) -> str:
        """The version to use, with the least fidelity that it may promise where some levels are stopped."""
        used = self.open
        if used == len(self._levels):
            return BUILT
        return f"{BUILT}@{self._levels[used - 1].fidelity:g}" if used else FULL_DEPTH

    @property
    def alarms(self) -> int:
        """How many there were, at any level."""
        return sum([level.alarms for level in self._levels])

    def answered(self, answer: int) -> list[Decision]:
        """Count one answer, of whatever class."""
        del answer
        self.total += 1
        return []

    def compared(self, same: Sequence[bool], *, at: int) -> list[Decision]:
        """Take in whether each level would have given answer `at`, counted from 1, as the base model did."""
        before = self.open
        self._gap += NEWEST_GAP * (at - self._compared_at - self._gap) if self._compared_at > 0 else 0.0
        self._compared_at = at
        for level, right in zip(self._levels, same, strict=True):
            level.hear(right, at=at, gap=self._gap, shows=self._shows)
        used = self.open
        if used == before:
            return []
        if used > before:
            return [Use(self.wanted, SHOWN)]
        fell = f"{self._levels[used].fidelity:g}"
        return [Use(self.wanted, f"fidelity fell under {fell}: no request runs at that level until it is shown again")]

    def waited(self, now: float, interval: float) -> list[Decision]:
        """Nothing is made, so nothing is due."""
        del now, interval
        return []

    def chosen(self, name: str, version: Version | None, *, stopped: bool = False) -> list[Decision]:
        """An operator, or who leads, wants all levels, or with None the whole network.

        Unless an operator has `stopped` exits, levels are used again once they are shown.
        """
        del name
        self._stopped = stopped
        for level in self._levels:
            if version is None:
                level.stop()
            else:
                level.held = True
        return [Use(self.wanted, "it was asked for")]

    def unusable(self, name: str) -> list[Decision]:
        """The engine cannot use this version: the network runs whole until levels are shown again."""
        if name != self.wanted or name == FULL_DEPTH:
            return []
        for level in self._levels:
            level.stop()
        return [Use(FULL_DEPTH, f"version {name} cannot be used")]
