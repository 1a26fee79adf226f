"""Compiles what a launch and a call go through ahead of time, where LATEBIND_COMPILE=1 asks for it (decision 47).

Everything else about the package stands in pyproject.toml, and without that variable it is plain Python.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup

REQUIRED = ["mypy>=1.14", "msgspec>=0.19", "numpy>=1.26"]  # mypyc, and the types that it needs to know
BUILDING = frozenset({"bdist_wheel", "build", "build_ext"})  # an editable installation is none of these
FLAGS = (
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--allow-subclassing-any",
    "--no-warn-return-any",
    "--no-warn-unused-ignores",
    "--allow-untyped-decorators",
)


def compiled() -> list[Extension]:
    """Return the modules that pyproject.toml lists, as extensions."""
    from mypyc.build import mypycify  # noqa: PLC0415  (there only where it is asked for)

    listed = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["latebind"]["compiled"]
    return mypycify([*FLAGS, *listed], opt_level="2", debug_level="0", multi_file=True)


if os.environ.get("LATEBIND_COMPILE") != "1":
    setup()
elif BUILDING.isdisjoint(sys.argv):  # who asks is told first what it takes
    setup(setup_requires=REQUIRED)
else:
    setup(ext_modules=compiled())
