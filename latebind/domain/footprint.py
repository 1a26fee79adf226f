"""The bytes that each piece of a model takes in memory, and the seconds to load it: measured, never declared.

Pieces are numbered: the stages first, from 0, then the learned caches in the order of their stages.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Footprint:
    """The pieces of one model: `sizes` in bytes and the `seconds` that each takes to load.

    `behind[i]` is the stage behind which learned cache i stands, and `gains[i]` the seconds of work that it saves a
    request on average. A load takes `fixed` more seconds where nothing of the model is in memory. Any multiple of
    `grain` bytes from the start of a stage may be in memory; 0: all of it or nothing. A weight that several stages read
    counts in each. `runs` are the seconds that a request runs in each stage, where known: later stages can be loaded
    meanwhile. A request that has started and rests keeps `row` bytes at most.
    """

    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    behind: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()
    fixed: float = 0.0
    grain: int = 0
    runs: tuple[float, ...] = ()
    row: int = 0

    @property
    def stages(self) -> int:
        """The number of stages, without which the model does not run."""
        return len(self.sizes) - len(self.behind)

    @property
    def size(self) -> int:
        """The bytes of all pieces."""
        return sum(self.sizes)

    @property
    def penalty(self) -> float:
        """The seconds that the whole model takes to load: the miss penalty P of mCache (equation 1)."""
        return self.fixed + sum(self.seconds)


NOTHING = Footprint()  # for a model whose memory is not counted
