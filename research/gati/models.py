"""The models of the comparison, loaded for one thread: whole, in stages with their learned caches, in fewer bits."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.compiled import CONVOLUTION, quantise
from latebind.learned.lookup import LookupFunction, load_functions
from latebind.learned.metadata import SpareLookup, StoredLookup, read_caches
from latebind.learned.reading import Reading, readings
from latebind.learned.samples import check_classifier
from latebind.program.backends import StageFunction, compile_graph
from latebind.program.graph import Graph
from latebind.program.load import load_program, load_uncut
from latebind.program.metadata import read_model
from latebind.program.program import Program
from latebind.program.stored import read_graph, read_stages
from latebind.repository.directory import WEIGHTS, ModelDirectory
from latebind.repository.listing import find_models
from latebind.repository.tensors import read_tensors
from research.gati.routes import Exit, Route, Scored, Stage


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model directory as the comparison needs it. `caches` are used by its own calibration or not, in their order.

    `bytes` are those of the network's weights.
    """

    directory: ModelDirectory
    program: Program
    uncut: StageFunction
    caches: tuple[tuple[StoredLookup | SpareLookup, LookupFunction], ...]
    bytes: int

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages behind which it has learned caches."""
        return tuple(sorted({one.stage for one, _ in self.caches}))

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.program.spec.name

    @property
    def has_bytes(self) -> bool:
        """Whether its backend multiplies bytes, which others only imitate, and it has convolutions that take them."""
        if len(self.program.spec.inputs) != 1:
            return False
        graphs = read_stages(self.directory, read_model(self.directory))
        there = any(node.op == CONVOLUTION for graph in graphs for node in graph.nodes)
        return there and self.program.backend.startswith("openvino")

    def whole(self) -> Route:
        """Return the model without learned caches, uncut."""
        return Route((Stage(self.uncut),))

    def in_bfloat16(self) -> Route:
        """Return the model in bfloat16."""
        return Route((Stage(load_uncut(self.directory, backend="openvino-bf16")),))

    def in_bytes(self, rows: tuple[Tensor, ...]) -> Stage:
        """Return the model with convolutions in eight bits; `rows` `(N, ...)` set the ranges."""
        model = read_model(self.directory)
        return Stage(_in_bytes((read_graph(self.directory, model),), self._weights(), rows, self.program.backend)[0])

    def cached(self) -> Route:
        """Return the model with an exit wherever a learned cache is."""
        return Route(self._with_exits(self.program.stages))

    def cached_in_bytes(self, rows: tuple[Tensor, ...]) -> Route:
        """Return the same with the network itself in eight bits too."""
        graphs = read_stages(self.directory, read_model(self.directory))
        return Route(self._with_exits(_in_bytes(graphs, self._weights(), rows, self.program.backend)))

    def quantised_bytes(self) -> int:
        """Return the bytes of the weights where those of convolutions take one each."""
        graph = read_graph(self.directory, read_model(self.directory))
        weights = self._weights()
        rows = torch.zeros(1, *self.program.spec.inputs[0].shape)
        narrow = {
            name.removesuffix(".scales") for name in quantise(graph, weights, rows)[1] if name.endswith(".scales")
        }
        return sum(t.numel() if name in narrow else t.nbytes for name, t in weights.items())

    def _with_exits(self, stages: tuple[StageFunction, ...]) -> tuple[Stage | Exit, ...]:
        pieces: list[Stage | Exit] = []
        reads = (*readings(self.program), None)
        for number, (stage, read) in enumerate(zip(stages, reads, strict=True)):
            pieces.append(Stage(stage))
            for one, function in self.caches:
                if one.stage == number and read is not None:
                    look = partial(_asked, function, read) if read.axes else function
                    pieces.append(Exit(f"{self.name} {one.name}", look, one.bytes))
        return tuple(pieces)

    def _weights(self) -> dict[str, Tensor]:
        return read_tensors(self.directory, WEIGHTS)


def _asked(function: LookupFunction, read: Reading, activation: Tensor) -> Scored:
    return function(read(activation))


def load_model(repository: Path, name: str, *, backend: str | None = None) -> CachedModel:
    """Load a model of the folder on one thread; raises `ConfigError` for one without learned caches."""
    (path,) = find_models(repository, [name])
    directory = ModelDirectory.open(path)
    caches = read_caches(directory)
    if caches is None or not caches.every:
        raise ConfigError(f"{path} has no learned caches to compare: build it with data first")
    program = load_program(directory, backend=backend)
    check_classifier(program.spec)
    functions = load_functions(directory, caches.every, backend=program.backend, threads=1)
    return CachedModel(
        directory,
        program,
        load_uncut(directory, backend=program.backend),
        tuple((one, functions[one.name]) for one in caches.every),
        sum(tensor.nbytes for tensor in read_tensors(directory, WEIGHTS).values()),
    )


def _in_bytes(
    graphs: tuple[Graph, ...], weights: dict[str, Tensor], rows: tuple[Tensor, ...], backend: str
) -> tuple[StageFunction, ...]:
    """Compile graphs that follow each other with eight-bit convolutions; the exact ones carry `rows` to the next."""
    found, passed = [], rows
    for graph in graphs:
        if not graph.nodes:
            found.append(compile_graph(graph, weights, backend=backend, threads=1))
            continue
        made, scaled = quantise(graph, weights, passed[0])
        found.append(compile_graph(made, scaled, backend=backend, threads=1))
        passed = tuple(t.clone() for t in compile_graph(graph, weights, backend=backend, threads=1)(*passed))
    return tuple(found)
