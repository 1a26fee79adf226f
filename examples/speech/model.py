"""A VGG-style network (Simonyan and Zisserman 2015) for one-second spoken commands as log-mel features.

GATI serves VGG-16 on such commands (section 7); this one is narrower, has batch norm and pools instead of large linear
layers, so that a few minutes on two cores train it.
"""

from collections.abc import Iterator

from torch import Tensor, nn

CLASSES = 12
GROUPS = ((32, 32), (64, 64), (96, 96, 96), (192, 192, 192))  # channels; between groups the image is halved


class SpeechVgg(nn.Module):
    """Ten 3x3 convolutions in four groups, mean pooling and a linear layer; 1.1 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_layers())
        self.linear = nn.Linear(GROUPS[-1][-1], CLASSES)

    def forward(self, sound: Tensor) -> Tensor:
        """Map standardized features `(B, 1, 40 bands, 98 frames) float32` to logits `(B, 12) float32`."""
        logits: Tensor = self.linear(self.layers(sound).mean(dim=(2, 3)))
        return logits


def vgg() -> SpeechVgg:
    """Return the network, not trained yet."""
    return SpeechVgg()


def _layers() -> Iterator[nn.Module]:
    inside = 1
    for number, group in enumerate(GROUPS):
        if number:
            yield nn.MaxPool2d(2)
        for outside in group:
            yield from (nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())
            inside = outside
