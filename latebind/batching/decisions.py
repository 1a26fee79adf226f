"""The decisions that a batching policy may return. The scheduler acts on them."""

from math import inf

from msgspec import Struct


class Launch(Struct, frozen=True, gc=False):
    """Start these waiting requests of `model` together, ahead of the sub-batches that the worker has started."""

    model: str
    requests: tuple[int, ...]


class GoOn(Struct, frozen=True, gc=False):
    """Start nothing new; run the sub-batch at `place` of the entries, which in a stack is always the top.

    If `requests` are named, only they go on, and the other members of that sub-batch wait at their stage.
    """

    place: int = -1
    requests: tuple[int, ...] = ()


class Shed(Struct, frozen=True, gc=False):
    """End these requests of `model`, which wait or rest at a stage boundary, as too late; then ask the policy again."""

    model: str
    requests: tuple[int, ...]


class Wait(Struct, frozen=True, gc=False):
    """Start nothing, on a worker without started work; ask again at time `until` (seconds) or after the next event."""

    until: float = inf


Decision = Launch | GoOn | Shed | Wait
