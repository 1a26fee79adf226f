"""How long a request of a model can expect to wait and to run if it arrived now. Seconds."""

from msgspec import Struct


class Outlook(Struct, frozen=True, gc=False):
    """After a `wait` for other requests and for loading, it ends after `ends[i]` with probability `chances[i]`.

    `ends` ascend. The last one is that of the whole network; the earlier ones are at learned caches.
    """

    wait: float
    ends: tuple[float, ...]
    chances: tuple[float, ...]

    @property
    def whole(self) -> float:
        """Seconds to the end of the network, without the wait: all that planners without learned caches know."""
        return self.ends[-1]

    @property
    def least(self) -> float:
        """Seconds to the first exit, without the wait."""
        return self.ends[0]

    @property
    def mean(self) -> float:
        """Seconds on average, without the wait."""
        return sum([end * chance for end, chance in zip(self.ends, self.chances, strict=True)])
