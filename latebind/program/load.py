"""Loads a verified model directory into a program that can run. Nothing in the directory is executed.

On OpenVINO a program is read from the files that its build wrote (`stage_files`), which needs no torch. Torch rebuilds
other graphs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.program.backends import (
    CompileOptions,
    Later,
    StageFunction,
    backend_named,
    backend_of,
    compile_for,
    compile_graph,
    immediately,
    on_device,
)
from latebind.program.device import HOST, IMPORTS, has_torch, kind_of, without_torch
from latebind.program.graph import Graph
from latebind.program.measure import made_up_inputs, made_up_tensors
from latebind.program.metadata import StoredModel, read_model, read_profile
from latebind.program.pieces import Piece
from latebind.program.program import Program
from latebind.program.stage_files import anything, has_files, needs_file, place_of, read_all, read_stage
from latebind.program.stored import read_graph, read_stages
from latebind.repository.directory import SEQUENCE, WEIGHTS, ModelDirectory
from latebind.repository.tensors import MappedTensors, check_weights, read_arrays, read_tensors

SPARE = 32 << 20  # bytes that the further copies of a model may take


@dataclass(frozen=True, slots=True)
class _Read:
    """A model as read: its graphs, its weights, and `make`, which compiles a stage with some options."""

    model: StoredModel
    backend: str
    graphs: tuple[Graph, ...]
    weights: Mapping[str, Any]
    make: Callable[[int, CompileOptions], StageFunction]
    from_files: bool = False


def load_program(
    directory: ModelDirectory,
    *,
    threads: int = 1,
    backend: str | None = None,
    device: str = HOST,
    streams: int = 1,
    twins: int = 0,
    later: Later = immediately,
) -> Program:
    """Return the model of `directory` as a chain of stages on `threads` threads, or on a CUDA device.

    `streams` of its twins run at the same time. If there are `twins` in all, each may have a copy of the weights if
    that takes little memory; with 0 they share large weights. Work that only makes batches faster is passed to
    `later`, unless the model's costs have to be measured here.

    The backend is the one that `build` found best, unless another is given. Raises `RepositoryError` for a directory
    whose files do not match or whose graph does not run, `ConfigError` for a backend that cannot be used here.
    """
    if SEQUENCE in directory.files:
        raise ConfigError(f"{directory.path} is a sequence model, which has no learned caches: serve it as it is")
    there = _read(directory, backend, device=device)
    copies = has_copies(2 * sum(weight.nbytes for weight in there.weights.values()), twins)  # for one row and for any
    if not _costs_fit(directory, there, threads=threads, device=device):
        later = immediately
    options = CompileOptions(
        threads, device=device, streams=streams, copies=copies, packs=there.model.packs, later=later
    )
    makes = [partial(there.make, number, options) for number in range(len(there.graphs))]
    stages = tuple(read_all(makes) if there.from_files else [make() for make in makes])
    program = _program(directory, there, stages, threads=threads, device=device)
    passed = (
        made_up_inputs(program.spec.inputs, 1) if device == HOST else made_up_tensors(program.spec.inputs, 1, device)
    )
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
    there = _read(directory, backend, mapped=weights)
    options = CompileOptions(threads, streams=streams, frugal=True, packs=there.model.packs)
    pieces = tuple(
        Piece(
            [weights.pages(one.weights())],
            [partial(there.make, number, options)],
            backend=backend_of(one, there.weights, there.backend),
        )
        for number, one in enumerate(there.graphs)
    )
    stages = tuple(piece.stages[0] for piece in pieces)
    return _program(directory, there, stages, threads=threads, device=HOST), pieces


def load_uncut(directory: ModelDirectory, *, backend: str | None = None) -> StageFunction:
    """Return the uncut model as one callable on one thread, for comparison with the chain."""
    model = read_model(directory)
    graph = read_graph(directory, model)
    weights = read_tensors(directory, WEIGHTS)
    check_weights(directory, WEIGHTS, graph.weights(), weights)
    return compile_graph(graph, weights, backend=backend or model.backend, threads=1)


def has_copies(size: int, twins: int, *, spare: int = SPARE) -> bool:
    """Return whether each of `twins` workers gets its own copy of what takes `size` bytes compiled; 0: they share.

    An OpenVINO stage that workers share hands each call to an OpenVINO thread (`openvino._options`). With two models
    in turn, as in a query, the system often wakes a thread on a busy core while the other core is idle: of two cores
    1.57 were busy. If each worker has a copy, it computes on its own thread, and 1.90 are busy.
    """
    return twins > 1 and (twins - 1) * size <= spare


def try_stage(program: Program, number: int, directory: ModelDirectory, passed: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run a stage on one row and return its outputs; raises `RepositoryError` if it does not run or fit its graph.

    So a graph that was tampered with fails here and not at the first request. On the host the outputs are arrays.
    """
    try:
        passed = program.calls[number](*passed)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise RepositoryError(f"stage {number} of {directory.path} does not run ({error}): build it again") from error
    shapes = tuple((1, *spec.shape) for spec in program.graphs[number].output_specs())
    if tuple(tuple(tensor.shape) for tensor in passed) != shapes:
        raise RepositoryError(f"stage {number} of {directory.path} returns another shape than its graph declares")
    return passed


def _program(
    directory: ModelDirectory, there: _Read, stages: tuple[StageFunction, ...], *, threads: int, device: str
) -> Program:
    fits, costs = _costs_fit(directory, there, threads=threads, device=device), read_profile(directory).costs()
    return Program(there.model.spec(), costs, there.backend, threads, stages, there.graphs, fits, device)


def _costs_fit(directory: ModelDirectory, there: _Read, *, threads: int, device: str) -> bool:
    """Return whether the model's costs were measured on a machine like this one, in the same use."""
    profile = read_profile(directory)
    here = device == HOST and profile.matches_this_machine(threads=threads, backend=there.backend)  # of CPUs only
    return here and len(profile.stages) == len(there.graphs)


def _read(
    directory: ModelDirectory, backend: str | None, *, device: str = HOST, mapped: MappedTensors | None = None
) -> _Read:
    """Read a model, with the `mapped` weights if given; raises `RepositoryError` and `ConfigError`."""
    model = read_model(directory)
    chosen = backend or model.backend
    if IMPORTS.get(chosen) == "torch" and not has_torch():
        raise ConfigError(without_torch(directory, chosen))
    kind = backend_named(chosen, device=kind_of(device))
    found = _of_files(directory, model, chosen, mapped) if kind.has_files else None
    if found is not None:
        return found
    if not has_torch():
        raise ConfigError(without_torch(directory, chosen))
    weights = on_device(read_tensors(directory, WEIGHTS) if mapped is None else mapped, device)
    graphs = read_stages(directory, model)
    _check(directory, graphs, weights)

    def make(number: int, use: CompileOptions) -> StageFunction:
        return compile_for(use, graphs[number], weights, backend=chosen)

    return _Read(model, chosen, graphs, weights, make)


def _of_files(
    directory: ModelDirectory, model: StoredModel, backend: str, mapped: MappedTensors | None
) -> _Read | None:
    """Read a model from the files of its stages; None if it was built without them."""
    graphs = read_stages(directory, model, known=anything)  # each matches its file, and only that runs
    first = 1 if graphs and not graphs[0].whole.nodes else 0
    arrays = read_arrays(directory, WEIGHTS) if mapped is None else mapped.arrays
    _check(directory, graphs, arrays)
    for number, graph in enumerate(graphs, -first):
        if needs_file(graph, arrays, backend) and not has_files(directory, place_of(number), graph):
            return None

    def make(number: int, use: CompileOptions) -> StageFunction:
        return read_stage(directory, place_of(number - first), graphs[number], arrays, backend=backend, options=use)

    return _Read(model, backend, graphs, arrays, make, from_files=True)


def _check(directory: ModelDirectory, graphs: Iterable[Graph], weights: Collection[str]) -> None:
    check_weights(directory, WEIGHTS, (name for graph in graphs for name in graph.weights()), weights)
