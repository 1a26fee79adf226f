"""ResNet-20 ... 56 for 32x32 images (He et al. 2016, section 4.2), with parameter-free shortcuts.

Parameter names follow the public checkpoints by Yerlan Idelbayev (BSD-2), so those load unchanged.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; a wider block halves the image and pads channels with zeros."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.stride = stride
        self.padding = (outside - inside) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C_in, H, W) float32` to `(B, C_out, H / stride, W / stride) float32`."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return functional.relu(out + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Return what is added to the convolutions' result."""
        if not self.padding:
            return x
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))


class CifarResNet(nn.Module):
    """A residual network of `6 n + 2` layers: a stem, three groups of `n` blocks, mean pooling, a linear layer."""

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth {depth} is not 6 n + 2 with n of 1 or more: try 20, 32, 44 or 56")
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _group(16, 16, blocks, stride=1)
        self.layer2 = _group(16, 32, blocks, stride=2)
        self.layer3 = _group(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Map normalized images `(B, 3, 32, 32) float32` to logits `(B, classes) float32`."""
        x = functional.relu(self.bn1(self.conv1(image)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


class Perceptron(nn.Module):
    """Three linear layers: most of the time goes into reading weights, which batches share as convolutions hardly do.

    For measurements of how requests are batched.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3 * 32 * 32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def forward(self, image: Tensor) -> Tensor:
        """Map normalized images `(B, 3, 32, 32) float32` to logits `(B, 10) float32`."""
        logits: Tensor = self.layers(image.flatten(1))
        return logits


def resnet20() -> CifarResNet:
    """ResNet-20, 0.27 M parameters."""
    return CifarResNet(20)


def resnet32() -> CifarResNet:
    """ResNet-32, 0.46 M parameters."""
    return CifarResNet(32)


def resnet44() -> CifarResNet:
    """ResNet-44, 0.66 M parameters."""
    return CifarResNet(44)


def resnet56() -> CifarResNet:
    """ResNet-56, 0.85 M parameters."""
    return CifarResNet(56)


def perceptron() -> "Perceptron":
    """10.5 M parameters, untrained."""
    torch.manual_seed(0)
    return Perceptron(2048).eval()


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill `model` from a `.safetensors` file; every parameter must be there."""
    model.load_state_dict(load_file(path), strict=True)
    model.eval()


def normalize(pixels: Tensor) -> Tensor:
    """Turn `(B, 32, 32, 3) uint8` pixels into network input `(B, 3, 32, 32) float32`."""
    scaled = pixels.permute(0, 3, 1, 2).float() / 255
    return (scaled - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


def _group(inside: int, outside: int, blocks: int, *, stride: int) -> nn.Sequential:
    """`blocks` blocks, of which the first may widen and halve."""
    first = BasicBlock(inside, outside, stride)
    return nn.Sequential(first, *(BasicBlock(outside, outside, 1) for _ in range(blocks - 1)))
