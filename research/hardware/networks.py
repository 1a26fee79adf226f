"""The networks of LazyBatching's evaluation (table II and section VI-C) as layer shapes, on the accelerator of table I.

A scheduler may switch to another batch after each stage. A stage is a block of layers in networks that run once, and
one step of the encoder or the decoder in recurrent networks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, Grid, ModelCosts
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from research.hardware.npu import Block, Product, SystolicArray, dense, residual

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LONG = 40  # steps of an input at which a stage is taken a second time: what lies between is on the line
VOCABULARY = 32_000
WORDS_IN, WORDS_OUT = 22, 21  # of the sentences whose mean latency is that of table II

Layers = Callable[[int], Sequence[Product]]  # of the steps of an input


@dataclass(frozen=True, slots=True)
class Stage:
    """A function that returns the layers of one stage, given the number of input steps, and the kind of the stage."""

    layers: Layers
    kind: StageKind = StageKind.STATIC


@dataclass(frozen=True, slots=True)
class Network:
    """The stages of a network in order.

    `alone` is the time in seconds that one input of average length takes according to table II, None if it is not in
    that table.
    """

    name: str
    stages: tuple[Stage, ...]
    array: SystolicArray = field(default_factory=SystolicArray)
    alone: float | None = None

    def served(self, *, output_steps: tuple[int, ...] = (1,), max_batch: int = 64) -> ServedModel:
        """Return the network as the scheduler sees it. `output_steps` are the lengths of answers in the training data.

        Costs are scaled so that an input of average length takes as long as table II says.
        """
        scale = 1.0 if self.alone is None else self.alone / self._alone()
        kinds = tuple(stage.kind for stage in self.stages)
        vector = TensorSpec("x", "float32", (1,))
        recurrent = kinds if any(kind is not StageKind.STATIC for kind in kinds) else ()
        return ServedModel(
            ModelSpec(self.name, "1", (vector,), (vector,), len(kinds), max_batch, kinds=recurrent),
            ModelCosts(
                tuple(self._grid(stage, scale) for stage in self.stages), output_steps=tuple(sorted(output_steps))
            ),
            max_queued=1 << 30,
        )

    def _grid(self, stage: Stage, scale: float) -> Grid:
        rises = stage.kind is StageKind.STATIC and stage.layers(1) != stage.layers(LONG)
        lengths = (1, LONG) if rises else (1,)
        return Grid(lengths, tuple(self._curve(stage, length, scale) for length in lengths))

    def _curve(self, stage: Stage, inputs: int, scale: float) -> Curve:
        return Curve(BATCHES, tuple(scale * self.array.in_turn(stage.layers(inputs), batch) for batch in BATCHES))

    def _alone(self) -> float:
        steps = {StageKind.STATIC: 1, StageKind.ENCODER: WORDS_IN, StageKind.DECODER: WORDS_OUT}
        return sum(steps[stage.kind] * self.array.in_turn(stage.layers(WORDS_IN), 1) for stage in self.stages)


def _once(layers: Block) -> Stage:
    return Stage(lambda inputs: layers)


def resnet50() -> Network:
    """Return ResNet-50 for 224 x 224 images (He et al. 2016), in 18 stages."""
    stages = tuple(_once(block) for block in residual((3, 4, 6, 3)))
    return Network("ResNet", stages, SystolicArray(double_buffered=False), alone=1.1e-3)


def gnmt() -> Network:
    """Return GNMT (Wu et al. 2016) as in MLPerf: four layers of 1,024 units in the encoder and in the decoder.

    The first layer of the encoder is bidirectional. The products of all words with the input weights are computed at
    once, as cuDNN does, and each step only computes the products with the recurrent state.
    """
    h = 1024
    inside = [(h, h), (h, h), (2 * h, h), (h, h), (h, h)]

    def all_words(words: int) -> tuple[Product, ...]:
        return tuple(Product(width, 4 * hidden, words) for width, hidden in inside)

    def state(_words: int) -> tuple[Product, ...]:
        return tuple(Product(hidden, 4 * hidden) for _, hidden in inside)

    def decode(_words: int) -> tuple[Product, ...]:
        attention = (dense(h, h), Product(vector=2 * WORDS_IN * h))
        return (*(Product(3 * h, 4 * h) for _ in range(4)), *attention, dense(h, VOCABULARY))

    stages = (Stage(all_words), Stage(state, StageKind.ENCODER), Stage(decode, StageKind.DECODER))
    return Network("GNMT", stages, alone=7.2e-3)


def transformer() -> Network:
    """Return the base Transformer (Vaswani et al. 2017): six encoder and six decoder layers of width 512.

    The encoder runs once, for all words of the input.
    """
    d, wide = 512, 2048

    def encode(words: int) -> tuple[Product, ...]:
        layer = (dense(d, 3 * d, words), Product(vector=2 * words * words * d), dense(d, d, words))
        feed = (dense(d, wide, words), dense(wide, d, words))
        return (layer + feed) * 6 + (dense(d, 2 * d, words),) * 6  # and what the decoder attends to

    def decode(words: int) -> tuple[Product, ...]:
        own = (dense(d, 3 * d), Product(vector=2 * WORDS_OUT // 2 * d), dense(d, d))
        cross = (dense(d, d), Product(vector=2 * WORDS_IN * d), dense(d, d))
        return (own + cross + (dense(d, wide), dense(wide, d))) * 6 + (dense(d, VOCABULARY),)

    return Network("Transformer", (Stage(encode), Stage(decode, StageKind.DECODER)), alone=2.4e-3)


def bert() -> Network:
    """Return BERT-base (Devlin et al. 2019): twelve layers of width 768. Inputs are padded to the mean length."""
    d, words = 768, WORDS_IN
    layer = (
        dense(d, 3 * d, words),
        Product(vector=2 * words * words * d),
        dense(d, d, words),
        dense(d, 4 * d, words),
        dense(4 * d, d, words),
    )
    return Network("BERT", tuple(_once(layer) for _ in range(12)))


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet": resnet50,
    "gnmt": gnmt,
    "transformer": transformer,
    "bert": bert,
}
