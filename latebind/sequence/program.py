"""A loaded sequence model: encoders and a step as callables. One thread at a time: each worker has a twin."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from latebind.domain.costs import ModelCosts
from latebind.domain.model import ModelSpec, StageKind
from latebind.program.backends import StageFunction, backend_named, twin
from latebind.program.graph import Graph
from latebind.program.measure import profiled_batches
from latebind.sequence.state import Part

KINDS = (StageKind.STATIC, StageKind.DECODER)  # of the two stages: reading, and each step of writing


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens that mean no word: what an answer begins after, what ends it, and what fills up rows."""

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
        """Return the call with the names that the graph gives to what comes out."""
        return cls(call, tuple(name for name, _ in graph.outputs))

    def twin(self) -> "Named":
        """Return the same call for another thread, over the same weights."""
        return Named(twin(self.call), self.outputs)

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name; they hold until the next call."""
        return dict(zip(self.outputs, self.call(*inputs), strict=True))


@dataclass(frozen=True, slots=True)
class SequenceProgram:
    """A sequence model that can run. `encoders` by the length of the longest input that they take, ascending.

    `step` takes token and position `(B,)` and all `parts` of the state `(B, ...)` in their order, best in batches of
    `sizes`. `costs_fit` is False where the costs were measured elsewhere.
    """

    spec: ModelSpec
    costs: ModelCosts
    backend: str
    threads: int
    marks: Marks
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
        """Return how many rows a step is best run on for so many requests."""
        return next((size for size in self.sizes if size >= batch), batch)

    def encode(self, tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return the state for padded rows `(B, longest input)` int64 of so many tokens `(B,)` int64."""
        longest = int(lengths.max())
        length = next(length for length in self.encoders if length >= longest)
        return self.encoders[length](tokens[:, :length].contiguous(), lengths)


def step_sizes(backend: str, max_batch: int) -> tuple[int, ...]:
    """Return for which batches a step is to be compiled: each twice the one before, and the largest there is.

    A batch between two of them is run as the next: on OpenVINO a step of 24 as 32 takes 5.1 ms, of any size 6.2
    (Transformer of `examples/translation`).
    """
    return profiled_batches(max_batch) if backend_named(backend).fixed else ()
