"""Which cut points to keep: neighbouring pieces are joined until each stage is worth a scheduling decision."""

from collections.abc import Sequence


def join(points: Sequence[int], seconds: Sequence[float], minimum: float) -> tuple[int, ...]:
    """Return the cut points to keep so that each stage takes at least `minimum` seconds.

    `points` are n - 1 cuts between n pieces that take `seconds`. Pieces are gathered from the front; what is left at
    the end and too short for a stage joins the last one. A minimum of 0 keeps every point.
    """
    kept: list[int] = []
    gathered = 0.0
    for point, piece in zip(points, seconds, strict=False):
        gathered += piece
        if gathered >= minimum:
            kept.append(point)
            gathered = 0.0
    gathered += sum(seconds[len(points) :])
    if kept and gathered < minimum:
        kept.pop()
    return tuple(kept)
