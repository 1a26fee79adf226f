"""The reference, in Markdown, from the code: commands, configuration, functions for Python, metrics; and benchmarks."""

import ast
import inspect
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain
from textwrap import dedent
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import typer

from latebind.cli.commands import docstring
from latebind.cli.console import written
from latebind.cli.main import app
from latebind.cli.settings import SETTINGS, Setting
from latebind.cluster.merging import own_figures
from latebind.domain.config import ServeConfig
from latebind.server.metrics import FAMILIES
from research.__main__ import PARTS
from research.publish import CONDITIONS, RESULTS, command_of, read

PUBLIC = (
    "latebind.serve",
    "latebind.serving",
    "latebind.hosting.Options",
    "latebind.Dim",
    "latebind.learned.samples.Samples",
    "latebind.sequence.greedy.Rules",
)
DEFAULT = re.compile(r" Default(?: 0)?: (?P<words>.+?)\.(?= |$)")
SUFFIXES = {"CounterMetricFamily": "_total", "InfoMetricFamily": "_info"}
KINDS = {
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
    "InfoMetricFamily": "info",
    "UnknownMetricFamily": "untyped",
}


def commands() -> str:
    """Return the page of all commands and their options."""
    parts = ["# Commands", "`latebind COMMAND --help` shows the same in a terminal."]
    for name, command in _commands(typer.main.get_command(app), "latebind"):
        parts += [f"## {name}", _flowing(command.help or "")]
        if hasattr(command, "list_commands"):
            continue
        arguments = [param for param in command.params if not param.opts[0].startswith("-")]
        parts.append(f"```\n{' '.join([name, *(_argument(param) for param in arguments), '[OPTIONS]'])}\n```")
        if arguments:
            said = [(f"`{param.opts[0]}`", _cell(param.help)) for param in arguments]
            parts.append(_table(("argument", "meaning"), said))
        panels = defaultdict[str, list[Any]](list)
        for param in command.params:
            if param not in arguments:
                panels[getattr(param, "rich_help_panel", None) or "Options"].append(param)
        for title, options in panels.items():
            rows = [(_names(param), _default(param), _cell(DEFAULT.sub("", param.help or ""))) for param in options]
            parts += [f"### {title} {{ #{_slug(name, title)} }}", _table(("option", "default", "what it does"), rows)]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each command with its whole name, groups before what is in them."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        command = command.load() if hasattr(command, "load") else command
        yield f"{path} {name}", command
        if hasattr(command, "list_commands"):
            yield from _commands(command, f"{path} {name}")


def _argument(param: Any) -> str:
    return param.opts[0].upper() if param.required else f"[{param.opts[0].upper()}]"


def _names(param: Any) -> str:
    """Return an option's names and, where it takes one, its value: `--port INTEGER`."""
    names = [f"`{name}`" for name in (*param.opts, *param.secondary_opts)]
    if param.is_flag:
        return ", ".join(names)
    return f"{', '.join(names)} {param.metavar or param.type.name.upper()}" + (", repeatable" if param.multiple else "")


def _default(param: Any) -> str:
    """Return the default as the help words it, else as it is; nothing where an option has none."""
    if told := DEFAULT.search(param.help or ""):
        return _cell(told["words"])
    if param.required:
        return "required"
    value = param.default
    if value is None or callable(value) or value in ((), [], "") or value is False:
        return ""
    return f"`{value}`"


def configuration() -> str:
    """Return the page of all keys of the file that `latebind serve --config` reads."""
    told = {(setting.part, setting.key): setting for setting in SETTINGS}
    parts = [
        "# Configuration",
        "`latebind serve models --config latebind.toml` reads these keys. An option on the command line overrides its "
        "key; keys without an option can only be set here. An invalid key or value is refused, with the valid ones.",
        "```toml\n[server]\nport = 8000\ndeadline = 0.5\n\n[residency]\nbudget = 2147483648\n```",
    ]
    for part in msgspec.structs.fields(ServeConfig):
        hints, rows = get_type_hints(part.type), []
        for field in msgspec.structs.fields(part.type):
            setting = told[part.name, field.name]
            option = f"`--{setting.option.replace('_', '-')}`" if setting.option else ""
            what = _cell(DEFAULT.sub("", setting.help))
            kind = _type(hints[field.name]) + (f", {setting.unit}" if setting.unit else "")
            rows.append((f"`{field.name}`", kind, _key_default(setting, field.default), option, what))
        columns = ("key", "type and unit", "default", "option", "what it does")
        parts += [f"## [{part.name}] {{ #{part.name} }}", _table(columns, rows)]
    return "\n\n".join(parts) + "\n"


def _type(hint: Any) -> str:
    """Return what TOML calls a type."""
    names = {str: "string", int: "integer", float: "float", bool: "boolean"}
    inner = [kind for kind in get_args(hint) if kind not in (type(None), ...)]
    if get_origin(hint) is tuple:
        return f"array of {names[inner[0]]}s"
    return names[inner[0] if inner else hint]


def _key_default(setting: Setting, value: Any) -> str:
    """Return a key's default in words where the text has some, for the value may stand for what the machine has."""
    told = DEFAULT.search(setting.help)
    if told is not None and not re.fullmatch(r"[\d.]+(GiB)?|yes|no", told["words"]) and told["words"] != value:
        return _cell(told["words"])
    return "" if value in (None, "", ()) else f"`{msgspec.json.encode(value).decode()}`"


def python() -> str:
    """Return the page of what programs may import."""
    parts = [
        "# Python",
        "These are public; all else in the package may change without notice. A policy or a backend of your own is a "
        "class that [Contributing](../contributing.md) shows.",
    ]
    for path in PUBLIC:
        module, _, name = path.rpartition(".")
        found = inspect.unwrap(getattr(import_module(module), name))
        source = dedent(inspect.getsource(found))
        node: Any = ast.parse(source).body[0]
        is_class = isinstance(node, ast.ClassDef)
        code = _fields(source, node) if is_class else f"{path}({ast.unparse(node.args)})"
        parts += [f"## {path}", f"```python\n{code}\n```", _flowing(inspect.getdoc(found) or "")]
    return "\n\n".join(parts) + "\n"


def _fields(source: str, node: ast.ClassDef) -> str:
    """Return the fields of a class as its source has them, comments included."""
    lines = source.splitlines()
    assigned = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    kept = [line for one in assigned for line in lines[one.lineno - 1 : one.end_lineno]]
    return "\n".join([f"class {node.name}:", *kept])


def metrics() -> str:
    """Return the page of all metrics."""
    parts = [
        "# Metrics",
        "`GET /metrics` has these, each once it has a value. [Observability](../observability.md) says "
        "how to read them. A histogram has `_bucket`, `_sum` and `_count` behind its name.",
    ]
    rows = []
    for name, (kind, text, labels, *_) in FAMILIES.items():
        whole = name + SUFFIXES.get(kind.__name__, "")
        rows.append((f"`{whole}`", KINDS[kind.__name__], ", ".join(f"`{label}`" for label in labels), _cell(text)))
    columns = ("name", "kind", "labels", "what it is")
    for title, prefix in (("latebind", "latebind_"), ("Under Triton's names", "nv_")):
        parts += [f"## {title}", _table(columns, [row for row in rows if row[0].startswith(f"`{prefix}")])]
    told = re.findall(r"# HELP (\w+) (.*)\n# TYPE \w+ (\w+)", own_figures(replies={}, replicas=0, moved=0))
    ingress = [(f"`{name}`", kind, "`status`" if "status" in text else "", _cell(text)) for name, text, kind in told]
    parts += ["## Of the ingress, with `--on ray`", _table(columns, ingress)]
    return "\n\n".join(parts) + "\n"


def benchmarks() -> str:
    """Return the page of figures: a section for each committed result, with how it is repeated."""
    parts = [
        "# Benchmarks",
        "Each section is one file of `research/results`, as a command of `research` wrote it: the command that repeats "
        "it, the machine and the day, and its tables. What did not work is in [the log](../log/index.md). "
        "`make benchmarks` runs all of them again.",
    ]
    for file in sorted(RESULTS.glob("*.json")):
        result = read(file)
        told = result[CONDITIONS]
        name = told["command"]
        said = docstring(f"research.{PARTS[name]}", name.replace("-", "_"))
        parts += [f"## {file.stem}", _flowing(said).partition("\n\n")[0]]
        parts.append(f"```\npython -m research {shlex.join(command_of(result))}\n```")
        parts.append(". ".join([told["machine"], *(f"{peer}: {what}" for peer, what in told.get("peers", {}).items())]))
        for part in result.values():
            for title, rows in part.get("tables", {}).items():
                keys = [key for key in dict.fromkeys(chain.from_iterable(rows)) if any(row.get(key) for row in rows)]
                cells = [[_cell(written(row.get(key, ""))) for key in keys] for row in rows]
                parts += [f"### {title} {{ #{_slug(file.stem, title)} }}", _table(keys, cells)]
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(columns), " | ".join("---" for _ in columns), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(text: str | None) -> str:
    """Return a help text as a cell of a table: one line, options and file names in code."""
    plain = " ".join((text or "").replace("\\[", "[").split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]+)(?![\w`-])", r"`\1`", plain)


def _flowing(text: str) -> str:
    """Return a docstring as Markdown: what follows a double colon is a block of code."""
    text = inspect.cleandoc(text).replace("\b\n", "")
    block = re.compile(r"::\n\n((?:    .*\n?|\n)+)")
    return block.sub(lambda found: ":\n\n```python\n" + dedent(found[1]).strip() + "\n```\n\n", text + "\n").strip()


def _slug(*words: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", " ".join(words).lower()))
