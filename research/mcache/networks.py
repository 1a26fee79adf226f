"""The networks that mCache names, as parameters of each stage, counted after their papers.

A stage is what a server can load by itself: the embedding, a block, the head. Totals are those of the public
checkpoints (tests compare).
"""

from collections.abc import Sequence

Stages = tuple[int, ...]  # parameters of each


def bert(vocabulary: int, positions: int, width: int, blocks: int, *, types: int = 2) -> Stages:
    """Devlin et al. 2019, with pooler: embeddings of tokens, positions and segments, blocks of attention and MLP."""
    embedding = (vocabulary + positions + types + 2) * width
    block = _attention(width, bias=True) + _feed_forward(width, bias=True) + 4 * width
    return (embedding, *(block,) * blocks, width * width + width)


def gpt2(vocabulary: int, positions: int, width: int, blocks: int) -> Stages:
    """Radford et al. 2019, without the head, which shares the embedding."""
    block = _attention(width, bias=True) + _feed_forward(width, bias=True) + 4 * width
    return ((vocabulary + positions) * width, *(block,) * blocks, 2 * width)


def xlnet(vocabulary: int, width: int, blocks: int) -> Stages:
    """Yang et al. 2019: five projections without bias, biases and embeddings of relative positions and segments."""
    block = 5 * width * width + 5 * width + _feed_forward(width, bias=True) + 4 * width
    return ((vocabulary + 1) * width, *(block,) * blocks)


def t5_encoder(vocabulary: int, width: int, blocks: int, heads: int) -> Stages:
    """Raffel et al. 2020, reading only: no biases, relative positions in the first block."""
    block = _attention(width) + _feed_forward(width) + 2 * width
    first = block + 32 * heads
    return (vocabulary * width, first, *(block,) * (blocks - 2), block + width)


def t5(vocabulary: int, width: int, blocks: int, heads: int) -> Stages:
    """Raffel et al. 2020, without the head: decoder blocks have a second attention."""
    block = 2 * _attention(width) + _feed_forward(width) + 3 * width
    first = block + 32 * heads
    return (*t5_encoder(vocabulary, width, blocks, heads), first, *(block,) * (blocks - 2), block + width)


def resnet(depths: Sequence[int]) -> Stages:
    """He et al. 2016, table 1, bottleneck blocks with batch normalisation: 3, 4, 6, 3 of them make ResNet-50."""
    stages = [_normalised(3, 64, 7)]
    inside = 64
    for width, count in zip((64, 128, 256, 512), depths, strict=True):
        for block in range(count):
            layers = _normalised(inside, width, 1) + _normalised(width, width, 3) + _normalised(width, 4 * width, 1)
            stages.append(layers + (_normalised(inside, 4 * width, 1) if block == 0 else 0))
            inside = 4 * width
    return (*stages, 2048 * 1000 + 1000)


def ssd300(classes: int = 91) -> Stages:
    """Liu et al. 2016, on VGG-16: its groups of convolutions, six and seven dilated, what is behind, and the heads."""
    groups, inside = [], 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        groups.append(sum(_convolution(inside if layer == 0 else width, width, 3) for layer in range(count)))
        inside = width
    groups[3] += 512  # the scale of the first map that is looked at
    dilated = _convolution(512, 1024, 3) + _convolution(1024, 1024, 1)
    narrow = ((1024, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256))
    behind = [_convolution(maps, between, 1) + _convolution(between, out, 3) for maps, between, out in narrow]
    looked_at = zip((512, 1024, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), strict=True)
    heads = sum(_convolution(maps, boxes * (classes + 4), 3) for maps, boxes in looked_at)
    return (*groups, dilated, *behind, heads)


def _attention(width: int, *, bias: bool = False) -> int:
    return 4 * width * (width + bias)


def _feed_forward(width: int, *, bias: bool = False) -> int:
    return 8 * width * width + bias * 5 * width


def _convolution(inside: int, outside: int, kernel: int) -> int:
    return inside * outside * kernel * kernel + outside


def _normalised(inside: int, outside: int, kernel: int) -> int:
    return inside * outside * kernel * kernel + 2 * outside
