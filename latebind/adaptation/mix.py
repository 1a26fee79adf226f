"""Which classes were answered of late. Pure."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence

MEMORY = 100  # answers: few enough that a change shows at once, enough that a share of a third stands out


class Mix:
    """The classes of the last `memory` answers."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._last: deque[int] = deque(maxlen=memory)
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._last)

    def add(self, answer: int) -> None:
        """Take in one answer; the oldest is forgotten."""
        if len(self._last) == self._last.maxlen:
            oldest = self._last[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last.append(answer)
        self._counts[answer] += 1

    def shares(self) -> dict[int, float]:
        """Return the share of each class that was answered."""
        return {answer: count / len(self._last) for answer, count in self._counts.items()}

    def expect(self, values: Sequence[float]) -> float:
        """Return the mean of a figure that each class has, if classes go on coming like this."""
        return sum(count * values[answer] for answer, count in self._counts.items()) / max(1, len(self._last))

    def distance(self, shares: Mapping[int, float]) -> float:
        """Return by how much the share of one class differs most from `shares`; 0 before there are enough answers."""
        if len(self._last) < (self._last.maxlen or 0) // 2:
            return 0.0
        now = self.shares()
        return max(abs(now.get(answer, 0.0) - shares.get(answer, 0.0)) for answer in {*now, *shares})
