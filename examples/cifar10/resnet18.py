"""ResNet-18 for 32x32 images: the ImageNet network (He et al. 2016, table 1) with a 3x3 stem and no first pooling."""

from torch import Tensor, nn
from torch.nn import functional

from examples.cifar10.model import BasicBlock


class Block(BasicBlock):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__(inside, outside, stride)
        self.projection: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.projection = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def shortcut(self, x: Tensor) -> Tensor:
        """Return what is added to the convolutions' result."""
        added: Tensor = self.projection(x)
        return added


class ResNet18(nn.Module):
    """Eight blocks in four groups of 64, 128, 256 and 512 channels; 11.2 M parameters."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.linear = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images `(B, 3, 32, 32) float32` to logits `(B, classes) float32`."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.linear(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


def resnet18() -> ResNet18:
    """ResNet-18 with random weights."""
    return ResNet18()
