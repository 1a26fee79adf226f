"""The results of a part of a benchmark: tables to print, figures to save, and plots for a page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from latebind.bench.report import Plot, write_plots
from latebind.bench.rounds import Progress, interrupted
from latebind.cli.console import Rows, progress, save, show_tables

Part = TypeVar("Part", bound=StrEnum)
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Told:
    """Tables by title, a function that draws plots for a page, and figures to save as JSON."""

    tables: Mapping[str, Rows]
    draw: Callable[[], Sequence[Plot]] = tuple
    raw: object = None


ByPart = Mapping[Part, Callable[[Asked, Progress], Told]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is written of the parts that were run: a page with this title and text, and `figures` of them as JSON."""

    page: Path | None
    title: str
    text: str
    json_file: Path | None
    figures: Callable[[Mapping[Any, Told]], object]

    def write(self, found: Mapping[Any, Told]) -> None:
        """Write tables, plots and figures of these parts to the files that are named."""
        if self.page is not None:
            tables = [rows for one in found.values() for rows in one.tables.values()]
            write_plots(self.page, self.title, self.text, tables, [p for one in found.values() for p in one.draw()])
        save(self.json_file, self.figures(found))


def tell_parts(parts: Iterable[Part], runs: ByPart[Part, Asked], asked: Asked, files: Files) -> dict[Part, Told]:
    """Run the parts that were asked for, each with a progress bar; print and write what each found as it ends.

    Whoever interrupts has all that was found by then, in the files too.
    """
    found: dict[Part, Told] = {}
    for part in parts:
        with progress(part) as tell:
            found[part] = runs[part](asked, tell)
        show_tables(found[part].tables)
        files.write(found)
        if interrupted():
            break
    return found
