"""Commands whose modules are imported only when they run, so that listing them needs no torch and no extra."""

import ast
import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from latebind.cli.extras import what_to_install
from latebind.cli.groups import flattened

STYLE: dict[str, Any] = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False, "add_completion": False}
"""How every application of the command line speaks."""


class Deferred(TyperCommand):
    """A command of which a list tells what the docstring of its function says, read from its source."""

    def __init__(self, name: str, module: str, load: Callable[[], TyperCommand | TyperGroup]) -> None:
        super().__init__(name, help=docstring(module, name.replace("-", "_")))
        self.load = load

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command, whose context this is from now on."""
        return self.load().make_context(info_name, args, parent, **extra)


class DeferredCommands(TyperGroup):
    """A group that finds each command in a module: the function of its name, or `app` where it is a group itself."""

    modules: ClassVar[Mapping[str, str]] = {}  # by the command's name, in the order of the list

    def invoke(self, ctx: Any) -> Any:
        """Run the command; where a package is missing that is optional, say in one line how to get it."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (said := what_to_install(error)) is None:
                raise
            typer.echo(f"error: {said}", err=True)
            raise typer.Exit(2) from error

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of the table."""
        del ctx
        return list(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Deferred | None:
        """Return the command of this name, or None if there is no such command."""
        del ctx
        if cmd_name not in self.modules:
            return None
        module = self.modules[cmd_name]
        return Deferred(cmd_name, module, lambda: _imported(cmd_name, module))


def _imported(name: str, module: str) -> TyperCommand | TyperGroup:
    """Import a module and return its application, else its function of this name, as a command."""
    found = importlib.import_module(module)
    app = getattr(found, "app", None)
    if app is None:
        app = typer.Typer(**STYLE)
        app.command()(flattened(getattr(found, name.replace("-", "_"))))
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)
    command.name = name
    return command


def docstring(module: str, function: str) -> str:
    """Return the docstring of a function, read from its module's source without importing it; "" if there is none."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found = (node for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body)
    functions = (node for node in found if isinstance(node, ast.FunctionDef) and node.name == function)
    return next((ast.get_docstring(node) or "" for node in functions), "")
