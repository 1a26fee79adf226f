"""Measured costs of (rows, length), as a file: those of an encoder like MiniLM or BERT, with drawn weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn

from latebind.domain.config import ServedModel
from latebind.domain.costs import Grid, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim
from latebind.program.measure import profile_stages

SHAPES = {"minilm": (6, 384, 12), "bert": (12, 768, 12)}  # layers, width and heads
BATCHES = (1, 2, 4, 8, 16, 32)
SHORTEST, LONGEST = 4, 512
Backend = Literal["eager", "openvino"]
Stage = Callable[..., tuple[Tensor, ...]]


class Measured(msgspec.Struct, frozen=True):
    """The costs of a model whose rows have one length: what a scheduler needs of it, and what was measured in words."""

    told: str
    most: int
    stages: tuple[Grid, ...]

    def served(self, max_batch: int) -> ServedModel:
        """Return the model as the scheduler knows it."""
        row = TensorSpec("tokens", "int64", (self.most,), padding=0, sizes=("L",))
        spec = ModelSpec(
            "text", "1", (row,), (row,), len(self.stages), max_batch, dims=(Dim("L", 1, self.most),), pads=True
        )
        return ServedModel(spec, ModelCosts(self.stages), max_queued=1 << 30)


def read_costs(file: Path) -> Measured:
    """Read a file of costs; raises `ConfigError` where it is none."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Measured)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{file} has no costs ({error}): measure them with `python -m research lengths-costs`"
        ) from None
    if not found.stages or not all(grid.makes_sense for grid in found.stages):
        raise ConfigError(f"{file} has no stages, or a grid without sense: measure it again")
    return found


def measure(shape: str, backend: Backend, threads: int) -> Measured:
    """Measure the layers of an encoder, one stage each, over rows and lengths."""
    torch.set_num_threads(threads)
    layers, width, heads = SHAPES[shape]
    stages = [_stage(_layer(width, heads), width, backend, threads) for _ in range(layers)]
    rows = TensorSpec("rows", "float32", (LONGEST, width), sizes=("L", width))
    with torch.inference_mode():
        example = (torch.randn(1, LONGEST, width),)
        grids = profile_stages(stages, example, BATCHES, specs=(rows,), dims=(Dim("L", SHORTEST, LONGEST),))
    return Measured(f"{shape} by {backend}, threads: {threads}", LONGEST, grids)


def _layer(width: int, heads: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
    return layer.eval()


def _stage(layer: nn.Module, width: int, backend: Backend, threads: int) -> Stage:
    if backend == "eager":
        return lambda rows: (layer(rows),)
    import openvino  # noqa: PLC0415 - slow, and not installed everywhere

    torch.backends.mha.set_fastpath_enabled(False)  # a single operator, which OpenVINO does not know
    model = openvino.convert_model(layer, example_input=torch.randn(2, 8, width), input=[-1, -1, width])
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    return lambda rows: (torch.from_numpy(request.infer([rows.numpy()], share_inputs=True)[compiled.output(0)]),)
