"""Reply templates: all of a reply except the data. Calls that come again and again keep theirs, by where rows left."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from latebind.domain.model import ModelSpec
from latebind.server.calls import Call
from latebind.server.gateway import Answer

MOST_KEPT = 64  # templates of a call

Template: TypeAlias = tuple[bytes, ...]
ReplyParameters: TypeAlias = Callable[[ModelSpec, Answer], Mapping[str, object]]
Write: TypeAlias = Callable[[ModelSpec, Answer, Call, ReplyParameters], Template]


def template_of(
    spec: ModelSpec,
    answer: Answer,
    call: Call,
    reply_parameters: ReplyParameters,
    write: Write,
) -> Template:
    """Return the template of the reply to a call that was made for `spec`: a kept one, or a new one that `write` makes.

    The `reply_parameters` of a model depend on where the rows left and on nothing else, so that is what a kept template
    is found by. Queries, and calls that another version answered, always get a new one.
    """
    templates, there = call.templates, answer.spec or spec
    if templates is None or there is not spec or spec.steps:
        return write(there, answer, call, reply_parameters)
    template = templates.get(answer.left_at)
    if template is None:
        template = write(spec, answer, call, reply_parameters)
        if len(templates) < MOST_KEPT:
            templates[answer.left_at] = template
    return template


def has_template(call: Call) -> bool:
    """Tell whether replies to a call differ only in where rows left and in data that always have the same size."""
    return not call.id and all(
        not (wanted.classes or wanted.place or wanted.tensor.is_padded) for wanted in call.wanted
    )
