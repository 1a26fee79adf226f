"""What lists say of commands that nobody has imported."""

import sys
from contextlib import suppress

import pytest

from latebind.cli.commands import docstring
from latebind.cli.main import COMMANDS, app
from tests.forked import printed_by

HEAVY = ("torch", "numpy", "scipy", "uvloop", "aiohttp")


def main(words: list[str]) -> None:
    """Run a command in a process that has imported nothing, and say what heavy packages it imports."""
    for package in HEAVY:
        sys.modules.pop(package, None)
    with suppress(SystemExit):
        app(words)
    print("imported:", *(package for package in HEAVY if package in sys.modules))


@pytest.mark.parametrize("words", [["--help"], ["bench", "--help"]], ids=["latebind", "bench"])
def test_a_list_of_commands_imports_none_of_them(words: list[str]) -> None:
    assert printed_by("tests.cli.test_deferred", *words).splitlines()[-1] == "imported:"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_listed_with_the_first_words_of_its_own_docstring(name: str) -> None:
    said = docstring(f"latebind.cli.{name}", name)
    assert said
    assert " ".join(said.split()[:6]) in " ".join(printed_by("tests.cli.test_deferred", "--help").split())


def test_of_a_function_that_is_not_there_nothing_is_said() -> None:
    assert docstring("latebind.cli.main", "gone") == ""
