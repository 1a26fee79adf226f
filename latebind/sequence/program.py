"""A loaded sequence model: encoders and a step as callables. For one thread: each worker has a twin."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from latebind.domain.costs import ModelCosts
from latebind.domain.model import ModelSpec, StageKind
from latebind.program.backends import StageFunction, backend_named, twin
from latebind.program.graph import Graph
from latebind.program.measure import profiled_batches
from latebind.sequence.state import Part

KINDS = (StageKind.STATIC, StageKind.DECODER)  # of the two stages: reading, and a decoder step


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens that are no words: what an answer starts after, what ends it, and what pads rows."""

    start: int
    end: int
    padding: int


@dataclass(frozen=True, slots=True)
class Named:
    """A compiled graph and the names of its outputs."""

    call: StageFunction
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph, call: StageFunction) -> "Named":
        """Return the call with the graph's names of its outputs."""
        return cls(call, tuple(name for name, _ in graph.outputs))

    def twin(self) -> "Named":
        """Return the same call for another thread, over the same weights."""
        return Named(twin(self.call), self.outputs)

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name; they are valid until the next call."""
        return dict(zip(self.outputs, self.call(*inputs), strict=True))


@dataclass(frozen=True, slots=True)
class SequenceProgram:
    """A sequence model that can run. `encoders` are keyed by the longest input that they take, ascending.

    `step` takes token and position `(B,)` and all `parts` of the state `(B, ...)` in their order, best in batches of
    `sizes`. `costs_fit` is False if the costs were measured on another machine or with other settings.
    """

    spec: ModelSpec
    costs: ModelCosts
    backend: str
    threads: int
    marks: SpecialTokens
    parts: tuple[Part, ...]
    encoders: Mapping[int, Named]
    step: Named
    sizes: tuple[int, ...]
    costs_fit: bool

    def twin(self) -> "SequenceProgram":
        """Return the program for another thread, over the same weights."""
        encoders = {length: encoder.twin() for length, encoder in self.encoders.items()}
        return replace(self, encoders=encoders, step=self.step.twin())

    @property
    def longest_output(self) -> int:
        """The most tokens of an answer, its end included."""
        return self.spec.outputs[0].shape[0]

    def step_size(self, batch: int) -> int:
        """Return the number of rows on which a step is best run for a batch of this size."""
        return next((size for size in self.sizes if size >= batch), batch)

    def encode(self, tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return the state for padded rows `(B, longest input)` int64 with these numbers of tokens `(B,)` int64."""
        longest = int(lengths.max())
        length = next(length for length in self.encoders if length >= longest)
        return self.encoders[length](tokens[:, :length].contiguous(), lengths)


def step_sizes(backend: str, max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes to compile a step for: powers of two, and the largest batch.

    A batch between two sizes is run as the larger one: on OpenVINO a step of 24 as 32 takes 5.1 ms, compiled for any
    size 6.2 (Transformer of `examples/translation`).
    """
    return profiled_batches(max_batch) if backend_named(backend).fixed else ()
