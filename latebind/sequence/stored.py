"""The files of a sequence model: graphs of encoders and step, `sequence.json`, and the files of any model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from latebind.domain.errors import RepositoryError
from latebind.program.backends import compile_graph
from latebind.program.graph import Graph, graph_to_json, read_graph_file
from latebind.program.load import has_copies
from latebind.program.measure import Profile
from latebind.program.pieces import Piece
from latebind.program.stored import StoredModel, read_model, read_profile, write_model
from latebind.repository.directory import SEQUENCE, WEIGHTS, ModelDirectory, json_bytes
from latebind.repository.tensors import MappedTensors, check_weights, read_tensors
from latebind.sequence.export import SequenceGraphs
from latebind.sequence.program import KINDS, SequenceProgram, program_of, step_sizes
from latebind.sequence.state import Part, SpecialTokens

FORMAT = 1
STEP_FILE, ENCODER_FILE = "step.json", "encode-{}.json"  # of graphs; an encoder's is named by its longest input
SPARE_FOR_DECODERS = 512 << 20  # bytes that the further copies of a sequence model may take


@dataclass(frozen=True, slots=True)
class StoredSequence:
    """`sequence.json`: the special tokens, the input lengths of the encoders, and the parts of the state."""

    format: int
    marks: SpecialTokens
    lengths: tuple[int, ...]
    parts: tuple[Part, ...]


def is_stored_sequence(directory: ModelDirectory) -> bool:
    """Return whether this is the directory of a sequence model."""
    return SEQUENCE in directory.files


def write_sequence(path: Path, model: StoredModel, graphs: SequenceGraphs, profile: Profile) -> ModelDirectory:
    """Write all files of a sequence model, in one rename."""
    files = {ENCODER_FILE.format(length): graph_to_json(graph) for length, graph in graphs.encoders.items()}
    files[STEP_FILE] = graph_to_json(graphs.step)
    files[SEQUENCE] = json_bytes(StoredSequence(FORMAT, graphs.marks, tuple(graphs.encoders), graphs.parts))
    return write_model(path, model, graphs.weights, profile, files)


def load_sequence(
    directory: ModelDirectory, *, threads: int = 1, backend: str | None = None, streams: int = 1, twins: int = 0
) -> SequenceProgram:
    """Return the sequence model of `directory`, on the backend that `build` found best unless another is named.

    `streams` of its twins may run at the same time. If there are `twins` in all, each may have a copy of the weights;
    with 0 they share large ones. Steps are so short that handing them to a thread of OpenVINO takes longer than they do
    (`has_copies`), so their copies may take more, and come first: two workers' step of one request took 1.5 ms where it
    takes 0.5. Raises `RepositoryError` for a directory whose files do not fit together, `ConfigError` for a backend
    that cannot be used here.
    """
    model, profile, graphs = _read(directory, read_tensors(directory, WEIGHTS))
    chosen = backend if backend is not None else model.backend
    sizes = step_sizes(chosen, model.max_batch) or (1,)

    def compiled_bytes(graph: Graph, sizes: Sequence[int]) -> int:  # for each of these batch sizes and for any other
        return (len(sizes) + 1) * sum([graphs.weights[name].nbytes for name in graph.weights()])

    step = compiled_bytes(graphs.step, sizes)
    whole = step + sum([compiled_bytes(graph, (1,)) for graph in graphs.encoders.values()])
    step_copies, all_copies = (has_copies(size, twins, spare=SPARE_FOR_DECODERS) for size in (step, whole))
    use = partial(compile_graph, weights=graphs.weights, backend=chosen, threads=threads, streams=streams)
    calls = [use(graph, copies=all_copies) for graph in graphs.encoders.values()]
    calls.append(use(graphs.step, sizes=sizes, copies=step_copies))
    return program_of(graphs, model, profile, calls, backend=chosen, threads=threads)


def open_sequence(
    directory: ModelDirectory, *, threads: int = 1, backend: str | None = None, streams: int = 1, cached: bool = True
) -> tuple[SequenceProgram, tuple[Piece, Piece]]:
    """Return what `load_sequence` returns, with nothing in memory, and its two pieces: the encoders, and the step.

    For `cached` see `MappedFile`.
    """
    weights = MappedTensors(directory, WEIGHTS, cached=cached)
    model, profile, graphs = _read(directory, weights)
    chosen = backend if backend is not None else model.backend
    use = partial(compile_graph, weights=weights, backend=chosen, threads=threads, streams=streams)
    makes = [partial(use, graph) for graph in graphs.encoders.values()]
    read = {name for graph in graphs.encoders.values() for name in graph.weights()}
    reading = Piece([weights.pages(read)], makes, backend=chosen)
    make = partial(use, graphs.step, sizes=step_sizes(chosen, model.max_batch) or (1,))
    writing = Piece([weights.pages(graphs.step.weights())], [make], backend=chosen)
    calls = (*reading.stages, *writing.stages)
    program = program_of(graphs, model, profile, calls, backend=chosen, threads=threads)
    return program, (reading, writing)


def _read(directory: ModelDirectory, weights: Mapping[str, Tensor]) -> tuple[StoredModel, Profile, SequenceGraphs]:
    """Return what the files hold; raises `RepositoryError` unless they describe one sequence model."""
    model, stored = read_model(directory), directory.read_json(SEQUENCE, StoredSequence)
    encoders = {length: read_graph_file(directory, ENCODER_FILE.format(length)) for length in stored.lengths}
    step = read_graph_file(directory, STEP_FILE)
    graphs = SequenceGraphs(stored.marks, stored.parts, encoders, step, weights)
    tensors = (*model.inputs, *model.outputs)
    right = stored.format == FORMAT and model.kinds == KINDS and [len(spec.shape) for spec in tensors] == [1, 1]
    fault = (
        next(graphs.faults(*(spec.shape[0] for spec in tensors)), None) if right else "another format, or kind of model"
    )
    if fault is not None or len(encoders) < len(stored.lengths):
        raise RepositoryError(f"{directory.path}: its files do not fit ({fault}): build the model again")
    check_weights(directory, WEIGHTS, (name for graph in graphs.graphs for name in graph.weights()), weights)
    return model, read_profile(directory), graphs
