"""A folder of small models whose answers tell which model and version gave them."""

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from latebind.program.build import build_program
from research.faults.models import WIDTH, Scale

__all__ = ["QUERY", "WIDTH", "add_version", "spoil"]


def add_version(root: Path, name: str, version: int, factor: float) -> Path:
    """Write version `version` of a model that multiplies by `factor`."""
    place = root / name / str(version)
    place.mkdir(parents=True)
    for file, data in built(name, version, factor).items():
        (place / file).write_bytes(data)
    return place


@cache
def built(name: str, version: int, factor: float) -> Mapping[str, bytes]:
    """Return the files of such a model, which is built once in a process of tests."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "built"
        build_program(
            Scale(factor).eval(),
            {"x": torch.ones(2, WIDTH)},
            directory=place,
            name=name,
            version=str(version),
            backends=["eager"],
            max_batch=2,
            max_overhead=None,
        )
        return {file.name: file.read_bytes() for file in place.iterdir()}


def spoil(place: Path) -> None:
    """Alter the weights of a model, as a disk may."""
    file = place / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


QUERY = """
[nodes.first]
models = ["scale"]
[outputs]
y = "first.output"
"""
