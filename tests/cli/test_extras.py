"""Commands in an installation without extras: what needs none works, and what does not says which to install."""

import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from latebind.cli.bench import Benchmarks
from latebind.cli.commands import EXTRAS, what_to_install
from latebind.cli.main import app
from tests.forked import printed_by

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
DISTRIBUTIONS = {"grpc": "grpcio", "grpc_health": "grpcio-health-checking", "sklearn": "scikit-learn"}


def main(words: list[str]) -> None:
    """Run a command where no package of an extra can be imported."""
    for package in EXTRAS:
        sys.modules[package] = None  # type: ignore[assignment]  # as if it were not there
    sys.stderr = sys.stdout
    with suppress(SystemExit):
        app(words)


def test_every_part_of_bench_is_listed_without_extras() -> None:
    said = printed_by("tests.cli.test_extras", "bench", "--help")
    listed = {line.split()[1] for line in said.splitlines() if line.startswith("│ ")}
    assert set(Benchmarks.modules) <= listed


def test_a_part_that_needs_an_extra_names_it_in_one_line() -> None:
    said = printed_by("tests.cli.test_extras", "bench", "load", "models", "--rate", "5")
    assert said == "error: aiohttp is not installed: pip install 'latebind[bench]'\n"


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
