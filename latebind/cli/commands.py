"""How a command is found, imported and read: only when it runs, with its options in groups.

Listing commands needs neither torch nor an extra. Options that belong together are fields of a dataclass: a command
that takes one as a parameter takes all of its options, in a panel of their own where the class has a `PANEL`.
"""

import ast
import importlib
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

STYLE: dict[str, Any] = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False, "add_completion": False}
"""The settings of every application of the command line."""


EXTRAS = {
    "PIL": "hf",
    "aiohttp": "bench",
    "grpc": "grpc",
    "grpc_health": "grpc",
    "huggingface_hub": "hf",
    "openvino": "openvino",
    "plotly": "report",
    "psutil": "bench",
    "ray": "ray",
    "safetensors": "torch",
    "scipy": "torch",
    "sklearn": "demo",
    "soundfile": "hf",
    "tokenizers": "hf",
    "torch": "torch",
    "transformers": "hf",
    "tritonclient": "grpc",
}
"""Packages by their import name, and the extra of latebind that installs each."""


class Deferred(TyperCommand):
    """A command whose help in lists is its function's docstring, read from the source without an import."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name, help=docstring(module, name.replace("-", "_")))
        self._module = module

    def load(self) -> TyperCommand | TyperGroup:
        """Import the module and return its application, else its function of this name, as a command."""
        assert self.name is not None
        found = importlib.import_module(self._module)
        app = getattr(found, "app", None)
        if app is None:
            app = typer.Typer(**STYLE)
            app.command()(flattened(getattr(found, self.name.replace("-", "_"))))
        command = typer.main.get_command(app)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command and return its context."""
        return self.load().make_context(info_name, args, parent, **extra)


class DeferredCommands(TyperGroup):
    """A group that finds each command in a module: the function of its name, or `app` where it is a group itself."""

    modules: ClassVar[Mapping[str, str]] = {}  # by the command's name, in the order of the list

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if an optional package is missing, say in one line how to install it."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (message := what_to_install(error)) is None:
                raise
            typer.echo(f"error: {message}", err=True)
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
        return Deferred(cmd_name, self.modules[cmd_name])


def docstring(module: str, function: str) -> str:
    """Return the docstring of a function, read from its module's source without importing it; "" if there is none."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found = (node for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body)
    functions = (node for node in found if isinstance(node, ast.FunctionDef) and node.name == function)
    return next((ast.get_docstring(node) or "" for node in functions), "")


def what_to_install(error: ModuleNotFoundError) -> str | None:
    """Return what is missing and how to install it; None for a module that belongs to no extra."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"{package} is not installed: pip install 'latebind[{EXTRAS[package]}]'"


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return `command` as a function with the options of each group instead of the group, for Typer to read.

    A group is a parameter whose type is a dataclass with fields annotated like parameters of commands, or
    one that is annotated with an object that has `parameters()`; the command gets an instance, or a dictionary. A name
    that occurs twice raises `ValueError`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: (hint if isinstance(hint, type) else dict, found)
        for name, hint in hints.items()
        if (found := list(_grouped(hint)))
    }

    @wraps(command)
    def with_groups(**given: Any) -> Any:
        made = {name: make(**{one.name: given.pop(one.name) for one in some}) for name, (make, some) in groups.items()}
        return command(**given, **made)

    flat: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        plain = parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        flat += groups[parameter.name][1] if parameter.name in groups else [plain]
    with_groups.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {one.name: one.annotation for one in flat}
    return with_groups


def _grouped(hint: Any) -> Iterator[Parameter]:
    """Yield a parameter for each option of a group; nothing if it is not a group."""
    if get_origin(hint) is Annotated and hasattr(hint.__metadata__[0], "parameters"):
        yield from hint.__metadata__[0].parameters()
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return
    hints, panel = get_type_hints(hint, include_extras=True), getattr(hint, "PANEL", None)
    for field in fields(hint):
        kind, option = hints[field.name], None
        if get_origin(kind) is Annotated and isinstance(kind.__metadata__[0], OptionInfo):
            option = copy(kind.__metadata__[0])
            option.rich_help_panel = panel
            kind = Annotated[get_args(kind)[0], option]
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
