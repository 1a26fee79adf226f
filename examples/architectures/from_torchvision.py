"""Networks of torchvision: classification, segmentation, detection."""

from functools import partial

import torch
from torch import Tensor, nn
from torchvision.models import (
    MaxVit,
    SwinTransformer,
    VisionTransformer,
    alexnet,
    convnext_tiny,
    densenet121,
    efficientnet_b0,
    efficientnet_v2_s,
    googlenet,
    inception_v3,
    mnasnet1_0,
    mobilenet_v2,
    mobilenet_v3_large,
    regnet_y_400mf,
    resnet18,
    resnet50,
    resnext50_32x4d,
    shufflenet_v2_x1_0,
    squeezenet1_1,
    vgg16,
    wide_resnet50_2,
)
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn, ssdlite320_mobilenet_v3_large
from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large, fcn_resnet50, lraspp_mobilenet_v3_large
from torchvision.models.video import r3d_18

from examples.architectures.catalogue import ROWS, Architecture, Rows, images

DYNAMIC = "one row for each row of input"


class Listed(nn.Module):
    """A detector, which takes a list of images and gives a dictionary for each, called with a batch."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the boxes and scores of all images, one behind the other."""
        found = self.detector(list(x))
        return torch.cat([one["boxes"] for one in found]), torch.cat([one["scores"] for one in found])


def _clips() -> Rows:
    return {"x": torch.randn(ROWS, 3, 4, 32, 32)}


_untrained = {"weights": None, "weights_backbone": None}

ARCHITECTURES = {
    "resnet50": Architecture(resnet50, images()),
    "resnet18": Architecture(partial(resnet18, num_classes=10), images()),
    "mobilenet_v3": Architecture(mobilenet_v3_large, images()),
    "mobilenet_v2": Architecture(mobilenet_v2, images()),
    "efficientnet_b0": Architecture(efficientnet_b0, images()),
    "efficientnet_v2_s": Architecture(efficientnet_v2_s, images()),
    "vgg16": Architecture(partial(vgg16, num_classes=10), images()),
    "densenet121": Architecture(densenet121, images()),
    "inception_v3": Architecture(partial(inception_v3, init_weights=False), images(96)),
    "googlenet": Architecture(partial(googlenet, init_weights=False), images()),
    "convnext_tiny": Architecture(convnext_tiny, images()),
    "vit": Architecture(
        lambda: VisionTransformer(64, 16, num_layers=4, num_heads=4, hidden_dim=128, mlp_dim=256), images()
    ),
    "swin": Architecture(lambda: SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4]), images()),
    "maxvit": Architecture(lambda: MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 8, 0.0), images()),
    "alexnet": Architecture(alexnet, images()),
    "resnext50": Architecture(resnext50_32x4d, images()),
    "wide_resnet50": Architecture(wide_resnet50_2, images()),
    "squeezenet": Architecture(squeezenet1_1, images()),
    "shufflenet_v2": Architecture(shufflenet_v2_x1_0, images()),
    "regnet_y": Architecture(regnet_y_400mf, images()),
    "mnasnet": Architecture(mnasnet1_0, images()),
    "r3d_18": Architecture(r3d_18, _clips),
    "deeplabv3": Architecture(partial(deeplabv3_mobilenet_v3_large, **_untrained), images()),
    "fcn_resnet50": Architecture(partial(fcn_resnet50, **_untrained), images()),
    "lraspp": Architecture(partial(lraspp_mobilenet_v3_large, **_untrained), images()),
    "ssdlite": Architecture(lambda: Listed(ssdlite320_mobilenet_v3_large(**_untrained)), images(96), refused=DYNAMIC),
    "fasterrcnn": Architecture(
        lambda: Listed(fasterrcnn_mobilenet_v3_large_320_fpn(**_untrained)), images(96), refused=DYNAMIC
    ),
}
