"""The models that share memory, as footprints: which seven, how long they load, and the figures of mCache's table 3.

Networks are parameters of each stage, counted after their papers. A stage is what a server can load by itself: the
embedding, a block, the head. Totals are those of the public checkpoints (tests compare).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from random import Random

from latebind.domain.costs import Footprint

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


def t5(vocabulary: int, width: int, blocks: int, heads: int) -> Stages:
    """Raffel et al. 2020, without the head: no biases, relative positions in the first block of each half.

    Blocks of the decoder have a second attention.
    """
    found: list[int] = [vocabulary * width]
    for attentions in (1, 2):
        block = attentions * _attention(width) + _feed_forward(width) + (1 + attentions) * width
        found += [block + 32 * heads, *(block,) * (blocks - 2), block + width]
    return tuple(found)


def resnet(depths: Sequence[int]) -> Stages:
    """He et al. 2016, table 1, bottleneck blocks with batch normalization: 3, 4, 6, 3 of them make ResNet-50."""
    stages = [_normalized(3, 64, 7)]
    inside = 64
    for width, count in zip((64, 128, 256, 512), depths, strict=True):
        for block in range(count):
            layers = _normalized(inside, width, 1) + _normalized(width, width, 3) + _normalized(width, 4 * width, 1)
            stages.append(layers + (_normalized(inside, 4 * width, 1) if block == 0 else 0))
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


def _normalized(inside: int, outside: int, kernel: int) -> int:
    return inside * outside * kernel * kernel + 2 * outside


FLOAT = 4  # bytes of a parameter
FIXED = 0.15  # seconds: what the smallest model of table 2 takes, most of which is not its 1.9 MB
BANDWIDTH = 110e6  # bytes a second: LRU then loads for as long as in table 3, within a sixth
MEDIAN, SPREAD, BLOCKS = 0.4e9, 0.8, 25  # of many models: bytes, deviation of their logarithm; stages of each
# Seconds of execution and of the way to the server: table 3 and figure 10 (b) together have x in
# (4.38 + x) / (1.68 + x) = 2.39. At 40 % no x makes their 1.5.
EXECUTION = 0.26
# Table 3: mean seconds of loading with the random workload, by policy and share of the memory that all models take.
TABLE_3: Mapping[tuple[str, float], float] = {
    **{("lfu", 0.4): 8.20, ("lfu", 0.6): 7.35, ("lfu", 0.8): 4.38},
    **{("lru", 0.4): 6.93, ("lru", 0.6): 5.48, ("lru", 0.8): 2.57},
    **{("arc", 0.4): 6.36, ("arc", 0.6): 4.89, ("arc", 0.8): 2.23},
    **{("srrip", 0.4): 6.32, ("srrip", 0.6): 4.74, ("srrip", 0.8): 2.01},
    **{("iam", 0.4): 5.96, ("iam", 0.6): 4.21, ("iam", 0.8): 1.68},
}


SEVEN: Mapping[str, Stages] = {
    # mCache names families, not sizes: these are served most. T5 alone takes more than a third of the memory of all.
    "ResNet-50": resnet((3, 4, 6, 3)),
    "SSD300": ssd300(),
    "BERT-base": bert(30_522, 512, 768, 12),
    "RoBERTa-large": bert(50_265, 514, 1024, 24, types=1),
    "XLNet-large": xlnet(32_000, 1024, 24),
    "GPT-2-medium": gpt2(50_257, 1024, 1024, 24),
    "T5-large": t5(32_128, 1024, 24, 16),
}


@dataclass(frozen=True, slots=True)
class Storage:
    """How long loads take: `fixed` seconds and the bytes over `bandwidth`.

    A request runs for `execution` seconds in any model, and as long in each of its stages.
    """

    fixed: float = FIXED
    bandwidth: float = BANDWIDTH
    execution: float = EXECUTION

    def footprint(self, sizes: Sequence[int]) -> Footprint:
        """Return a model of stages with such sizes in bytes."""
        seconds = tuple([size / self.bandwidth for size in sizes])
        runs = (self.execution / len(sizes),) * len(sizes)
        return Footprint(tuple(sizes), seconds, fixed=self.fixed, runs=runs)

    def seven(self) -> dict[str, Footprint]:
        """Return the seven models, by name."""
        return {name: self.footprint([FLOAT * stage for stage in stages]) for name, stages in SEVEN.items()}

    def many(self, models: int, random: Random) -> dict[str, Footprint]:
        """Return models with sizes that are drawn from a log-normal distribution, in equal stages."""
        sizes = [random.lognormvariate(log(MEDIAN), SPREAD) for _ in range(models)]
        return {f"model-{i}": self.footprint([int(size / BLOCKS)] * BLOCKS) for i, size in enumerate(sizes)}


def slowest_first(footprints: Mapping[str, Footprint]) -> list[str]:
    """Return names in the order of decreasing loading time."""
    return sorted(footprints, key=lambda name: -footprints[name].penalty)
