"""Commands whose modules are imported when they are asked for: a list of all of them needs no torch and no extra."""

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Deferred(TyperCommand):
    """A command of which a list tells what the docstring of its function says, read from its source."""

    def __init__(self, name: str, module: str, load: Callable[[], TyperCommand | TyperGroup]) -> None:
        super().__init__(name, help=docstring(module, name.replace("-", "_")))
        self.load = load

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command, whose context this is from now on."""
        return self.load().make_context(info_name, args, parent, **extra)


def docstring(module: str, function: str) -> str:
    """Return what a function of a module that has not been imported is documented with; empty if it is not there."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found = (node for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body)
    functions = (node for node in found if isinstance(node, ast.FunctionDef) and node.name == function)
    return next((ast.get_docstring(node) or "" for node in functions), "")
