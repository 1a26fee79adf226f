"""What documents name: links, paths, commands and options that there are; and the index names all of them."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from latebind.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
OF_TODAY = [page for page in PAGES if page.name not in {"LOG.md", "CHANGELOG.md"}]  # these tell of days gone by
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)")
PATH = re.compile(r"`((?:latebind|tests|examples|docs|deploy)/[\w./-]+\.(?:py|md|toml|yaml|sh|service|js))`")
COMMAND = re.compile(r"(?<![\w/-])(?<!generic )latebind ((?:bench )?[a-z][a-z-]*)((?:(?!latebind )[^`|])*)")
INSTALLED = re.compile(r"pip\s+install\s+(\S*?\w*\[[^\]]*\][\"']?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


@cache
def options(name: str) -> set[str]:
    """Return the options of a command, such as `serve` or `bench load`; only that command is imported."""
    found: Any = typer.main.get_command(app)
    for word in name.split():
        found = found.get_command(None, word)
        assert found is not None, f"there is no latebind {name}"
        found = found.load()
    return {word for option in found.params for word in (*option.opts, *option.secondary_opts)} | {"--help"}


def code(page: Path) -> list[str]:
    """Return the blocks and the words in code, lines that go on joined."""
    text = page.read_text().replace("\\\n", " ")
    blocks = [line for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return [line.partition("  #")[0] for line in blocks] + re.findall(r"`(latebind [^`]*)`", text)


@pytest.mark.parametrize("page", OF_TODAY, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_to_something(page: Path) -> None:
    text = page.read_text()
    gone = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert gone + [path for path in PATH.findall(text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", OF_TODAY, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in code(page):
        for name, words in COMMAND.findall(line):
            assert set(OPTION.findall(words)) <= options(name), line


@pytest.mark.parametrize("page", OF_TODAY, ids=lambda page: str(page.relative_to(ROOT)))
def test_extras_that_are_to_be_installed_exist_and_are_quoted(page: Path) -> None:
    # `.` is a checkout of latebind; brackets without quotes are a pattern to some shells
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in INSTALLED.findall(page.read_text()):
        package, _, names = word.strip("'").rstrip("]").partition("[")
        assert (word[0], word[-1]) == ("'", "'"), word
        assert package not in {"latebind", "."} or set(names.split(",")) <= set(extras), word


def test_the_check_bites(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`latebind serve models --fast`\n\n```\nlatebind bench nothing\n```\n")
    assert [COMMAND.findall(line)[0][0] for line in code(page)] == ["bench nothing", "serve"]
    assert "--fast" not in options("serve")
    with pytest.raises(AssertionError, match="there is no latebind bench nothing"):
        options("bench nothing")


def test_the_index_names_every_page() -> None:
    listed = {(ROOT / "docs" / link).resolve() for link in LINK.findall((ROOT / "docs" / "README.md").read_text())}
    pages = {page.resolve() for page in (ROOT / "docs").glob("*.md")} - {(ROOT / "docs" / "README.md").resolve()}
    assert pages <= listed
