"""What it takes to load a compiled model, in a process of its own: what others had left would be counted too."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from latebind.domain.config import EngineConfig
from latebind.engine.on_demand import measure, open_model
from latebind.program.pieces import resident_bytes
from latebind.program.program import Program
from tests.engine.resident import MB


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


def main(words: Sequence[str]) -> None:
    """Print in JSON what is found for a path and rows."""
    path, rows = words
    sys.stdout.write(json.dumps(asdict(weigh(Path(path), torch.tensor(json.loads(rows))))))
