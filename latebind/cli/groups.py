"""Options that belong together are fields of a dataclass; a command that takes one of these takes all of its options.

Typer reads a command's options from its signature, one parameter each. `flattened` makes such a signature from one that
has groups, so that a group is declared once, has the methods that make something of its options, and is shared.
A group whose class has a `PANEL` has a panel of that title to itself in the command's help.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return `command` as a function that has the fields of each group in the group's place, for Typer to read.

    A group is a parameter whose type is a dataclass. Its fields are annotated as parameters of commands are; those
    without a default are required. No name may stand in two groups, or as a parameter too: that raises `ValueError`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}

    @wraps(command)
    def with_groups(**given: Any) -> Any:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**given, **made)

    flat = [
        one
        for parameter in signature(command).parameters.values()
        for one in _options(parameter.replace(annotation=hints[parameter.name]))
    ]
    with_groups.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {one.name: one.annotation for one in flat}
    return with_groups


def _options(parameter: Parameter) -> Iterator[Parameter]:
    """Yield the parameter itself, or one parameter for each field of its group; all are keyword-only."""
    group = parameter.annotation
    if not (isinstance(group, type) and is_dataclass(group)):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    hints, panel = get_type_hints(group, include_extras=True), getattr(group, "PANEL", None)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=default, annotation=_titled(hints[field.name], panel)
        )


def _titled(hint: Any, panel: str | None) -> Any:
    """Return the annotation of an option so that its help stands in this panel; arguments have one of their own."""
    if panel is None or get_origin(hint) is not Annotated:
        return hint
    kind, said = get_args(hint)
    if not isinstance(said, OptionInfo):
        return hint
    titled = copy(said)
    titled.rich_help_panel = panel
    return Annotated[kind, titled]
