"""Loads a verified model directory into a program that can run. Nothing in the directory is executed."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.program.backends import StageFunction, backend_of, compile_graph, compile_stages
from latebind.program.device import HOST
from latebind.program.graph import Graph
from latebind.program.measure import made_up_inputs
from latebind.program.metadata import StoredModel, read_model, read_profile
from latebind.program.pieces import Piece
from latebind.program.program import Program
from latebind.program.stored import read_graph, read_stages
from latebind.repository.directory import SEQUENCE, WEIGHTS, ModelDirectory
from latebind.repository.tensors import MappedTensors, check_weights, read_tensors

Weights = Mapping[str, Tensor]

SPARE = 32 << 20  # bytes that the further copies of a model may take


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
    model, graphs, weights = _read(directory, read_tensors(directory, WEIGHTS))
    chosen = backend or model.backend
    copies = has_copies(2 * sum(weight.nbytes for weight in weights.values()), twins)  # for one row and for any
    stages = compile_stages(
        graphs,
        weights,
        backend=chosen,
        threads=threads,
        device=device,
        streams=streams,
        copies=copies,
        packs=model.packs,
    )
    program = _program(directory, model, graphs, stages, backend=chosen, threads=threads, device=device)
    passed = made_up_inputs(model.inputs, 1, device=device)
    for number in range(len(stages)):
        passed = try_stage(program, number, directory, passed)
    return program


def open_program(
    directory: ModelDirectory,
    *,
    threads: int = 1,
    backend: str | None = None,
    streams: int = 1,
    cached: bool = True,
) -> tuple[Program, tuple[Piece, ...]]:
    """Return the model of `directory` with nothing in memory, and a piece for each stage.

    On the CPU, a stage can be called while its piece is loaded. Nothing has been run yet. For `cached` see
    `MappedFile`. Raises what `load_program` raises.
    """
    weights = MappedTensors(directory, WEIGHTS, cached=cached)
    model, graphs, _ = _read(directory, weights)
    chosen = backend or model.backend
    use = partial(
        compile_graph, weights=weights, backend=chosen, threads=threads, streams=streams, frugal=True, packs=model.packs
    )
    pieces = tuple(
        Piece([weights.pages(one.weights())], [partial(use, one)], backend=backend_of(one, weights, chosen))
        for one in graphs
    )
    stages = tuple(piece.stages[0] for piece in pieces)
    return _program(directory, model, graphs, stages, backend=chosen, threads=threads, device=HOST), pieces


def load_uncut(directory: ModelDirectory, *, backend: str | None = None) -> StageFunction:
    """Return the uncut model as one callable on one thread, for comparison with the chain."""
    model = read_model(directory)
    graph = read_graph(directory, model)
    weights = read_tensors(directory, WEIGHTS)
    check_weights(directory, WEIGHTS, graph.weights(), weights)
    return compile_graph(graph, weights, backend=backend or model.backend, threads=1)


def has_copies(size: int, twins: int, *, spare: int = SPARE) -> bool:
    """Return whether each of `twins` workers gets its own copy of what takes `size` bytes compiled. With 0 they share.

    An OpenVINO stage that workers share hands each call to a thread of OpenVINO (`openvino._options`). With two models
    in turn, as in a query, the system often wakes a thread on a busy core while the other core is idle: of two cores
    1.57 were busy. If each worker has a copy of its own, it computes on its own thread, and 1.90 are busy.
    """
    return twins > 1 and (twins - 1) * size <= spare


def try_stage(
    program: Program, number: int, directory: ModelDirectory, passed: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Run a stage on one row and return its outputs; raises `RepositoryError` if it does not run or fit its graph.

    So a graph that was tampered with fails here and not at the first request.
    """
    try:
        passed = program.stages[number](*passed)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise RepositoryError(f"stage {number} of {directory.path} does not run ({error}): build it again") from error
    shapes = tuple((1, *spec.shape) for spec in program.graphs[number].output_specs())
    if tuple(tuple(tensor.shape) for tensor in passed) != shapes:
        raise RepositoryError(f"stage {number} of {directory.path} yields another shape than its graph says")
    return passed


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
    here = device == HOST and profile.matches_this_machine(threads=threads, backend=backend)  # measured on CPUs only
    fits = here and len(profile.stages) == len(stages)
    return Program(model.spec(), profile.costs(), backend, threads, stages, graphs, fits, device)


def _read(directory: ModelDirectory, weights: Weights) -> tuple[StoredModel, tuple[Graph, ...], Weights]:
    model = read_model(directory)
    graphs = read_stages(directory, model)
    check_weights(directory, WEIGHTS, (name for graph in graphs for name in graph.weights()), weights)
    return model, graphs, weights
