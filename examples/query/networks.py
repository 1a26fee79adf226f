"""The networks of the two queries: a deep gate and, for each family, a small, a medium and a large one.

All members of a family give a score to every class of the data, so that they are interchangeable.
"""

from torch import Tensor, nn
from torch.nn import functional

GATES = 2  # what a gate tells apart
CLASSES = 10


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is nothing at first: a new block hands on its input."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _convolution(inside, outside, stride), _convolution(outside, outside)
        self.shortcut: nn.Module = nn.Identity()
        if inside != outside:
            self.shortcut = nn.Conv2d(inside, outside, 1, stride=stride, bias=False)
        nn.init.zeros_(self.second[1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C_in, H, W) float32` to `(B, C_out, H / stride, W / stride) float32`."""
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


class PictureNet(nn.Module):
    """A residual network: a stem that halves the picture, and groups of `blocks`, each half as large and twice as wide.

    A thin network of few blocks reads a picture in a tenth of a millisecond, a deep one takes as long as one likes.
    """

    def __init__(self, width: int, blocks: tuple[int, ...], classes: int = CLASSES, colors: int = 3) -> None:
        super().__init__()
        self.stem = _convolution(colors, width)
        layers, inside = list[nn.Module](), width
        for group, count in enumerate(blocks):
            outside = width * 2**group
            for number in range(count):
                layers.append(Block(inside, outside, 2 if group and not number else 1))
                inside = outside
        self.blocks = nn.Sequential(*layers)
        self.linear = nn.Linear(inside, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Map normalized images `(B, colors, H, W) float32` to logits `(B, classes) float32`."""
        x = self.blocks(functional.max_pool2d(functional.relu(self.stem(image)), 2))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


class Perceptron(nn.Module):
    """Two hidden layers over the pixels of a digit, 8x8."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
        )

    def forward(self, image: Tensor) -> Tensor:
        """Map images `(B, 1, 8, 8) float32` in 0 to 1 to logits `(B, 10) float32`."""
        logits: Tensor = self.layers(image.flatten(1))
        return logits


def gate() -> PictureNet:
    """Tells vehicles from animals; 31 convolutions, so that most pictures need not see its end."""
    return PictureNet(32, (3, 6, 6), classes=GATES)


def small() -> PictureNet:
    """The quickest of a family."""
    return PictureNet(8, (1, 1))


def medium() -> PictureNet:
    """In the middle of a family."""
    return PictureNet(24, (1, 1, 1))


def large() -> PictureNet:
    """The most accurate of a family."""
    return PictureNet(64, (1, 1, 1))


def digits_gate() -> PictureNet:
    """Tells low digits from high ones."""
    return PictureNet(64, (8,), classes=GATES, colors=1)


def digits_small() -> Perceptron:
    """The quickest reader of digits."""
    return Perceptron(6)


def digits_medium() -> Perceptron:
    """Reads most digits."""
    return Perceptron(16)


def digits_large() -> Perceptron:
    """Reads nearly all digits; its weights take ten megabytes, which are read for each."""
    return Perceptron(1536)


def _convolution(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outside))
