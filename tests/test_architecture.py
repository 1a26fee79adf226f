"""The layers hold: what decides is pure, the door knows no torch, the engine knows no HTTP."""

import re
import subprocess
import sys
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
    files = [file for place in places for file in sorted(PACKAGE.glob(place))]
    names = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def import_without(module: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    code = BLOCK.format(blocked=blocked, module=module)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


ADAPTING = ("adaptation/controller.py", "adaptation/mix.py", "adaptation/watch.py")
PURE = modules(
    "domain/*.py", "batching/*.py", "residency/*.py", "queries/**/*.py", "scheduler.py", "simulation/*.py", *ADAPTING
)


def test_there_are_pure_modules_to_check() -> None:
    assert "latebind.scheduler" in PURE
    assert len(PURE) >= 15


def test_pure_modules_import_without_torch_asyncio_and_threads() -> None:
    done = import_without(", ".join(PURE), "torch", "asyncio", "threading", "socket", "numpy")
    assert done.returncode == 0, done.stderr


def test_composition_works_on_numbers_alone() -> None:
    names = modules(
        *(f"learned/{name}.py" for name in ("ilp", "compose", "bounds", "calibrate", "promise", "composition"))
    )
    assert len(names) == 6
    done = import_without(", ".join(names), "torch", "openvino", "asyncio")
    assert done.returncode == 0, done.stderr


def test_the_block_bites() -> None:
    done = import_without("latebind.engine.driver", "torch", "asyncio", "threading")
    assert "is blocked here" in done.stderr


def test_the_door_and_its_end_of_the_engine_import_without_torch() -> None:
    names = modules("server/**/*.py", "repository/[!t]*.py", "engine/client.py", "cli/main.py", "cli/serve.py")
    assert "latebind.repository.tensors" not in names
    done = import_without(", ".join(names), "torch", "openvino")
    assert done.returncode == 0, done.stderr


def test_the_package_imports_without_torch_until_something_is_served_from_python() -> None:
    done = import_without("latebind", "torch", "numpy", "asyncio", "typer")
    assert done.returncode == 0, done.stderr
    assert "is blocked here" in import_without("latebind; latebind.serve", "torch").stderr


def test_the_engine_imports_without_a_web_server() -> None:
    done = import_without("latebind.engine.process", "uvicorn", "httptools", "orjson")
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
