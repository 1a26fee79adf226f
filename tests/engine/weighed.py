"""What compiled stages take and keep, in a process of its own: what others had left would be counted too."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from latebind.domain.config import EngineConfig
from latebind.engine.on_demand import measure, open_model
from latebind.program.backends import compile_graph
from latebind.program.export import export
from latebind.program.pieces import mmap_large_blocks, release_memory, resident_bytes
from latebind.program.program import Program
from tests.engine.resident import MB

BATCH = 32
OUTPUTS = BATCH * 4 * 4


@dataclass(frozen=True)
class Weighed:
    """Bytes that loading and running takes, those of them that stay, the size as it is measured, and the answers."""

    taken: int
    left: int
    size: int
    answers: list[list[float]]


def weigh(path: Path, rows: torch.Tensor) -> Weighed:
    """Load and let go twice: the first time OpenVINO takes what it needs itself."""
    opened = open_model(path, EngineConfig())
    program = opened.model.program
    assert isinstance(program, Program)
    for _ in range(2):
        before = resident_bytes()
        for piece in opened.pieces:
            piece.load()
        with torch.inference_mode():
            (found,) = program.run(rows)
        taken = resident_bytes() - before
        for piece in opened.pieces:
            piece.unload()
        left = resident_bytes() - before
    measure(opened, 1000 * MB)
    return Weighed(taken, left, sum(piece.size for piece in opened.pieces), found.tolist())


def kept_of_a_batch() -> dict[str, int]:
    """Return the bytes that a usual stage and a frugal one keep behind a large batch, and those of its outputs."""
    width = 16
    module = nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4)),
    ).eval()
    rows = torch.randn(BATCH, 3, 128, 128)
    exported = export(module, {"x": rows[:2]})
    kept = {"outputs": OUTPUTS}
    for name in ("first", "usual", "frugal"):  # the first time, OpenVINO takes what it needs itself
        stage = compile_graph(exported.graph, exported.weights, backend="openvino", threads=1, frugal=name == "frugal")
        stage(rows[:1])
        release_memory()
        before = resident_bytes()
        stage(rows)
        release_memory()
        kept[name] = max(0, resident_bytes() - before)
        del stage
    return kept


def main(words: Sequence[str]) -> None:
    """Print in JSON what is found for a path and rows, and what is kept of a large batch."""
    path, rows = words
    mmap_large_blocks()
    found = asdict(weigh(Path(path), torch.tensor(json.loads(rows))))
    sys.stdout.write(json.dumps({"weighed": found, "kept": kept_of_a_batch()}))
