"""What a request of a model is to expect if it came now: how long it would wait, and run. Seconds."""

from msgspec import Struct


class Outlook(Struct, frozen=True, gc=False):
    """`wait` is for others and for loading; then it ends after `ends[i]`, ascending, with the chance `chances[i]`.

    The last end is that of the whole network; those before are at learned caches.
    """

    wait: float
    ends: tuple[float, ...]
    chances: tuple[float, ...]

    @property
    def whole(self) -> float:
        """Seconds to the end of the network, waiting left out: what planners without learned caches know."""
        return self.ends[-1]

    @property
    def least(self) -> float:
        """Seconds to the first place at which it may leave, waiting left out."""
        return self.ends[0]

    @property
    def mean(self) -> float:
        """Seconds on average, waiting left out."""
        return sum([end * chance for end, chance in zip(self.ends, self.chances, strict=True)])
