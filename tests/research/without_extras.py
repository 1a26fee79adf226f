"""`python -m research` where no package of an extra can be imported."""

import sys
from contextlib import suppress

from latebind.cli.commands import EXTRAS
from research.__main__ import app


def main(words: list[str]) -> None:
    for package in EXTRAS:
        sys.modules[package] = None  # type: ignore[assignment]  # as if it were not there
    sys.stderr = sys.stdout
    with suppress(SystemExit):
        app(words)
