"""Small models and queries over them: what each step answers can be worked out by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latebind.program.build import build_program
from tests.building import build_stages
from tests.networks import Words

Floats = np.ndarray[Any, np.dtype[np.float32]]
WIDTH = 8


class Gate(nn.Module):
    """The first three numbers of its input, in two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 3)
        with torch.no_grad():
            for layer in (self.first, self.second):
                layer.weight.copy_(torch.eye(*layer.weight.shape))
                layer.bias.zero_()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 8) float32` to `(B, 3) float32`."""
        out: Tensor = self.second(self.first(x))
        return out


class Layers(nn.Module):
    """So many linear layers."""

    def __init__(self, seed: int, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.last = nn.Linear(WIDTH, 4)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 8) float32` to `(B, 4) float32`."""
        for layer in self.layers:
            x = layer(x).tanh()
        out: Tensor = self.last(x)
        return out


class Join(nn.Module):
    """A sum of two, the second of which counts double."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Map two `(B, 4) float32` to `(B, 4) float32`."""
        return a + 2 * b


CARS = Layers(1, depth=6)
SMALL = Layers(2)
ANIMALS = Layers(3)

QUERIES = {
    "chain": """
        [nodes.gate]
        models = ["gate"]
        [nodes.cars]
        models = ["cars"]
        inputs.x = "reshape(x, 8)"
        after = ["gate"]
        [outputs]
        gate = "gate.output"
        scores = "cars.output"
    """,
    "traffic": """
        deadline_ms = 20000
        planner = "equal"
        [conditions]
        vehicle = "argmax(gate.output) == 0"
        [nodes.gate]
        models = ["gate"]
        [nodes.cars]
        models = ["small", "cars"]
        accuracy = [0.8, 0.9]
        inputs.x = "scale(x, 2.0, 1.0)"
        when = "vehicle"
        [nodes.animals]
        models = ["animals"]
        when = "argmax(gate.output) == 1"
        [outputs]
        scores = "first(cars.output, animals.output)"
        gate = "gate.output"
    """,
    "fork": """
        [nodes.left]
        models = ["cars"]
        [nodes.right]
        models = ["animals"]
        [nodes.join]
        models = ["join"]
        inputs.a = "left.output"
        inputs.b = "right.output"
        [outputs]
        sum = "join.output"
    """,
    "spelling": """
        [nodes.gate]
        models = ["gate"]
        [nodes.words]
        models = ["words"]
        inputs.word = 'cast(gate.output, "int64")'
        [outputs]
        out = "words.output"
    """,
}


def build_queried(root: Path) -> None:
    """Write the models and the queries into a folder."""
    torch.set_num_threads(1)
    rows = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    modules = {"gate": Gate(), "cars": CARS, "small": SMALL, "animals": ANIMALS}
    for name, module in modules.items():
        build_stages(module, {"x": rows}, root / name / "1", name=name, max_batch=8)
    pair = {"a": rows[:, :4].clone(), "b": rows[:, 4:].clone()}
    build_program(Join(), pair, directory=root / "join" / "1", name="join", backends=["eager"], max_batch=8)
    words = torch.zeros(2, 3, dtype=torch.int64)
    build_program(Words(), {"word": words}, directory=root / "words" / "1", name="words", backends=["eager"])
    for name, text in QUERIES.items():
        (root / f"{name}.query.toml").write_text(text)


def by_hand(module: nn.Module, *inputs: Floats) -> Floats:
    """Return what a module makes of rows."""
    with torch.inference_mode():
        found: Floats = module(*map(torch.from_numpy, inputs)).numpy()
    return found


def traffic(rows: Floats) -> Floats:
    """Return the scores that the query `traffic` gives where it takes the more accurate model for cars."""
    ways = rows[:, :3].argmax(axis=1)
    scores = (by_hand(CARS, rows * 2 + 1), by_hand(ANIMALS, rows), np.zeros((len(rows), 4), np.float32))
    return np.stack([scores[way][place] for place, way in enumerate(ways)])


def rows_going(ways: Sequence[int], seed: int = 0) -> Floats:
    """Return rows that the gate sends each its way: to 0 cars, 1 animals, 2 neither."""
    rows = np.random.default_rng(seed).uniform(-1, 1, (len(ways), WIDTH)).astype(np.float32)
    rows[np.arange(len(ways)), ways] = 3.0
    return rows
