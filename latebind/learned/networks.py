"""The networks of a learned cache: a predictor that answers, a selector that says how sure; in the end one module."""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

GRID, PEAKS = 4, 2  # cells a side of the mean-pooled and the max-pooled features
MAX_SIDE = 32  # larger activations are averaged down to this before convolutions
MAX_CHANNELS = 128
HIDDEN = 64
SELECTOR_HIDDEN = 64
SOFTNESS = 2.0  # of the shares that selectors see: they tell 0.99 from 0.999 apart

PLAIN, LIGHT, DEEP = "plain", "light", "deep"
KINDS = (DEEP, LIGHT, PLAIN)  # the most able first


class Predictor(nn.Module):
    """From an activation `(B, ...) float32` to answers `(B, classes) float32`, trained to be the base model's logits.

    Pooled features (GATI, Table 3, Pool) and convolutional ones (Conv) side by side; neither alone was as good.
    `kind`: "plain" has pooled features only, "light" a convolution for each halving of the image, "deep" two.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, *, kind: str = DEEP) -> None:
        super().__init__()
        self.pool = Pooled()
        self.convolutions = convolutions(shape, kind) if len(shape) == 3 and kind != PLAIN else None
        features = _width(self.pool, shape)
        if self.convolutions is not None:
            features += _width(self.convolutions, shape)
        self.before = nn.BatchNorm1d(features)
        self.hidden = nn.Linear(features, HIDDEN)
        self.after = nn.BatchNorm1d(HIDDEN)
        self.answer = nn.Linear(HIDDEN, classes)

    def forward(self, activation: Tensor) -> Tensor:
        """Return the answers."""
        parts = [self.pool(activation)]
        if self.convolutions is not None:
            parts.append(self.convolutions(activation))
        features = self.before(torch.cat(parts, dim=1))
        answers: Tensor = self.answer(functional.relu(self.after(self.hidden(features))))
        return answers


class Pooled(nn.Module):
    """Few features of an activation of any shape: means and maxima over cells of an image or over a sequence."""

    def forward(self, activation: Tensor) -> Tensor:
        """Return `(B, features)`."""
        if activation.dim() == 4:
            height, width = activation.shape[2:]
            means = functional.avg_pool2d(activation, _cell(height, GRID, width), ceil_mode=True)
            peaks = functional.max_pool2d(activation, _cell(height, PEAKS, width), ceil_mode=True)
            return torch.cat([means.flatten(1), peaks.flatten(1)], dim=1)
        if activation.dim() == 3:
            return torch.cat([activation.mean(dim=1), activation.amax(dim=1), activation.mean(dim=2)], dim=1)
        return activation.flatten(1)


def convolutions(shape: tuple[int, ...], kind: str) -> nn.Sequential:
    """Halve an image `(C, H, W)` to 4 cells a side or less while doubling its channels, up to 128 of them."""
    channels, height, width = shape
    side = max(height, width)
    layers: list[nn.Module] = []
    if side > MAX_SIDE:
        shrink = -(-side // MAX_SIDE)
        layers.append(nn.AvgPool2d(shrink, ceil_mode=True))
        side = -(-side // shrink)
    wide = min(MAX_CHANNELS, max(32, 2 * channels))
    while side > GRID:
        layers += _convolution(channels, wide, stride=2)
        side = -(-side // 2)
        if kind == DEEP and side > GRID:
            layers += _convolution(wide, wide, stride=1)
        channels, wide = wide, min(MAX_CHANNELS, 2 * wide)
    return nn.Sequential(*layers, nn.Flatten())


class Selector(nn.Module):
    """From answers `(B, classes)` to `(B,)`: the log-odds that the base model answers the same (GATI, section 3.1).

    It sees what the predictor says and nothing else; fed with the predictor's features it learned its training rows.
    Few operators, for each costs microseconds whatever its size.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * classes, SELECTOR_HIDDEN)
        self.score = nn.Linear(SELECTOR_HIDDEN, 1)

    def forward(self, answers: Tensor) -> Tensor:
        """Return the score of each row."""
        logs = functional.log_softmax(answers, dim=1)
        seen = torch.cat([logs.exp(), logs], dim=1)
        scores: Tensor = self.score(functional.relu(self.hidden(seen)))
        return scores[:, 0]


class LookupNetwork(nn.Module):
    """Predictor and selector as one module, so that a lookup is one compiled call."""

    def __init__(self, predictor: Predictor, selector: Selector) -> None:
        super().__init__()
        self.predictor = predictor
        self.selector = selector

    def forward(self, activation: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers `(B, classes) float32` and scores `(B,) float32`."""
        answers = self.predictor(activation)
        return answers, self.selector(answers)


def _convolution(inside: int, outside: int, *, stride: int) -> list[nn.Module]:
    layer = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
    return [layer, nn.BatchNorm2d(outside), nn.ReLU()]


def _cell(height: int, cells: int, width: int) -> tuple[int, int]:
    return -(-height // cells), -(-width // cells)


def _width(features: nn.Module, shape: tuple[int, ...]) -> int:
    training = features.training
    with torch.no_grad():
        found = features.eval()(torch.zeros(1, *shape))
    features.train(training)
    return prod(found.shape[1:])
