"""Loads a verified model directory into a program that can run. Nothing in the directory is executed."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.program.backends import CompileOptions, EvictableStage, StageFunction, backend_named, pass_through
from latebind.program.copies import has_copies
from latebind.program.device import HOST
from latebind.program.graph import Graph
from latebind.program.measure import made_up_inputs
from latebind.program.pieces import Piece, make_piece
from latebind.program.program import Program
from latebind.program.stored import StoredModel, read_graph, read_model, read_profile, read_stages
from latebind.repository.directory import SEQUENCE, WEIGHTS, ModelDirectory
from latebind.repository.tensors import MappedTensors, check_weights, read_tensors


def load_program(
    directory: ModelDirectory,
    *,
    threads: int = 1,
    backend: str | None = None,
    device: torch.device = HOST,
    streams: int = 1,
    twins: int = 0,
) -> Program:
    """Return the model of `directory` as a chain of stages on `threads` threads, or on a CUDA device.

    `streams` of its twins run at the same time. If there are `twins` in all, each may have a copy of the weights if
    that takes little memory; with 0 they share large weights.

    The backend is the one that `build` found best, unless another is named. Raises `RepositoryError` for a directory
    whose files do not fit together or whose graph does not run, `ConfigError` for a backend that cannot be used here.
    """
    if SEQUENCE in directory.files:
        raise ConfigError(f"{directory.path} is a sequence model, which has no learned caches: serve it as it is")
    model = read_model(directory)
    graphs = read_stages(directory, model)
    chosen = backend if backend is not None else model.backend
    weights = read_tensors(directory, WEIGHTS)
    _check_weights(directory, graphs, weights)
    use = partial(compile_stages, graphs, weights, backend=chosen, threads=threads)
    copies = has_copies(sum(weight.nbytes for weight in weights.values()), twins)
    stages = use(device=device, streams=streams, copies=copies)
    passed = made_up_inputs(model.inputs, 1, device=device)
    for number, (graph, stage) in enumerate(zip(graphs, stages, strict=True)):
        passed = try_stage(directory, number, graph, stage, passed)
    return _program(directory, model, graphs, stages, backend=chosen, threads=threads, device=device)


def open_program(
    directory: ModelDirectory,
    *,
    threads: int = 1,
    backend: str | None = None,
    streams: int = 1,
    cached: bool = True,
) -> tuple[Program, tuple[Graph, ...], tuple[Piece, ...]]:
    """Return the model of `directory` with nothing in memory, the graph of each stage, and a piece for each.

    On the CPU, a stage can be called while its piece is loaded. Nothing has been run yet. For `cached` see
    `MappedFile`. Raises what `load_program` raises.
    """
    model = read_model(directory)
    graphs = read_stages(directory, model)
    chosen = backend if backend is not None else model.backend
    weights = MappedTensors(directory, WEIGHTS, cached=cached)
    _check_weights(directory, graphs, weights)

    def piece_of(graph: Graph) -> tuple[Piece, tuple[EvictableStage, ...]]:
        make = partial(compile_graph, graph, weights, backend=chosen, threads=threads, streams=streams, frugal=True)
        return make_piece((weights.pages(graph.weights()),), (make,), backend=chosen)

    pieces = [piece_of(graph) for graph in graphs]
    stages = tuple(place for _, (place,) in pieces)
    program = _program(directory, model, graphs, stages, backend=chosen, threads=threads, device=HOST)
    return program, graphs, tuple(piece for piece, _ in pieces)


def _check_weights(directory: ModelDirectory, graphs: Sequence[Graph], weights: Mapping[str, Tensor]) -> None:
    check_weights(directory, WEIGHTS, (name for graph in graphs for name in graph.weights()), weights)


def _program(
    directory: ModelDirectory,
    model: StoredModel,
    graphs: tuple[Graph, ...],
    stages: tuple[StageFunction, ...],
    *,
    backend: str,
    threads: int,
    device: torch.device,
) -> Program:
    profile = read_profile(directory)
    here = device == HOST and profile.matches_this_machine(
        threads=threads, backend=backend
    )  # profiles are only measured on CPUs
    fits = here and len(profile.stages) == len(stages)
    activations = tuple(graph.inputs[0].shape for graph in graphs[1:])
    return Program(model.spec(), profile.costs(), backend, threads, stages, activations, fits, model.entry, device)


def load_uncut(directory: ModelDirectory, *, backend: str | None = None) -> StageFunction:
    """Return the uncut model as one callable on one thread, for comparison with the chain."""
    model = read_model(directory)
    graph = read_graph(directory, model)
    weights = read_tensors(directory, WEIGHTS)
    _check_weights(directory, (graph,), weights)
    return compile_graph(graph, weights, backend=backend or model.backend, threads=1)


def compile_graph(
    graph: Graph,
    weights: Mapping[str, Tensor],
    *,
    backend: str,
    threads: int,
    sizes: Sequence[int] = (1,),
    device: torch.device = HOST,
    streams: int = 1,
    copies: bool = False,
    frugal: bool = False,
) -> StageFunction:
    """Compile a graph (a whole model or a stage) with the named backend; an empty stage returns its input.

    `sizes` are the most frequent batch sizes. `streams` twins may run at the same time, over the same weights unless
    each is to have `copies`. If `frugal`, the stage keeps no memory of a batch that it has run but the outputs.
    Weights that are not on `device` are copied there.
    """
    if not graph.nodes:
        return pass_through
    there = _on(device, weights)
    use = CompileOptions(threads, tuple(sizes), device, streams, copies, frugal)
    return backend_named(backend, device=device.type).compile(graph, there, use)


def compile_stages(
    graphs: tuple[Graph, ...],
    weights: dict[str, Tensor],
    *,
    backend: str,
    threads: int,
    device: torch.device = HOST,
    streams: int = 1,
    copies: bool = False,
) -> tuple[StageFunction, ...]:
    """Compile each graph of a chain; a weight that several stages read is on the device once."""
    there = _on(device, weights)
    use = partial(compile_graph, weights=there, backend=backend, threads=threads, device=device)
    return tuple(use(graph, streams=streams, copies=copies) for graph in graphs)


def _on(device: torch.device, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in weights.items()}


def try_stage(
    directory: ModelDirectory, number: int, graph: Graph, stage: StageFunction, passed: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Run a stage on one row and return its outputs; raises `RepositoryError` if it does not run or fit its graph.

    So a graph that was tampered with fails here and not at the first request.
    """
    try:
        passed = stage(*passed)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise RepositoryError(f"stage {number} of {directory.path} does not run ({error}): build it again") from error
    shapes = tuple((1, *spec.shape) for spec in graph.output_specs())
    if tuple(tuple(tensor.shape) for tensor in passed) != shapes:
        raise RepositoryError(f"stage {number} of {directory.path} yields another shape than its graph says")
    return passed
