"""The predictors of learned caches: networks from an activation to features, and a linear layer to answers."""

import re
from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ConfigError
from latebind.learned.head import LEAST_DOUBT, SELECTOR_HIDDEN

GRID, PEAKS = 4, 2  # cells per side of the mean-pooled and the max-pooled features
WIDEST = 1_024  # most features that a linear layer learns from in a fraction of a second
MAX_SIDE = 32  # larger activations are averaged down to this before convolutions
MAX_CHANNELS = 128
HIDDEN = 64
WIDTHS = (32, 64, 128)  # channels of a residual predictor
SLIM_WIDTHS = (16, 32, 64)  # a quarter of its work
FEW = 8  # fewer channels than this are colors rather than features

Sides = tuple[int, int]  # height and width

POOLED, PLAIN, LIGHT, DEEP, RESIDUAL = "pooled", "plain", "light", "deep", "residual"
SLIM = "slim"
WIDE = "fc(256)"
BYTES = "bytes"  # no predictor: the network itself in eight bits (`compiled`)
KINDS = (RESIDUAL, DEEP, LIGHT, PLAIN, POOLED)  # the most able first
EVERY = (*KINDS, WIDE, "pool(256)", "conv(3,1)")  # also one example of each row of GATI's table 3
TABLE = re.compile(r"(?P<name>fc|pool|conv)\((?P<first>[1-9]\d{0,4})(?:,(?P<second>[1-9]))?\)")


class Predictor(nn.Module):
    """Computes features of an activation `(B, *shape) float32` and, by a linear layer, answers `(B, classes)`."""

    def __init__(self, features: nn.Module, shape: tuple[int, ...], classes: int, kind: str) -> None:
        super().__init__()
        self.kind = kind  # predictors of the same kind and shape differ only in their weights
        self.features = features
        self.answer = nn.Linear(_width(features, shape), classes)

    def forward(self, activation: Tensor) -> Tensor:
        """Return the answers."""
        answers: Tensor = self.answer(self.features(activation))
        return answers


class Selector(nn.Module):
    """Maps a predictor's answers `(B, classes)` to scores `(B,)` (GATI, section 3.1).

    A score is the log-odds that the base model gives the same answer. The selector sees only the predictor's answers:
    fed with the predictor's features, it memorized its training rows. It learns a correction to the predictor's own
    log-odds, because a few thousand rows do not teach it as much from scratch.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * classes, SELECTOR_HIDDEN)
        self.score = nn.Linear(SELECTOR_HIDDEN, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, answers: Tensor) -> Tensor:
        """Return the score of each row."""
        logs = functional.log_softmax(answers, dim=1)
        hidden = functional.relu(self.hidden(torch.cat([logs.exp(), logs], dim=1)))
        highest = logs.amax(dim=1)
        odds = highest - torch.log((-torch.expm1(highest)).clamp(min=float(LEAST_DOUBT)))
        added: Tensor = self.score(hidden)[:, 0]
        return odds + added


def make_predictor(shape: tuple[int, ...], classes: int, kind: str) -> Predictor:
    """Return an untrained network from an activation `(B, *shape) float32` to answers `(B, classes) float32`.

    It is to learn the base model's logits. `kind` is one of `KINDS` or a network of GATI's table 3, with ReLU: "fc(h)"
    and "pool(h)" with h hidden units, "conv(k,s)" with a kernel of k cells per side and a stride of s. Raises
    `ConfigError` for any other.
    """
    return Predictor(_features(shape, kind), shape, classes, kind)


def check_kinds(kinds: Iterable[str]) -> None:
    """Raise `ConfigError` for an unknown kind, before anything is trained."""
    for kind in set(kinds) - {BYTES}:
        make_predictor((8, 8, 8), 2, kind)


def _features(shape: tuple[int, ...], kind: str) -> nn.Module:
    if kind == RESIDUAL:
        return ResidualFeatures(shape, WIDTHS)
    if kind == SLIM:
        return ResidualFeatures(shape, SLIM_WIDTHS)
    if kind == POOLED:
        return Pooled()
    if kind in KINDS:
        return PooledFeatures(shape, kind=kind)
    found = TABLE.fullmatch(kind)
    if found is None or (found["name"] == "conv") != (found["second"] is not None):
        known = ", ".join(KINDS)
        raise ConfigError(f"there is no predictor {kind!r}: use {known}, fc(h), pool(h) or conv(k,s), such as fc(256)")
    first = int(found["first"])
    if found["name"] == "conv":
        channels, stride = shape[0], int(found["second"])
        return nn.Sequential(*_convolution(channels, channels, stride=stride, size=first), nn.Flatten())
    features = Pooled() if found["name"] == "pool" else nn.Flatten()
    return nn.Sequential(features, nn.Linear(_width(features, shape), first), nn.BatchNorm1d(first), nn.ReLU())


def kinds_for(shape: tuple[int, ...], kinds: Sequence[str] = (), *, sized: bool = False) -> tuple[str, ...]:
    """Return those of `kinds` (if empty, of `KINDS`) that differ on activations of this shape, the most able first.

    Only images have convolutions. With many channels, pooled features without a hidden layer are too wide for heads
    that follow the traffic, so that kind has to be asked for. What is read of rows that differ in size (`sized`) is
    pooled already: `WIDE` learns more from it (of 151 intents, 0.92 could leave after the first of six blocks at a
    fidelity of 0.97, 0.89 with `PLAIN`).
    """
    if sized and not kinds:
        return WIDE, PLAIN
    if len(shape) == 3:
        return tuple(kinds) or tuple(kind for kind in KINDS if kind != POOLED or _width(Pooled(), shape) <= WIDEST)
    known = {PLAIN, POOLED}
    return tuple(kind for kind in kinds if kind in known or kind.startswith(("fc", "pool("))) or (PLAIN,)


class ResidualFeatures(nn.Module):
    """A small residual network (He et al. 2016), able enough for a place before the network or early in it.

    Half of its work is done on 8 cells per side, where wide convolutions run at a processor's full speed.
    """

    def __init__(self, shape: tuple[int, ...], widths: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        narrow, middle, wide = widths
        layers, sides = _shrink((height, width))
        first = _strides(sides, 16)
        layers += _convolution(channels, narrow, stride=first, size=5 if channels < FEW else 3)
        sides = _behind(sides, first)
        second = _strides(sides, 8)
        layers += [*_convolution(narrow, middle), *_convolution(middle, middle, stride=second)]
        sides = _behind(sides, second)
        layers += [Residual(middle), *_convolution(middle, wide, stride=_strides(sides, 4)), Residual(wide)]
        self.layers = nn.Sequential(*layers)

    def forward(self, activation: Tensor) -> Tensor:
        """Return `(B, channels of the last layer)`."""
        means: Tensor = self.layers(activation).mean(dim=(2, 3))
        return means


class Residual(nn.Module):
    """A residual block: two convolutions and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = _convolution(channels, channels), _convolution(channels, channels)[:-1]
        self.layers = nn.Sequential(*first, *second)

    def forward(self, activation: Tensor) -> Tensor:
        """Return a tensor of the activation's shape."""
        return functional.relu(activation + self.layers(activation))


class PooledFeatures(nn.Module):
    """Pooled features (GATI, Table 3, Pool) concatenated with convolutional ones (Conv); neither alone was as good.

    `kind`: "plain" has pooled features only, "light" one convolution for each halving of the image, "deep" two.
    """

    def __init__(self, shape: tuple[int, ...], *, kind: str = DEEP) -> None:
        super().__init__()
        self.pool = Pooled()
        self.convolutions = convolutions(shape, kind) if len(shape) == 3 and kind != PLAIN else None
        features = _width(self.pool, shape)
        if self.convolutions is not None:
            features += _width(self.convolutions, shape)
        self.before = nn.BatchNorm1d(features)
        self.hidden = nn.Linear(features, HIDDEN)
        self.after = nn.BatchNorm1d(HIDDEN)

    def forward(self, activation: Tensor) -> Tensor:
        """Return `(B, 64)`."""
        parts = [self.pool(activation)]
        if self.convolutions is not None:
            parts.append(self.convolutions(activation))
        return functional.relu(self.after(self.hidden(self.before(torch.cat(parts, dim=1)))))


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
    """Return layers that halve an image `(C, H, W)` to 4 cells per side or less and double its channels, up to 128."""
    channels, height, width = shape
    layers, sides = _shrink((height, width))
    wide = min(MAX_CHANNELS, max(32, 2 * channels))
    while max(sides) > GRID:
        strides = _strides(sides, GRID)
        layers += _convolution(channels, wide, stride=strides)
        sides = _behind(sides, strides)
        if kind == DEEP and max(sides) > GRID:
            layers += _convolution(wide, wide, stride=1)
        channels, wide = wide, min(MAX_CHANNELS, 2 * wide)
    return nn.Sequential(*layers, nn.Flatten())


def _shrink(sides: Sides) -> tuple[list[nn.Module], Sides]:
    """Return a layer that averages sides of more than `MAX_SIDE` cells, if there are any, and the sides after it."""
    if max(sides) <= MAX_SIDE:
        return [], sides
    by = -(-sides[0] // MAX_SIDE), -(-sides[1] // MAX_SIDE)
    return [nn.AvgPool2d(by, ceil_mode=True)], _behind(sides, by)


def _strides(sides: Sides, most: int) -> Sides:
    """Return strides that halve each side of more than `most` cells, so that a long image becomes a square one."""
    return 2 if sides[0] > most else 1, 2 if sides[1] > most else 1


def _behind(sides: Sides, strides: Sides) -> Sides:
    return -(-sides[0] // strides[0]), -(-sides[1] // strides[1])


def _convolution(inside: int, outside: int, *, stride: int | Sides = 1, size: int = 3) -> list[nn.Module]:
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
