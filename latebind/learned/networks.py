"""The networks of a learned cache: a predictor that answers, a selector that says how sure; in the end one module."""

import re
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ConfigError

GRID, PEAKS = 4, 2  # cells a side of the mean-pooled and the max-pooled features
MAX_SIDE = 32  # larger activations are averaged down to this before convolutions
MAX_CHANNELS = 128
HIDDEN = 64
NARROW, MIDDLE, WIDE = 32, 64, 128  # channels of a residual predictor
FEW = 8  # channels of an image that are colours rather than features
SELECTOR_HIDDEN = 64
SOFTNESS = 2.0  # of the shares that selectors see: they tell 0.99 from 0.999 apart

PLAIN, LIGHT, DEEP, RESIDUAL = "plain", "light", "deep", "residual"
KINDS = (RESIDUAL, DEEP, LIGHT, PLAIN)  # the most able first
TABLE = re.compile(r"(?P<name>fc|pool|conv)\((?P<first>[1-9]\d{0,4})(?:,(?P<second>[1-9]))?\)")


def make_predictor(shape: tuple[int, ...], classes: int, kind: str) -> nn.Module:
    """Return a network from an activation `(B, *shape) float32` to answers `(B, classes) float32`, not trained yet.

    It learns to give the base model's logits. `kind` is one of `KINDS` or a network of GATI's table 3, with ReLU:
    "fc(h)" and "pool(h)" with h hidden units, "conv(k,s)" with a kernel of k cells a side and a stride of s. Raises
    `ConfigError` for any other.
    """
    if kind == RESIDUAL:
        return ResidualPredictor(shape, classes)
    if kind in KINDS:
        return PooledPredictor(shape, classes, kind=kind)
    return _from_table(kind, shape, classes)


def _from_table(kind: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    found = TABLE.fullmatch(kind)
    if found is None or (found["name"] == "conv") != (found["second"] is not None):
        known = ", ".join(KINDS)
        raise ConfigError(f"there is no predictor {kind!r}: take {known}, fc(h), pool(h) or conv(k,s), such as fc(256)")
    first = int(found["first"])
    if found["name"] == "conv":
        channels, stride = shape[0], int(found["second"])
        features: nn.Module = nn.Sequential(*_convolution(channels, channels, stride=stride, size=first), nn.Flatten())
        return nn.Sequential(features, nn.Linear(_width(features, shape), classes))
    features = Pooled() if found["name"] == "pool" else nn.Flatten()
    hidden = [nn.Linear(_width(features, shape), first), nn.BatchNorm1d(first), nn.ReLU()]
    return nn.Sequential(features, *hidden, nn.Linear(first, classes))


def kinds_for(shape: tuple[int, ...], kinds: Sequence[str] = ()) -> tuple[str, ...]:
    """Return those of `kinds` (all of our own if none) that differ on activations of this shape, the most able first.

    Only images have convolutions.
    """
    if len(shape) == 3:
        return tuple(kinds) or KINDS
    flat = {*KINDS[:-1]}
    return tuple(kind for kind in kinds if kind not in flat and not kind.startswith("conv")) or (PLAIN,)


class ResidualPredictor(nn.Module):
    """A small residual network (He et al. 2016) of its own, able enough to stand before the network or early in it.

    Half of its work is done on 8 cells a side, where wide convolutions run at the full speed of a processor.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        layers, side = _shrink(max(height, width))
        layers += _convolution(channels, NARROW, stride=2 if side > 16 else 1, size=5 if channels < FEW else 3)
        side = -(-side // 2) if side > 16 else side
        layers += [*_convolution(NARROW, MIDDLE), *_convolution(MIDDLE, MIDDLE, stride=2 if side > 8 else 1)]
        side = -(-side // 2) if side > 8 else side
        layers += [Residual(MIDDLE), *_convolution(MIDDLE, WIDE, stride=2 if side > 4 else 1), Residual(WIDE)]
        self.layers = nn.Sequential(*layers)
        self.answer = nn.Linear(WIDE, classes)

    def forward(self, activation: Tensor) -> Tensor:
        """Return the answers."""
        answers: Tensor = self.answer(self.layers(activation).mean(dim=(2, 3)))
        return answers


class Residual(nn.Module):
    """Two convolutions beside a way past them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = _convolution(channels, channels), _convolution(channels, channels)[:-1]
        self.layers = nn.Sequential(*first, *second)

    def forward(self, activation: Tensor) -> Tensor:
        """Return what has the shape of the activation."""
        return functional.relu(activation + self.layers(activation))


class PooledPredictor(nn.Module):
    """Pooled features (GATI, Table 3, Pool) and convolutional ones (Conv) side by side; neither alone was as good.

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
    layers, side = _shrink(max(height, width))
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

    def __init__(self, predictor: nn.Module, selector: Selector) -> None:
        super().__init__()
        self.predictor = predictor
        self.selector = selector

    def forward(self, activation: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers `(B, classes) float32` and scores `(B,) float32`."""
        answers = self.predictor(activation)
        return answers, self.selector(answers)


def _shrink(side: int) -> tuple[list[nn.Module], int]:
    """Average images of more than `MAX_SIDE` cells a side; return the layer, if any, and the side behind it."""
    if side <= MAX_SIDE:
        return [], side
    shrink = -(-side // MAX_SIDE)
    return [nn.AvgPool2d(shrink, ceil_mode=True)], -(-side // shrink)


def _convolution(inside: int, outside: int, *, stride: int = 1, size: int = 3) -> list[nn.Module]:
    layer = nn.Conv2d(inside, outside, size, stride=stride, padding=size // 2, bias=False)
    return [layer, nn.BatchNorm2d(outside), nn.ReLU()]


def _cell(height: int, cells: int, width: int) -> tuple[int, int]:
    return -(-height // cells), -(-width // cells)


def _width(features: nn.Module, shape: tuple[int, ...]) -> int:
    training = features.training
    with torch.no_grad():
        found = features.eval()(torch.zeros(1, *shape))
    features.train(training)
    return prod(found.shape[1:])
