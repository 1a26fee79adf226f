"""What a compiled stage keeps behind a large batch, in a process of its own: what others had left would be counted."""

import json
import sys
from collections.abc import Sequence

import torch
from torch import nn

from latebind.program.export import export
from latebind.program.load import compile_graph
from latebind.program.pieces import mmap_large_blocks, release_memory, resident_bytes

BATCH = 32
OUTPUTS = BATCH * 4 * 4


def main(words: Sequence[str]) -> None:
    """Print the bytes that a usual stage and one that is frugal keep, and those of the outputs, in JSON."""
    del words
    mmap_large_blocks()
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
    sys.stdout.write(json.dumps(kept))
