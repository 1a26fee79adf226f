"""Models of other kinds than the ledger's, and what is right: two inputs, an embedding, a query that joins two."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from latebind.bench.ledger.questions import KINDS, WIDTH
from latebind.program.build import build_program

SUM, VECTORS, FORK = "sum", "vectors", "fork"
WORDS, LENGTH, LARGEST = 50, 6, 8
QUERY = """
deadline_ms = 5000
[nodes.left]
models = ["affine"]
[nodes.right]
models = ["chain"]
[nodes.join]
models = ["sum"]
inputs.a = "left.y"
inputs.b = "right.y"
[outputs]
y = "join.y"
"""
Rows = NDArray[Any]


class Sum(nn.Module):
    """A sum of two inputs, the second of which counts double."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Map two `(B, WIDTH) float32` to the same shape."""
        return a + 2 * b


class Vectors(nn.Module):
    """The sum of the vectors of some words; they are whole numbers, so sums are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.arange(WORDS * WIDTH).view(WORDS, WIDTH) % 97)
        self.eval()

    def forward(self, words: Tensor) -> Tensor:
        """Map `(B, LENGTH) int64` to `(B, WIDTH) float32`."""
        out: Tensor = self.embedding(words).sum(dim=1)
        return out


def build(repository: Path) -> None:
    """Put the models and the query there; the query needs the ledger's `affine` and `chain`."""
    rows = torch.zeros(4, WIDTH)
    words = torch.zeros(4, LENGTH, dtype=torch.int64)
    for name, module, examples in (
        (SUM, Sum(), {"a": rows, "b": rows.clone()}),
        (VECTORS, Vectors(), {"words": words}),
    ):
        place = repository / name / "1"
        build_program(module, examples, directory=place, name=name, backends=["eager"], output_names=["y"])
    (repository / f"{FORK}.query.toml").write_text(QUERY)


def draw(model: str, random: Random) -> tuple[dict[str, Rows], Rows]:
    """Return the inputs of one request by name, and the right answer."""
    numbers = np.random.default_rng(random.randrange(1 << 30))
    count = random.randint(1, LARGEST)
    if model == VECTORS:
        words = numbers.integers(0, WORDS, (count, LENGTH))
        with torch.inference_mode():
            right: Rows = Vectors()(torch.from_numpy(words)).numpy()
        return {"words": words}, right
    one, other = (numbers.integers(0, 16, (count, WIDTH)).astype(np.float32) for _ in range(2))
    if model == SUM:
        return {"a": one, "b": other}, one + 2 * other
    assert model == FORK
    return {"x": one}, KINDS["affine"].right(one) + 2 * KINDS["chain"].right(one)


def body(inputs: dict[str, Rows]) -> bytes:
    """Return these tensors as the body of a request."""
    types = {"float32": "FP32", "int64": "INT64"}
    tensors = [
        {"name": name, "datatype": types[rows.dtype.name], "shape": rows.shape, "data": rows.flatten().tolist()}
        for name, rows in inputs.items()
    ]
    return json.dumps({"inputs": tensors}).encode()


def check(model: str, reply: bytes, right: Rows) -> None:
    """Raise `AssertionError` unless a reply has this answer."""
    (output,) = json.loads(reply)["outputs"]
    rows = np.array(output["data"], np.float32).reshape(output["shape"])
    assert rows.shape == right.shape, (model, rows.shape)
    assert (rows == right).all(), (model, rows, right)
