"""A network that reads texts of any length, cut by hand, and its slots."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.costs import EMPTY_STAGE, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim
from latebind.engine.loaded import LoadedModel
from latebind.engine.slots import Extents, SlotMemory, create_file, file_bytes
from latebind.program.device import HOST
from latebind.program.graph import Graph
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory

WIDTH = 6
LONGEST = 512
WORDS = 50


def spec_of(name: str = "texts", *, longest: int = LONGEST, pads: bool = True, max_batch: int = 64) -> ModelSpec:
    inputs = (
        TensorSpec("ids", "int64", (longest,), padding=0, sizes=("L",)),
        TensorSpec("mask", "int64", (longest,), padding=0, sizes=("L",)),
    )
    outputs = (
        TensorSpec("words", "float32", (2 * longest, WIDTH), sizes=("2*L", WIDTH)),
        TensorSpec("text", "float32", (WIDTH,)),
    )
    return ModelSpec(name, "1", inputs, outputs, 3, max_batch, dims=(Dim("L", 1, longest),), pads=pads)


class Embed(nn.Module):
    """`ids` and `mask` `(B, L)` to words with the mask as their last number, `(B, L, WIDTH + 1)`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor]:
        return (torch.cat([self.words(ids), mask[..., None].to(torch.float32)], 2),)


class Attend(nn.Module):
    """Each word looks at all words of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, given: Tensor) -> tuple[Tensor]:
        words, mask = given[..., :WIDTH], given[..., WIDTH:]
        query, key, value = self.project(words).chunk(3, 2)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.transpose(1, 2) > 0)
        return (torch.cat([words + seen, mask], 2),)


class Answer(nn.Module):
    """Two vectors for each word, and one for the text."""

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        words, mask = given[..., :WIDTH], given[..., WIDTH:]
        return words.repeat_interleave(2, 1), (words * mask).sum(1) / mask.sum(1)


def texts(spec: ModelSpec, device: str = HOST) -> LoadedModel:
    """Return the network as a worker has it."""
    torch.manual_seed(0)
    modules = Embed(), Attend(), Answer()
    passed = TensorSpec("passed", "float32", (LONGEST, WIDTH + 1), sizes=("L", WIDTH + 1))
    graphs = tuple(Graph(inputs, (), ()) for inputs in (spec.inputs, (passed,), (passed,)))
    costs = ModelCosts((EMPTY_STAGE,) * 3)
    program = Program(
        spec,
        costs,
        "eager",
        1,
        tuple(module.eval().to(device) for module in modules),
        graphs,
        costs_fit=True,
        device=device,
    )
    return LoadedModel(spec, costs, program, {}, ModelDirectory(Path(), {}))


@contextmanager
def mapped(*specs: ModelSpec, slots: int) -> Iterator[tuple[SlotMemory, Extents, int]]:
    """Have slots of these models, the extents for their rows, and the file that they lie in."""
    counts, file = {spec.name: slots for spec in specs}, create_file()
    try:
        os.ftruncate(file, file_bytes(specs, counts))
        memory = SlotMemory(file, specs, counts)
        yield memory, memory.extents(), file
    finally:
        os.close(file)
