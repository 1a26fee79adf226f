"""What a batching policy may answer: decisions, in imperatives. The scheduler acts on them."""

from math import inf

from msgspec import Struct


class Launch(Struct, frozen=True, gc=False):
    """Begin these waiting requests of `model` together, past those that the worker has begun.

    With dummies it computes so many rows, where they are `padded`.
    """

    model: str
    requests: tuple[int, ...]
    padded: int = 0


class GoOn(Struct, frozen=True, gc=False):
    """Let no one in; run the sub-batch at `place` of the entries, of a stack always the top.

    Where `requests` are named, only they go on, and the others of that sub-batch wait where they are.
    """

    place: int = -1
    requests: tuple[int, ...] = ()


class Shed(Struct, frozen=True, gc=False):
    """Tell these requests of `model`, which wait or rest at a boundary, that they cannot be in time, then ask again."""

    model: str
    requests: tuple[int, ...]


class Wait(Struct, frozen=True, gc=False):
    """Begin nothing, where nothing has been begun; ask again at `until` (seconds) or when something has happened."""

    until: float = inf


Decision = Launch | GoOn | Shed | Wait
