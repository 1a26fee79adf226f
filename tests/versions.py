"""A folder of small models whose answers tell which model and version gave them."""

from pathlib import Path

import torch

from latebind.program.build import build_program
from research.faults.models import WIDTH, Scale

__all__ = ["QUERY", "WIDTH", "add_version", "spoil"]


def add_version(root: Path, name: str, version: int, factor: float) -> Path:
    """Build version `version` of a model that multiplies by `factor`."""
    place = root / name / str(version)
    rows = {"x": torch.ones(2, WIDTH)}
    build_program(
        Scale(factor).eval(),
        rows,
        directory=place,
        name=name,
        version=str(version),
        backends=["eager"],
        max_batch=2,
        max_overhead=None,
    )
    return place


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
