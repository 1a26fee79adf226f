"""Model directories for tests: eager, cut at every boundary, quickly built, and once for a whole run."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock
from torch import Tensor, nn

from latebind.program.build import BuildReport, build_program


def build_stages(
    module: nn.Module, examples: Mapping[str, Tensor], directory: Path, *, name: str, max_batch: int
) -> BuildReport:
    return build_program(
        module,
        examples,
        directory=directory,
        name=name,
        backends=["eager"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=max_batch,
    )


@contextmanager
def on_one_core() -> Iterator[None]:
    """Give this thread, and what it starts, one core: where others run tests, two would wait for each other."""
    cores = os.sched_getaffinity(0)
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of this name, which the first of all processes that run tests makes. No test changes it."""
    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "made" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        whole = folder.with_suffix(".whole")
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of somebody who was broken off
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder
