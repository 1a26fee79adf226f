"""What documents name: links, paths, commands and options that there are; and the index names all of them."""

import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from latebind.cli.main import app
from research.__main__ import app as research

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
OF_TODAY = [
    page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "log"
]  # these tell of days gone by
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)")
PATH = re.compile(r"`((?:latebind|research|tests|examples|docs|deploy)/[\w./-]+\.(?:py|md|toml|yaml|sh|service|js))`")
COMMAND = re.compile(
    r"(?<![\w/-])(?<!generic )(?:latebind |python -m (?=research ))((?:bench |research )?[a-z][a-z-]*)"
    r"((?:(?!latebind |research )[^`|])*)"
)
INSTALLED = re.compile(r"pip\s+install\s+(\S*?\w*\[[^\]]*\][\"']?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
WORD = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|js|toml|yaml|sh|service|css)")
FOLDER = re.compile(r"[\w-]+(?:/[\w-]+)*/|[a-z_]+(?:/[a-z_]+)+")
NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\([^)]*\))?")
QUERIES = ("models/traffic.query.toml", "models/classify.query.toml", "NAME.query.toml")
THE_READERS_OWN = {"mymodels.py", "direct.py", *QUERIES}
TOPS = ("latebind", "research", "tests", "examples", "docs", "deploy")
OF_OTHERS = {"--build-arg", "--unix-socket", "--model-control-mode", "--request-count"}


@cache
def options(name: str) -> set[str]:
    """Return the options of a command, such as `serve` or `bench load`; only that command is imported."""
    words = name.split()
    evaluation = words[0] == "research"
    found: Any = typer.main.get_command(research if evaluation else app)
    for word in words[evaluation:]:
        found = found.get_command(None, word)
        assert found is not None, f"there is no latebind {name}"
        found = found.load()
    return {word for option in found.params for word in (*option.opts, *option.secondary_opts)} | {"--help"}


def code(page: Path) -> list[str]:
    """Return the blocks and the words in code, lines that go on joined."""
    text = page.read_text().replace("\\\n", " ")
    blocks = [line for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return [line.partition("  #")[0] for line in blocks] + re.findall(
        r"`((?:latebind|python -m research) [^`]*)`", text
    )


@cache
def commands() -> tuple[str, ...]:
    """Return the names of all commands but the benchmarks, of which each is imported only where a page names it."""
    found: Any = typer.main.get_command(app)
    return tuple(name for name in found.list_commands(None) if name != "bench")


@cache
def tree() -> tuple[str, ...]:
    """Return the paths of all files and folders that a page may name, each beginning with a slash."""
    tops = [path for path in ROOT.iterdir() if path.is_file()]
    below = [path for top in TOPS for path in (ROOT / top).rglob("*")]
    found = [*tops, *below, *(ROOT / top for top in TOPS)]
    return tuple(f"/{path.relative_to(ROOT)}" for path in found if "__pycache__" not in path.parts)


def is_there(name: str) -> bool:
    """Return whether a path ends so: pages name files from the root, the package or the folder they are about."""

    wanted = "/" + name.rstrip("/")
    ends = (wanted,) if name.endswith("/") else (wanted, wanted + ".py")
    return any(path.endswith(ends) for path in tree())


@cache
def identifiers() -> frozenset[str]:
    """Return every name that is written in the package's code."""
    return frozenset(
        word
        for top in ("latebind", "research")
        for path in (ROOT / top).rglob("*.py")
        for word in re.findall(r"\w+", path.read_text())
    )


@cache
def known_options() -> frozenset[str]:
    """Return the options of commands and examples; those of benchmarks as their code writes them, to import none."""
    named = {option for name in commands() for option in options(name)}
    sources = [*(ROOT / "latebind" / "cli" / "bench").glob("*.py"), *(ROOT / "research").rglob("*.py")]
    benchmarks = "\n".join(path.read_text() for path in sources)
    written = {
        f"--{word.replace('_', '-')}" for word in re.findall(r"\b(\w+): (?:Annotated\[|[A-Z]\w+ = )", benchmarks)
    }
    examples = "\n".join(path.read_text() for path in (ROOT / "examples").rglob("*.py"))
    return frozenset(named | written | set(re.findall(r'"(--[a-z-]+)"', benchmarks + examples)) | OF_OTHERS)


def words(page: Path) -> list[str]:
    """Return what stands in backticks within the text, blocks left out."""
    return WORD.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))


def gone(page: Path) -> list[str]:
    """Return the files, folders and options in backticks that there are not."""
    missing = []
    for word in words(page):
        if (FILE.fullmatch(word) or FOLDER.fullmatch(word)) and word not in THE_READERS_OWN and not is_there(word):
            missing.append(word)
        if word.startswith("--") and not set(OPTION.findall(word)) <= known_options():
            missing.append(word)
    return missing


def each_page(test: Callable[[Path], None]) -> Any:
    """Ask a test of each page of today."""
    return pytest.mark.parametrize("page", OF_TODAY, ids=lambda page: str(page.relative_to(ROOT)))(test)


@each_page
def test_files_folders_and_options_in_the_text_exist(page: Path) -> None:
    assert gone(page) == []


def unknown(page: Path) -> list[str]:
    """Return the classes, functions and attributes in backticks that are written nowhere in the package."""
    found = [NAME.fullmatch(word) for word in words(page) if not FILE.fullmatch(word)]
    return [one[0] for one in found if one and not set(one[1].split(".")) <= identifiers()]


def test_names_of_the_architecture_are_those_of_the_code() -> None:
    assert unknown(ROOT / "docs" / "architecture.md") == []


def test_the_tree_of_the_architecture_is_that_of_the_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = text[text.index("```\nlatebind/\n") :].split("```")[1]
    told = set(re.findall(r"(?:^|(?<=  ))(\w+)/", block.partition("latebind/")[2], re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "latebind").glob("*/__init__.py")}
    assert packages <= told
    assert all(is_there(name) for name in told)


@each_page
def test_links_and_paths_lead_to_something(page: Path) -> None:
    text = page.read_text()
    gone = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert gone + [path for path in PATH.findall(text) if not (ROOT / path).exists()] == []


@each_page
def test_links_lead_to_headings_that_there_are(page: Path) -> None:
    gone = [f"{link}#{anchor}" for link, anchor in ANCHOR.findall(page.read_text())
            if anchor not in anchors((page.parent / link) if link else page)]  # fmt: skip
    assert gone == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and Python-Markdown make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in code(page):
        for name, words in COMMAND.findall(line):
            assert set(OPTION.findall(words)) <= options(name), line


@each_page
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
    page.write_text("`engine/nothing.py`, `nowhere/`, `batching/`, `--fast`, `--slots`, `Frontend.sayed`, `Frontend`")
    assert gone(page) == ["engine/nothing.py", "nowhere/", "--fast"]
    assert unknown(page) == ["Frontend.sayed"]


def test_the_index_names_every_page() -> None:
    listed = {(ROOT / "docs" / link).resolve() for link in LINK.findall((ROOT / "docs" / "README.md").read_text())}
    pages = {page.resolve() for page in (ROOT / "docs").glob("*.md")} - {(ROOT / "docs" / "README.md").resolve()}
    assert pages <= listed
