"""The seven networks of mCache's evaluation (section 6.1), with random weights, and how to make and build each.

Models of these architectures and sizes, not the published ones: nothing is downloaded, and answers mean nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from examples.zoo.size import BENCH, Size
from examples.zoo.text import QUERY, T5, Bert, Gpt2, Roberta, XLNet
from examples.zoo.vision import Detector, ResNet50

ROWS = 4  # of examples
MOST_OF_A_BLOCK = 0.8  # a stage ends where it has that much: behind a block, not within it


@dataclass(frozen=True, slots=True)
class Network:
    """A network of the zoo: `make` it at some size. `blocks` returns those in the order in which they are used.

    `published_bytes` is what a checkpoint of it has in float32.
    """

    make: Callable[[Size], nn.Module]
    blocks: Callable[[nn.Module], list[nn.Module]]
    published_bytes: float


def _layers(*places: str) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda module: [block for place in places for block in module.get_submodule(place).children()]


def _residual(body: str) -> Callable[[nn.Module], list[nn.Module]]:
    return _layers(*(f"{body}.encoder.stages.{stage}.layers" for stage in range(4)))


NETWORKS = {
    "resnet50": Network(ResNet50, _residual("body.resnet"), 0.10e9),
    "ssd": Network(Detector, lambda module: [*_residual("body")(module), *_layers("extras")(module)], 0.14e9),
    "bert": Network(Bert, _layers("body.bert.encoder.layer"), 0.44e9),
    "roberta": Network(Roberta, _layers("body.roberta.encoder.layer"), 1.43e9),
    "xlnet": Network(XLNet, _layers("body.layer"), 1.47e9),
    "gpt2": Network(Gpt2, _layers("body.h"), 1.52e9),
    "t5": Network(T5, _layers("body.encoder.block", "body.decoder.block"), 2.95e9),
}


def make(name: str, size: Size = BENCH, *, seed: int = 0) -> nn.Module:
    """Return the network of this name for inference, its weights drawn with this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name].make(size).eval()


def examples(name: str, module: nn.Module, size: Size, *, seed: int = 0) -> dict[str, Tensor]:
    """Return rows of what the network reads: pictures of noise or words in any order."""
    generator = torch.Generator().manual_seed(seed)
    if name in ("resnet50", "ssd"):
        return {"image": torch.randn(ROWS, 3, size.side, size.side, generator=generator)}
    words = next(part for part in module.modules() if isinstance(part, nn.Embedding)).num_embeddings
    return {"tokens": torch.randint(words, (ROWS, QUERY), generator=generator)}


def stage_bytes(name: str, module: nn.Module) -> int:
    """Return the bytes of weights that a stage has at least, so that stages are blocks."""
    least = min(sum(weight.nbytes for weight in block.parameters()) for block in NETWORKS[name].blocks(module))
    return int(MOST_OF_A_BLOCK * least)
