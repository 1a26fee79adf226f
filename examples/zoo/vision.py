"""Networks that look at pictures: ResNet-50, and a detector of objects in the manner of SSD on the same body."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification, ResNetModel

from examples.zoo.size import BENCH, Size

LABELS = 1000  # of ImageNet
CLASSES = 21  # of Pascal VOC, the background included
BOX = 4
BOXES = (4, 6, 6, 4, 4)  # for each place of the maps, from the finest
EXTRAS = ((512, 1024), (256, 512), (128, 256))  # channels of the narrow and the wide convolution of each extra layer


def resnet_config(size: Size) -> Any:
    """Return ResNet-50 (He et al. 2016), `microsoft/resnet-50`, at this size."""
    return ResNetConfig(
        embedding_size=size.width(64),
        hidden_sizes=[size.width(width) for width in (256, 512, 1024, 2048)],
        depths=[size.blocks(depth) for depth in (3, 4, 6, 3)],
        num_labels=LABELS // size.narrower,
    )


class ResNet50(nn.Module):
    """Classes of pictures."""

    def __init__(self, size: Size = BENCH) -> None:
        super().__init__()
        self.body: Any = ResNetForImageClassification(resnet_config(size))

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 3, side, side) float32` to logits `(B, labels)`."""
        logits: Tensor = self.body(image).logits
        return logits


class Detector(nn.Module):
    """Boxes and their classes from five maps of features, as SSD has them (Liu et al. 2016).

    What was found on finer maps must wait for the coarser ones. It goes through the layers beside the features, in one
    tensor, so that the network can be cut between any two of them.
    """

    def __init__(self, size: Size = BENCH) -> None:
        super().__init__()
        self.body: Any = ResNetModel(resnet_config(size))
        fine, coarse = size.width(1024), size.width(2048)
        extras = [(size.width(narrow), size.width(wide)) for narrow, wide in EXTRAS]
        self.extras = nn.ModuleList(
            extra(before, narrow, wide)
            for before, (narrow, wide) in zip((coarse, *(wide for _, wide in extras)), extras, strict=False)
        )
        seen = (fine, coarse, *(wide for _, wide in extras))
        self.heads = nn.ModuleList(
            nn.Conv2d(width, boxes * (BOX + CLASSES), 3, padding=1) for width, boxes in zip(seen, BOXES, strict=True)
        )

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Map `(B, 3, side, side) float32` to offsets of `boxes` `(B, N, 4)` and `scores` `(B, N, classes)`, logits.

        Choosing among overlapping boxes is left to the client.
        """
        *before, last = self.body.encoder.stages
        features = self.body.embedder(image)
        for stage in before:
            features = stage(features)
        found = predicted(self.heads[0], features)
        for layer in last.layers:
            features, found = beside(features, found)
            features = layer(features)
        for head, layer in zip(self.heads[1:], (None, *self.extras), strict=True):
            if layer is not None:
                features, found = beside(features, found)
                features = layer(features)
            found = torch.cat([found, predicted(head, features)], 1)
        return {"boxes": found[..., :BOX], "scores": found[..., BOX:]}


def extra(before: int, narrow: int, wide: int) -> nn.Sequential:
    """Return a layer that halves the map."""
    halving = nn.Conv2d(narrow, wide, 3, stride=2, padding=1)
    return nn.Sequential(nn.Conv2d(before, narrow, 1), nn.ReLU(), halving, nn.ReLU())


def predicted(head: nn.Module, features: Tensor) -> Tensor:
    """Return `(B, N, box and classes)`: what a head says of each box of a map `(B, C, H, W)`."""
    rows = head(features).permute(0, 2, 3, 1).flatten(1)
    found: Tensor = rows.reshape(rows.shape[0], -1, BOX + CLASSES)
    return found


def beside(features: Tensor, found: Tensor) -> Sequence[Tensor]:
    """Carry two tensors in one where the network can be cut, and split them again."""
    both = torch.cat([features.flatten(1), found.flatten(1)], 1)
    behind = features[0].numel()
    return both[:, :behind].reshape(features.shape), both[:, behind:].reshape(found.shape)
