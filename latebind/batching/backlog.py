"""The work of all requests that may start, of all models together, in the order in which the policy serves them. Pure.

Admission asks what goes before a new request, and whether others would be late behind it. The order is kept in short
blocks with their sums, so that an answer takes time with the number of blocks and not of requests. What a block adds up
to is worked out when somebody asks: requests mostly start together, from the same block.
"""

from bisect import bisect_left
from math import inf

from latebind.batching.queue import Turn

BLOCK = 32  # requests; a block is cut in two when it has twice as many


class Backlog:
    """Waiting requests in the order of their turns. `at_once` workers share the work.

    Each has the seconds of `work` that it takes of a worker, and the `latest` time at which it may start to be in time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self.at_once = at_once
        self._turns: dict[int, Turn] = {}
        self._blocks: list[_Block] = []
        self._lasts: list[Turn] = []  # the last turn of each block

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def seconds(self) -> float:
        """The work of all requests, for one worker."""
        return sum([self._added_up(block).seconds for block in self._blocks])

    def turn(self, request: int) -> Turn:
        """Return the turn of a request, which must be there."""
        return self._turns[request]

    def add(self, request: int, turn: Turn, work: float, latest: float) -> None:
        """Add a request that is not there."""
        self._turns[request] = turn
        if not self._blocks:
            self._blocks.append(_Block([], [], []))
            self._lasts.append(turn)
        place = min(bisect_left(self._lasts, turn), len(self._blocks) - 1)
        block = self._blocks[place]
        at = bisect_left(block.turns, turn)
        block.turns.insert(at, turn)
        block.works.insert(at, work)
        block.latest.insert(at, latest)
        block.stale = True
        self._lasts[place] = block.turns[-1]
        if len(block.turns) >= 2 * BLOCK:
            self._blocks.insert(place + 1, block.cut())
            self._lasts.insert(place, block.turns[-1])

    def remove(self, request: int) -> None:
        """Remove a request, which must be there."""
        place, at = self._find(request)
        del self._turns[request]
        block = self._blocks[place]
        del block.turns[at], block.works[at], block.latest[at]
        block.stale = True
        if block.turns:
            self._lasts[place] = block.turns[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def weigh(self, request: int, work: float, latest: float) -> None:
        """Correct the figures of a request, which must be there."""
        place, at = self._find(request)
        block = self._blocks[place]
        block.works[at], block.latest[at], block.stale = work, latest, True

    def move(self, request: int, turn: Turn) -> None:
        """Give a request, which must be there, another turn."""
        place, at = self._find(request)
        work, latest = self._blocks[place].works[at], self._blocks[place].latest[at]
        self.remove(request)
        self.add(request, turn, work, latest)

    def before(self, turn: Turn) -> float:
        """Return the seconds of work of all whose turn comes before this one."""
        place = bisect_left(self._lasts, turn)
        work = sum([self._added_up(block).seconds for block in self._blocks[:place]])
        if place < len(self._blocks):
            block = self._blocks[place]
            work += sum(block.works[: bisect_left(block.turns, turn)])
        return work

    def spare(self, turn: Turn, work: float, now: float) -> float:
        """Return the slack of a request that would be late behind `work` more seconds at this turn; below 0.

        It is infinite where no request is made late. One that is late already does not count: what it waits for
        would otherwise be refused for nothing.
        """
        place = bisect_left(self._lasts, turn)
        ahead = sum([self._added_up(block).seconds for block in self._blocks[:place]])
        least = now + work / self.at_once
        for block in self._blocks[place:]:
            self._added_up(block)
            if block.least - ahead / self.at_once < least:
                start = ahead
                for other, seconds, latest in zip(block.turns, block.works, block.latest, strict=True):
                    slack = latest - start / self.at_once
                    if now <= slack < least and other > turn:
                        return slack - least
                    start += seconds
            ahead += block.seconds
        return inf

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        turns = [turn for block in self._blocks for turn in block.turns]
        assert turns == sorted(self._turns.values()), "the waiting work is out of order"
        assert self._lasts == [block.turns[-1] for block in self._blocks], "the last turns of blocks are off"
        for block in self._blocks:
            assert len(block.turns) == len(block.works) == len(block.latest) < 2 * BLOCK, "a block is off"

    def _added_up(self, block: "_Block") -> "_Block":
        if block.stale:
            ahead, least = 0.0, inf
            for work, latest in zip(block.works, block.latest, strict=True):
                least = min(least, latest - ahead / self.at_once)
                ahead += work
            block.seconds, block.least, block.stale = ahead, least, False
        return block

    def _find(self, request: int) -> tuple[int, int]:
        turn = self._turns[request]
        place = bisect_left(self._lasts, turn)
        return place, bisect_left(self._blocks[place].turns, turn)


class _Block:
    """Neighbours in the order. Where it is not `stale`, `seconds` is their work, and `least` the earliest time by which
    what goes before all of them must have been done for each to be in time."""

    __slots__ = ("latest", "least", "seconds", "stale", "turns", "works")

    def __init__(self, turns: list[Turn], works: list[float], latest: list[float]) -> None:
        self.turns = turns
        self.works = works
        self.latest = latest
        self.stale = True
        self.seconds = 0.0
        self.least = inf

    def cut(self) -> "_Block":
        """Remove the second half, and return it."""
        half = len(self.turns) // 2
        other = _Block(self.turns[half:], self.works[half:], self.latest[half:])
        del self.turns[half:], self.works[half:], self.latest[half:]
        self.stale = True
        return other
