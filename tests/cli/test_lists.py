"""What lists say of commands that nobody has imported, and what works in an installation without extras."""

import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from latebind.cli.bench import Benchmarks
from latebind.cli.commands import EXTRAS, docstring, what_to_install
from latebind.cli.main import Commands, app
from tests.forked import printed_by

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
DISTRIBUTIONS = {"PIL": "pillow", "grpc": "grpcio", "grpc_health": "grpcio-health-checking", "sklearn": "scikit-learn"}
HEAVY = ("torch", "numpy", "scipy", "uvloop")


def main(words: list[str]) -> None:
    """Run a command where no extra is installed and nothing heavy is imported, and say what heavy it imports."""
    for package in HEAVY:
        sys.modules.pop(package, None)
    for package in EXTRAS:
        sys.modules[package] = None  # type: ignore[assignment]  # as if it were not there
    sys.stderr = sys.stdout
    with suppress(SystemExit):
        app(words)
    print("imported:", *(package for package in HEAVY if sys.modules.get(package) is not None))


@pytest.mark.parametrize("words", [(), ("bench",)])
def test_a_list_of_commands_imports_none_and_says_of_each_what_its_docstring_says(words: tuple[str, ...]) -> None:
    *_, imported = printed_by("tests.cli.test_lists", *words, "--help").splitlines()
    assert imported == "imported:"
    said = " ".join(printed_by("tests.cli.test_lists", *words, "--help").split())
    modules = (Benchmarks if words else Commands).modules
    for name, module in modules.items():
        told = docstring(module, name) or docstring(module, module.rpartition(".")[2])
        assert told
        assert f"│ {name}" in said
        assert " ".join(told.split()[:6]) in said


OPTIONS = """
import sys
from latebind.cli.main import app
for words in {commands!r}:
    try:
        app(words)
    except SystemExit as ended:
        print("ended", ended.code)
print("imported:", *({{"torch", "transformers", "openvino"}} & set(sys.modules)))
"""


def test_options_are_told_and_checked_without_torch() -> None:
    commands = [[name] for name in Commands.modules if name != "bench"]
    commands += [["bench", name] for name in Benchmarks.modules]
    asked = [[*words, more] for words in commands for more in ("--help", "--no-such-option")]
    code = OPTIONS.format(commands=asked)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("ended 0") == done.stdout.count("ended 2") == len(commands)
    assert done.stdout.endswith("imported:\n")


def test_a_part_that_needs_an_extra_names_it_in_one_line() -> None:
    said = printed_by("tests.cli.test_lists", "bench", "load", "models", "--model", "m", "--rate", "5").splitlines()
    assert [line for line in said if "not installed" in line] == [
        "error: psutil is not installed: pip install 'latebind[bench]'"
    ]


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_that_is_named_brings_the_package(package: str) -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    distribution = DISTRIBUTIONS.get(package, package)
    assert any(wanted.startswith(distribution) for wanted in extras[EXTRAS[package]])


def test_of_a_module_that_no_extra_brings_nothing_is_said() -> None:
    assert what_to_install(ModuleNotFoundError("gone", name="latebind.gone")) is None
    assert what_to_install(ModuleNotFoundError("gone", name="grpc.aio")) == (
        "grpc is not installed: pip install 'latebind[grpc]'"
    )
