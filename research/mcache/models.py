"""The models that share memory, as footprints: which seven, and how long they load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import log
from random import Random

from latebind.domain.costs import Footprint
from research.mcache.networks import Stages, bert, gpt2, resnet, ssd300, t5, t5_encoder, xlnet
from research.mcache.paper import EXECUTION

FLOAT = 4  # bytes of a parameter
GRAIN = 4 << 20  # bytes: what of a stage comes and goes, where models are trimmed
FIXED = 0.15  # seconds: what the smallest model of table 2 takes, most of which is not its 1.9 MB
BANDWIDTH = 110e6  # bytes a second: LRU then loads for as long as in table 3, within a sixth; table 2 has about 100e6
MEDIAN, SPREAD, BLOCKS = 0.4e9, 0.8, 25  # of many models: bytes, deviation of their logarithm; stages of each


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
EVEN = (1.0,) * 7
UNEVEN = (1.0, 3.0, 0.5, 1.0, 0.6, 2.0, 1.0)  # formats and start-up differ: with time by size alone IAM is LFU


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
        return Footprint(tuple(sizes), seconds, fixed=factor * self.fixed, grain=GRAIN, runs=runs)

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
