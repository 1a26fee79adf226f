"""What `LATEBIND_COMPILE=1` compiles; `make compiled` runs the tests of these modules against the compiled package."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import latebind
from latebind import scheduler
from latebind.compiled import is_compiled

ROOT = Path(__file__).parent.parent
LISTED = [Path(name) for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["latebind"]["compiled"]]


def test_every_module_that_is_compiled_exists_and_is_listed_once() -> None:
    assert all((ROOT / module).is_file() for module in LISTED)
    assert len(set(LISTED)) == len(LISTED)


def test_no_module_that_is_compiled_defines_what_msgspec_makes() -> None:
    """Options of such a class would be lost: it would not be frozen."""
    assert [str(module) for module in LISTED if _defines_structs(ROOT / module)] == []
    assert _defines_structs(ROOT / "latebind/batching/decisions.py")


def test_no_method_of_a_named_tuple_has_functions_within() -> None:
    """Mypyc ends with an internal error there."""
    assert [str(module) for module in LISTED if _has_closures_in_tuples((ROOT / module).read_text())] == []
    closure = "class Pair(NamedTuple):\n    def added(self):\n        def add(): ...\n"
    assert _has_closures_in_tuples(closure)


def test_every_class_that_one_derives_from_is_compiled_with_it() -> None:
    """The batching policies build on each other: one alone would not compile."""
    policies = set((ROOT / "latebind/batching").glob("*.py")) - {ROOT / module for module in LISTED}
    assert {path.name for path in policies} == {"__init__.py", "decisions.py", "picture.py"}


def test_version_says_whether_the_scheduler_is_compiled() -> None:
    is_python = str(scheduler.__file__).endswith(".py")
    words = [sys.executable, "-m", "latebind", "--version"]
    said = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    assert is_compiled() is not is_python
    assert said == (latebind.__version__ if is_python else f"{latebind.__version__}, compiled")


def _defines_structs(module: Path) -> bool:
    """Return whether a class there has options or a base that msgspec knows."""
    classes = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base).rpartition(".")[2] for one in classes for base in one.bases}
    return not bases.isdisjoint({"Struct", "EqualButLast"}) or any(one.keywords for one in classes)


def _has_closures_in_tuples(source: str) -> bool:
    tuples = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    )
    methods = (node for found in tuples for node in found.body if isinstance(node, ast.FunctionDef))
    closures = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return any(isinstance(node, closures) for method in methods for node in ast.walk(method) if node is not method)
