"""The models that share memory, as footprints: which seven, how long they load, and the figures that mCache reports.

Networks are parameters of each stage, counted after their papers. A stage is what a server can load by itself: the
embedding, a block, the head. Totals are those of the public checkpoints (tests compare).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
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


FLOAT = 4  # bytes of a parameter
FIXED = 0.15  # seconds: what the smallest model of table 2 takes, most of which is not its 1.9 MB
BANDWIDTH = 110e6  # bytes a second: LRU then loads for as long as in table 3, within a sixth; table 2 has about 100e6
MEDIAN, SPREAD, BLOCKS = 0.4e9, 0.8, 25  # of many models: bytes, deviation of their logarithm; stages of each
# Seconds of execution and of the way to the server: table 3 and figure 10 (b) together have x in
# (4.38 + x) / (1.68 + x) = 2.39. At 40 % no x makes their 1.5.
EXECUTION = 0.26
EVEN = (1.0,) * 7
UNEVEN = (1.0, 3.0, 0.5, 1.0, 0.6, 2.0, 1.0)  # formats and start-up differ: with time by size alone IAM is LFU

# Table 2, on a V100: seconds to execute and to load, and bytes.
TABLE_2: Mapping[str, tuple[float, float, float]] = {
    "MobileNetV1 0.25": (0.0160, 0.1318, 1.9e6),
    "MobileNetV1 0.5": (0.0163, 0.1475, 5.2e6),
    "MobileNetV1 0.75": (0.0174, 0.1727, 10.5e6),
    "MobileNetV1 1.0": (0.0175, 0.2096, 17.1e6),
    "DenseNet": (0.0308, 0.5863, 43.9e6),
    "InceptionV3": (0.0347, 1.0106, 95.7e6),
    "InceptionResNetV2": (0.0474, 1.4763, 121.6e6),
    "InceptionV4": (0.0515, 1.6423, 171.2e6),
    "NASNetLarge": (0.0700, 3.7023, 356.6e6),
}
# Table 3: mean seconds of loading with the random workload, by policy and share of the memory that all models take.
TABLE_3: Mapping[tuple[str, float], float] = {
    **{("lfu", 0.4): 8.20, ("lfu", 0.6): 7.35, ("lfu", 0.8): 4.38},
    **{("lru", 0.4): 6.93, ("lru", 0.6): 5.48, ("lru", 0.8): 2.57},
    **{("arc", 0.4): 6.36, ("arc", 0.6): 4.89, ("arc", 0.8): 2.23},
    **{("srrip", 0.4): 6.32, ("srrip", 0.6): 4.74, ("srrip", 0.8): 2.01},
    **{("iam", 0.4): 5.96, ("iam", 0.6): 4.21, ("iam", 0.8): 1.68},
}
# Section 6.2.2, figure 7: the share of the latency that is loading with the quantile workload, by share of the memory.
QUANTILE_LOADING: Mapping[float, float] = {0.2: 0.98, 0.8: 0.08}
THROUGHPUT: Mapping[float, float] = {0.4: 1.5, 0.8: 2.39}  # figure 10 (section 6.3.2): of IAM over that of LFU
NINE_TENTHS: Mapping[float, float] = {0.4: 10.0, 0.8: 3.0}  # section 6.2.3: seconds in which 90 % load, everywhere


class Family(StrEnum):
    """Which seven models: mCache names families, not sizes.

    A is what is served most; T5 alone takes more than a third there, so that whole models cannot run in 20 % of the
    memory. Of B no model takes more than a fifth, as the paper's 20 % says that none of theirs did.
    """

    A = "a"
    B = "b"


BERT_LARGE: Callable[..., Stages] = partial(bert, width=1024, blocks=24)
FAMILIES: Mapping[Family, Mapping[str, Stages]] = {
    Family.A: {
        "ResNet-50": resnet((3, 4, 6, 3)),
        "SSD300": ssd300(),
        "BERT-base": bert(30_522, 512, 768, 12),
        "RoBERTa-large": BERT_LARGE(50_265, 514, types=1),
        "XLNet-large": xlnet(32_000, 1024, 24),
        "GPT-2-medium": gpt2(50_257, 1024, 1024, 24),
        "T5-large": t5(32_128, 1024, 24, 16),
    },
    Family.B: {
        "ResNet-152": resnet((3, 8, 36, 3)),
        "SSD300": ssd300(),
        "BERT-large": BERT_LARGE(30_522, 512),
        "RoBERTa-large": BERT_LARGE(50_265, 514, types=1),
        "XLNet-large": xlnet(32_000, 1024, 24),
        "GPT-2-medium": gpt2(50_257, 1024, 1024, 24),
        "T5-large encoder": t5_encoder(32_128, 1024, 24, 16),
    },
}


@dataclass(frozen=True, slots=True)
class Storage:
    """How long loads take: `fixed` seconds and the bytes over `bandwidth`, all of it times each model's `factors`.

    A request runs for `execution` seconds in any model, and as long in each of its stages.
    """

    fixed: float = FIXED
    bandwidth: float = BANDWIDTH
    factors: tuple[float, ...] = EVEN
    execution: float = EXECUTION

    def seconds(self, size: float, factor: float = 1.0) -> float:
        """Return the seconds that so many bytes take, without the fixed part."""
        return factor * size / self.bandwidth

    def footprint(self, sizes: Sequence[int], factor: float = 1.0) -> Footprint:
        """Return a model of stages with such sizes in bytes."""
        seconds = tuple([self.seconds(size, factor) for size in sizes])
        runs = (self.execution / len(sizes),) * len(sizes)
        return Footprint(tuple(sizes), seconds, fixed=factor * self.fixed, runs=runs)

    def footprints(self, family: Family) -> dict[str, Footprint]:
        """Return the seven models, by name."""
        return {
            name: self.footprint([FLOAT * stage for stage in stages], factor)
            for (name, stages), factor in zip(FAMILIES[family].items(), self.factors, strict=True)
        }

    def many(self, models: int, random: Random) -> dict[str, Footprint]:
        """Return models with sizes that are drawn from a log-normal distribution, in equal stages."""
        sizes = [random.lognormvariate(log(MEDIAN), SPREAD) for _ in range(models)]
        return {f"model-{i}": self.footprint([int(size / BLOCKS)] * BLOCKS) for i, size in enumerate(sizes)}


def slowest_first(footprints: Mapping[str, Footprint]) -> list[str]:
    """Return names in the order of decreasing loading time."""
    return sorted(footprints, key=lambda name: -footprints[name].penalty)
