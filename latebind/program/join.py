"""Chooses which cut points to keep: neighbouring pieces are joined into stages of about the same cost."""

from collections.abc import Sequence
from itertools import accumulate

NEGLIGIBLE = 0.05  # a piece with less than this share of a stage's minimum does not begin a stage


def join_by_bytes(points: Sequence[int], sizes: Sequence[int], least: int) -> tuple[int, ...]:
    """Return the cut points to keep so that every stage has weights of at least `least` bytes, if the model has.

    `points` are the n - 1 cuts between n pieces with weights of `sizes` bytes. A stage ends as soon as it has enough,
    but includes a following piece with hardly any weights (a norm). What is left at the end goes to the last stage.
    """
    kept: list[int] = []
    begun, left = 0, sum(sizes)
    for point, size, following in zip(points, sizes[:-1], sizes[1:], strict=True):
        begun, left = begun + size, left - size
        if begun >= least and left >= least and following >= least * NEGLIGIBLE:
            kept.append(point)
            begun = 0
    return tuple(kept)


def join_by_seconds(points: Sequence[int], seconds: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the cut points to keep so that there are at most `stages` stages of about the same time.

    `points` are the n - 1 cuts between n pieces that take `seconds`. Each kept point is the one nearest to where a
    stage should end.
    """
    ends = list(accumulate(seconds))
    if stages > len(points):
        return tuple(points)
    kept = {
        min(range(len(points)), key=lambda place: abs(ends[place] - ends[-1] * part / stages))
        for part in range(1, stages)
    }
    return tuple(points[place] for place in sorted(kept))
