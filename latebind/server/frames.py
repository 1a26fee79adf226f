"""What replies of calls that come again and again have but for the data: kept with the call, by where its rows left."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from latebind.domain.model import ModelSpec
from latebind.server.calls import Call
from latebind.server.gateway import Answer

MOST_KEPT = 64  # frames of a call

Frame: TypeAlias = tuple[bytes, ...]
Told: TypeAlias = Callable[[ModelSpec, Answer], Mapping[str, object]]


def framed(
    spec: ModelSpec, answer: Answer, call: Call, told: Told, write: Callable[[ModelSpec, Answer, Call, Told], Frame]
) -> Frame:
    """Return what `write` makes of an answer to a call that was made for `spec`, or made of the last such answer.

    `told` returns the parameters of the reply: those of a model depend on where its rows left, and on nothing else.
    """
    frames, there = call.frames, answer.spec or spec
    if frames is None or there is not spec or spec.steps:
        return write(there, answer, call, told)
    frame = frames.get(answer.left_at)
    if frame is None:
        frame = write(spec, answer, call, told)
        if len(frames) < MOST_KEPT:
            frames[answer.left_at] = frame
    return frame


def is_framed(call: Call) -> bool:
    """Tell whether its replies differ in nothing but where rows left and the data, which take always as much room."""
    return not call.id and all(
        not (wanted.classes or wanted.place or wanted.tensor.is_padded) for wanted in call.wanted
    )
