"""How large the networks are: a share of what is published, and for tests narrower as well."""

from dataclasses import dataclass

BENCH_SHARE = 0.37  # of the public checkpoints: the seven together have 3 GB instead of 8


@dataclass(frozen=True, slots=True)
class Size:
    """A network with `share` of the published one's blocks and words, its width divided by `narrower`.

    Blocks keep their size unless they are narrower, so that stages weigh what they weigh in the published network.
    Pictures are `side` pixels wide and high.
    """

    share: float = BENCH_SHARE
    narrower: int = 1
    side: int = 224

    def blocks(self, published: int) -> int:
        """Return how many blocks there are of so many, one at least."""
        return max(1, round(self.share * published))

    def words(self, published: int) -> int:
        """Return how many words the network knows."""
        return max(1, round(self.share * published))

    def width(self, published: int) -> int:
        """Return how many channels or features there are of so many."""
        return published // self.narrower


TINY = Size(share=0.1, narrower=8, side=64)
BENCH = Size()
SIZES = {"tiny": TINY, "bench": BENCH}
