"""The layers hold: what decides is pure, the frontend knows no torch, the engine knows no HTTP."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "latebind"

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked here")
sys.meta_path.insert(0, Blocker())
for name in {blocked!r}:
    sys.modules.pop(name, None)
import {module}
"""


def modules(*places: str) -> list[str]:
    return [name_of(file) for place in places for file in sorted(PACKAGE.glob(place))]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def import_without(module: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    code = BLOCK.format(blocked=blocked, module=module)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


PURE = modules(
    "domain/*.py",
    "batching/*.py",
    "residency/*.py",
    "queries/**/*.py",
    "scheduler.py",
    "simulation/*.py",
    "adaptation/controller.py",
)


def test_there_are_pure_modules_to_check() -> None:
    assert "latebind.scheduler" in PURE
    assert len(PURE) >= 15


def test_pure_modules_import_without_torch_asyncio_and_threads() -> None:
    done = import_without(", ".join(PURE), "torch", "asyncio", "threading", "socket", "numpy")
    assert done.returncode == 0, done.stderr


def test_composition_works_on_numbers_alone() -> None:
    names = modules("learned/compose.py", "learned/promise.py")
    assert len(names) == 2
    done = import_without(", ".join(names), "torch", "openvino", "asyncio")
    assert done.returncode == 0, done.stderr


def test_the_block_bites() -> None:
    done = import_without("latebind.engine.driver", "torch", "asyncio", "threading")
    assert "is blocked here" in done.stderr


def test_the_frontend_and_its_end_of_the_engine_import_without_torch() -> None:
    names = modules("server/**/*.py", "repository/*.py", "engine/client.py", "cli/main.py", "cli/serve.py", "served.py")
    done = import_without(", ".join(names), "torch", "openvino")
    assert done.returncode == 0, done.stderr


def test_options_are_checked_before_the_frontend_is_imported() -> None:
    done = import_without("latebind.cli.main, latebind.cli.serve", "numpy", "uvloop", "httptools", "orjson")
    assert done.returncode == 0, done.stderr


def test_commands_tell_their_options_without_torch() -> None:
    names = modules("cli/simulate.py", "cli/plan.py", "cli/build.py", "cli/bench/*.py", "*/metadata.py")
    assert len(names) == 9
    done = import_without(", ".join(names), "torch", "openvino", "transformers")
    assert done.returncode == 0, done.stderr


def test_the_package_imports_without_torch_until_something_is_served_from_python() -> None:
    done = import_without("latebind", "torch", "numpy", "asyncio", "typer")
    assert done.returncode == 0, done.stderr
    assert "is blocked here" in import_without("latebind; latebind.serve", "torch").stderr


def test_preprocessing_knows_no_server_and_no_library_until_it_is_needed() -> None:
    names = modules("preprocessing/*.py")
    assert "latebind.preprocessing.text" in names
    blocked = ("torch", "transformers", "tokenizers", "PIL", "soundfile", "scipy", "uvloop", "httptools", "asyncio")
    done = import_without(", ".join(names), *blocked)
    assert done.returncode == 0, done.stderr


def test_the_engine_imports_without_a_web_server_and_without_torch() -> None:
    others = ("torch", "transformers", "openvino", "scipy", "safetensors")
    done = import_without("latebind.engine.process", "uvloop", "httptools", "orjson", *others)
    assert done.returncode == 0, done.stderr


RUNS_CODE = re.compile(r"\bimport pickle\b|torch\.load\(|torch\.export\.load\(|(?<![.\w])(eval|exec)\(|shell=True")


def test_nothing_that_runs_code_from_data_is_used() -> None:
    found = {
        f"{file.name}: {line.strip()}"
        for file in PACKAGE.rglob("*.py")
        for line in file.read_text().splitlines()
        if RUNS_CODE.search(line)
    }
    assert not found


def imported_by(file: Path) -> set[str]:
    """Return which modules of the package a file imports as it is imported itself: within functions does not count."""
    known = set(modules("**/*.py"))
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {full if (full := f"{node.module}.{name.name}") in known else node.module for name in node.names}
    return found & known


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name_of(file): imported_by(file) - {name_of(file)} for file in PACKAGE.rglob("*.py")}
    assert graph["latebind.engine.driver"]
    TopologicalSorter(graph).prepare()  # raises a CycleError that names the circle


SERVES = """
import sys
import latebind.cli.main, latebind.cli.serve, latebind.served, latebind.engine.process
print(sum(name.partition(".")[0] == "latebind" for name in sys.modules))
"""


def test_a_server_takes_few_files_of_the_package() -> None:
    """Frontend and engine together, as they are forked from what has imported both."""
    done = subprocess.run([sys.executable, "-c", SERVES], capture_output=True, text=True, timeout=60, check=True)
    assert 60 < int(done.stdout) <= 156
