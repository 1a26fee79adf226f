"""Measured costs in seconds and bytes, and estimates from them, for all code that decides or simulates.

How the costs of a batch depend on the lengths of its rows is here and in `batching.costs`, nowhere else.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds as a function of batch size, measured at `batches` (ascending) and linear in between."""

    batches: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def makes_sense(self) -> bool:
        """Whether this may have been measured: ascending batches, each with seconds."""
        return (
            0 < len(self.batches) == len(self.seconds)
            and self.batches[0] >= 1
            and all(a < b for a, b in pairwise(self.batches))
            and all(map(are_seconds, self.seconds))
        )

    def at(self, batch: int) -> float:
        """Return the seconds that a batch of this size takes; beyond the last point, by the last slope."""
        place = bisect_left(self.batches, batch)
        if place < len(self.batches) and self.batches[place] == batch:
            return self.seconds[place]
        if len(self.batches) == 1:
            return self.seconds[0] * batch / self.batches[0]
        right = min(max(place, 1), len(self.batches) - 1)
        low, high = self.batches[right - 1], self.batches[right]
        slope = (self.seconds[right] - self.seconds[right - 1]) / (high - low)
        return max(0.0, self.seconds[right - 1] + slope * (batch - low))


@dataclass(frozen=True, slots=True)
class Grid:
    """Seconds as a function of batch size and length: a curve for each of `lengths` (ascending), linear in between.

    The length of a batch is that of its longest row, the product of its named dimensions, or their mean where rows are
    packed (`batch_length`). A single length holds for all; below the first one, and beyond the last, the nearest slope
    continues.
    """

    lengths: tuple[int, ...]
    curves: tuple[Curve, ...]

    @property
    def makes_sense(self) -> bool:
        """Whether this may have been measured."""
        return (
            0 < len(self.lengths) == len(self.curves)
            and self.lengths[0] >= 1
            and all(a < b for a, b in pairwise(self.lengths))
            and all(curve.makes_sense for curve in self.curves)
        )

    def at(self, batch: int, length: int = 1) -> float:
        """Return the seconds that a batch of this size takes, padded to this length."""
        place = bisect_left(self.lengths, length)
        if place < len(self.lengths) and self.lengths[place] == length:
            return self.curves[place].at(batch)
        if len(self.lengths) == 1:
            return self.curves[0].at(batch)
        right = min(max(place, 1), len(self.lengths) - 1)
        low, high = self.lengths[right - 1], self.lengths[right]
        before, after = self.curves[right - 1].at(batch), self.curves[right].at(batch)
        return max(0.0, before + (after - before) * (length - low) / (high - low))


def batch_length(lengths: Sequence[int], packs: bool) -> int:
    """Return the length that the time of a batch depends on: the longest, which the others are padded to.

    If the model `packs`, it is the mean, rounded up, because the sum of the lengths counts.
    """
    return -(-sum(lengths) // len(lengths)) if packs else max(lengths)


def length_class(length: int) -> int:
    """Return the longest length of the class that costs are kept for: one for each up to 16, then 8 for each octave.

    So costs are for lengths at most an eighth too long, and there are 56 classes up to 512.
    """
    if length <= 16:
        return length
    dropped = length.bit_length() - 4
    return -(-length >> dropped) << dropped


def at_any_length(*curves: Curve) -> tuple[Grid, ...]:
    """Return the grid of each curve that holds for all lengths."""
    return tuple([Grid((1,), (curve,)) for curve in curves])


def in_turn(curves: Sequence[Curve]) -> Curve:
    """Return the curve of several things that run one after another."""
    batches = tuple(sorted({batch for curve in curves for batch in curve.batches}))
    return Curve(batches, tuple(sum(curve.at(batch) for curve in curves) for batch in batches))


def are_seconds(value: float) -> bool:
    """Return whether this may be a measured time; NaN is not."""
    return 0.0 <= value <= MOST_SECONDS


EMPTY_STAGE = Grid((1,), (Curve((1,), (0.0,)),))
TYPICAL_STEPS = 20  # steps of a typical input
MOST_SECONDS = 86_400.0  # that a stage, a lookup or a load may take in a measurement


@dataclass(frozen=True, slots=True)
class Level:
    """A point of a model's operating curve: how surely its learned caches answer, and how many requests leave then.

    Requests at it are promised `fidelity`: the share of answers that equal the whole network's. `hit_rates[i]` is the
    share of all requests that leave at the lookup behind stage i; a stage without one has no lookup at this level.
    A share `dropped` of those that start at it may be dropped later; the answers keep the promise even then.
    """

    fidelity: float
    hit_rates: dict[int, float] = field(default_factory=dict)
    dropped: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """The measured costs of one model on one kind of worker.

    `stages[i]` are the latencies of stage i, or of one step of it where it repeats. `lookups[i]` is the curve of the
    learned cache behind stage i and `hit_rates[i]` the share of all requests that leave there; both only have the
    stages with a cache. Where lookups are `aside`, the network does not wait for them. `output_steps` are the lengths
    of answers in training data, ascending; any number of them.

    `levels` are those that the scheduler chooses among for each request, the highest first; `hit_rates` are then those
    of level `target`, at which requests with enough time run. Without levels all run at the one that was calibrated.
    After the least sure one there may be a level for more requests than can be answered (`overload`).
    """

    stages: tuple[Grid, ...]
    lookups: dict[int, Curve] = field(default_factory=dict)
    hit_rates: dict[int, float] = field(default_factory=dict)
    weight_bytes: int = 0
    load_seconds: float = 0.0
    aside: bool = False
    output_steps: tuple[int, ...] = (1,)
    levels: tuple[Level, ...] = ()
    target: int = 0

    @property
    def overload(self) -> Level | None:
        """The last level, if requests that start at it may be dropped later; else None."""
        return self.levels[-1] if self.levels and self.levels[-1].dropped else None

    @property
    def typical(self) -> int:
        """A length between the shortest and the longest that were measured, 1 where lengths do not count."""
        known = [length for grid in self.stages if len(grid.lengths) > 1 for length in grid.lengths]
        return round(sqrt(min(known) * max(known))) if known else 1

    def step(self, stage: int, batch: int, length: int = 1) -> float:
        """Return the seconds of a stage, and of the lookup that it waits for, for a batch padded to this length."""
        seconds = self.stages[stage].at(batch, length)
        lookup = None if self.aside else self.lookups.get(stage)
        return seconds if lookup is None else seconds + lookup.at(batch)

    def remaining(self, stage: int, batch: int, length: int = 1) -> float:
        """Return the seconds from the start of `stage` to the end of the network, without any exit."""
        return sum(self.step(i, batch, length) for i in range(stage, len(self.stages)))


@dataclass(frozen=True, slots=True)
class Footprint:
    """The pieces of one model, measured, never declared: the stages first, from 0, then the learned caches.

    They have `sizes` in bytes and take `seconds` to load. `behind[i]` is the stage behind which learned cache i stands,
    and `gains[i]` the seconds of work that it saves a request on average. A load takes `fixed` more seconds where
    nothing of the model is in memory. A weight that several stages read counts in each. `runs` are the seconds that a
    request runs in each stage, where known: later stages can be loaded meanwhile. A request that has started and rests
    keeps `row` bytes at most.
    """

    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    behind: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()
    fixed: float = 0.0
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


class Outlook(Struct, frozen=True, gc=False):
    """After a `wait` for other requests and for loading, a request ends in `ends[i]` with probability `chances[i]`.

    `ends` ascend. The last one is that of the whole network; the earlier ones are at learned caches. Where it is
    `strict`, nothing starts that would be late at the end of the network.
    """

    wait: float
    ends: tuple[float, ...]
    chances: tuple[float, ...]
    strict: bool = False

    @property
    def least(self) -> float:
        """Seconds that are needed after the wait."""
        return self.ends[-1] if self.strict else self.ends[0]

    @property
    def whole(self) -> float:
        """Seconds to the end of the network, without the wait: all that planners without learned caches know."""
        return self.ends[-1]
