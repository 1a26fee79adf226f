"""Options that are declared in groups, as a user types them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from latebind.cli.commands import flattened


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    folder: Annotated[str, typer.Argument(help="A folder.")]
    rows: Annotated[int, typer.Option(help="How many.")]
    names: Annotated[list[str] | None, typer.Option("--name", help="Which.")] = None


@dataclass(frozen=True, slots=True)
class Same:
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    PANEL: ClassVar = "Chance"

    draws: Annotated[int, typer.Option(help="How many draws.")] = 1


def command(first: int, where: Where, same: Same, drawn: Drawn, last: bool = False) -> None:
    """Print what was given."""
    print(first, where.folder, where.rows, where.names, same.seed, drawn.draws, last)


def run(of: Callable[..., None], *words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(flattened(of))
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_what_is_given_arrives_in_its_group_and_what_is_left_out_has_the_default_of_its_field() -> None:
    words = ("5", "here", "--rows", "3", "--name", "a", "--name", "b", "--seed", "7", "--last")
    assert run(command, *words) == (0, "5 here 3 ['a', 'b'] 7 1 True\n")
    assert run(command, "5", "here", "--rows", "3") == (0, "5 here 3 None 0 1 False\n")
    code, output = run(command, "5", "here")
    assert (code, "--rows" in output) == (2, True)  # it has no default


def test_help_lists_the_options_of_a_group_in_its_place_and_in_its_panel_if_it_has_one() -> None:
    _, output = run(command, "--help")
    assert "Print what was given." in output
    options, _, chance = output.partition(" Chance ")
    assert sorted(places := [options.index(word) for word in ("How many.", "--name", "--seed", "--last")]) == places
    assert "--draws" in chance
    assert "--seed" not in chance


def test_a_name_in_two_groups_is_refused() -> None:
    def twice(some: Same, others: Same) -> None:
        del some, others

    with pytest.raises(ValueError, match="duplicate parameter name: 'seed'"):
        flattened(twice)
