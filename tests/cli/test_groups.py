"""Options that are declared in groups, as a user types them."""

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

    def told(self) -> str:
        return f"{self.folder} {self.rows} {self.names}"


@dataclass(frozen=True, slots=True)
class Same:
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    PANEL: ClassVar = "Chance"

    draws: Annotated[int, typer.Option(help="How many draws.")] = 1
    place: Annotated[str, typer.Argument(help="A place.")] = ""


def command(first: int, where: Where, same: Same, last: bool = False) -> None:
    """Print what was given."""
    print(first, where.told(), same.seed, last)


def run(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(flattened(command))
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_what_is_given_arrives_in_its_group() -> None:
    words = ("5", "here", "--rows", "3", "--name", "a", "--name", "b", "--seed", "7", "--last")
    assert run(*words) == (0, "5 here 3 ['a', 'b'] 7 True\n")


def test_what_is_left_out_has_the_default_of_its_field() -> None:
    assert run("5", "here", "--rows", "3") == (0, "5 here 3 None 0 False\n")


def test_a_field_without_a_default_is_required() -> None:
    code, output = run("5", "here")
    assert code == 2
    assert "--rows" in output


def test_help_lists_the_options_of_a_group_in_its_place() -> None:
    _, output = run("--help")
    assert [output.index(word) for word in ("How many.", "--name", "--seed", "--last")] == sorted(
        output.index(word) for word in ("How many.", "--name", "--seed", "--last")
    )
    assert "Print what was given." in output


def test_a_group_with_a_title_has_a_panel_of_its_own_and_others_have_none() -> None:
    def titled(drawn: Drawn, same: Same) -> None:
        del drawn, same

    app = typer.Typer()
    app.command()(flattened(titled))
    arguments, _, rest = CliRunner().invoke(app, ["--help"]).output.partition(" Options ")
    options, _, chance = rest.partition(" Chance ")
    assert "place" in arguments
    assert "--seed" in options
    assert "--draws" in chance
    assert "--seed" not in chance


def test_a_name_in_two_groups_is_refused() -> None:
    def twice(some: Same, others: Same) -> None:
        del some, others

    with pytest.raises(ValueError, match="duplicate parameter name: 'seed'"):
        flattened(twice)
