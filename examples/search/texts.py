"""The texts that are searched: those of a file, or what Python's standard library says of its functions and classes."""

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path

from latebind.domain.errors import ConfigError
from latebind.folders.rows import TABLES, read_texts

LONGEST = 2_000  # characters of a text that a result shows
NOT_FOR_USERS = ("idlelib", "lib2to3", "test", "turtledemo")


@dataclass(frozen=True, slots=True)
class Text:
    """A text to find, and its title, "" if it has none."""

    title: str
    text: str

    @property
    def read(self) -> str:
        """What the model reads: the words of the title too."""
        return f"{self.title.replace('.', ' ').replace('_', ' ')}: {self.text}" if self.title else self.text


def of_file(path: Path) -> list[Text]:
    """Return the lines of a file that are not empty, or the column `text` of a table. Raises `ConfigError`."""
    if path.suffix in TABLES:
        return [Text("", text) for text in read_texts(path)]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8 ({error})") from None
    found = [Text("", line.strip()) for line in lines if line.strip()]
    if not found:
        raise ConfigError(f"{path} has no texts: write one in each line")
    return found


def of_python() -> list[Text]:
    """Return the first paragraph that each public module, class and function of the standard library says of itself.

    The files are parsed and nothing of them is run.
    """
    place = Path(sysconfig.get_path("stdlib"))
    found = list[Text]()
    for file in sorted([*place.glob("[a-z]*.py"), *place.glob("[a-z]*/__init__.py")]):
        name = file.parent.name if file.name == "__init__.py" else file.stem
        if name not in NOT_FOR_USERS:
            found += _said(name, ast.parse(file.read_bytes()))
    return found


def _said(name: str, tree: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[Text]:
    paragraph = cleandoc(ast.get_docstring(tree) or "").partition("\n\n")[0]
    if paragraph:
        yield Text(name, " ".join(paragraph.split())[:LONGEST])
    for part in tree.body if not isinstance(tree, ast.FunctionDef) else ():
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and not part.name.startswith("_"):
            yield from _said(f"{name}.{part.name}", part)
