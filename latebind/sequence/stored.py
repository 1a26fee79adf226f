"""The files of a sequence model: graphs of encoders and step, `sequence.json`, and the files of any model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from latebind.domain.errors import RepositoryError
from latebind.program.backends import StageFunction, compile_graph
from latebind.program.graph import Graph, graph_to_json, read_graph_file
from latebind.program.measure import Profile
from latebind.program.pieces import Piece, make_piece
from latebind.program.stored import StoredModel, read_model, read_profile
from latebind.repository.directory import MODEL, PROFILE, SEQUENCE, WEIGHTS, ModelDirectory, Writer, json_bytes
from latebind.repository.tensors import MappedTensors, check_weights, read_tensors, tensor_file
from latebind.sequence.export import LENGTH, LOGITS, TOKENS, ExportedSequence
from latebind.sequence.program import KINDS, Named, SequenceProgram, SpecialTokens, step_sizes
from latebind.sequence.state import POSITION, TOKEN, Change, Part

FORMAT = 1
STEP_FILE = "step.json"  # with the step's graph
SPARE_FOR_DECODERS = 512 << 20  # bytes that the further copies of a sequence model may take


@dataclass(frozen=True, slots=True)
class StoredSequence:
    """`sequence.json`: the special tokens, the input lengths of the encoders, and the parts of the state."""

    format: int
    marks: SpecialTokens
    lengths: tuple[int, ...]
    parts: tuple[Part, ...]


def has_copies_of_decoder(step: int, reading: int, twins: int) -> tuple[bool, bool]:
    """Return whether each of `twins` workers gets its own copy of a decoder's step, and of what reads before it.

    `step` and `reading` are the bytes of all weights that one worker compiles for each, once for each batch size. Steps
    are so short that handing them to a thread of OpenVINO takes longer than they do (`load.has_copies`), so their
    copies may take more: two workers' step of one request took 1.5 ms where it takes 0.5.
    """
    further = twins - 1
    spare = SPARE_FOR_DECODERS - further * step
    return further > 0 and spare >= 0, further > 0 and spare >= further * reading


def is_stored_sequence(directory: ModelDirectory) -> bool:
    """Return whether this is the directory of a sequence model."""
    return SEQUENCE in directory.files


def write_sequence(
    path: Path, model: StoredModel, marks: SpecialTokens, exported: ExportedSequence, profile: Profile
) -> ModelDirectory:
    """Write all files of a sequence model, in one rename."""
    stored = StoredSequence(FORMAT, marks, tuple(exported.encoders), exported.parts)
    files: dict[str, bytes | Writer] = {
        MODEL: json_bytes(model),
        SEQUENCE: json_bytes(stored),
        STEP_FILE: graph_to_json(exported.step),
        WEIGHTS: tensor_file(exported.weights),
        PROFILE: json_bytes(profile),
        **{encoder_file(length): graph_to_json(graph) for length, graph in exported.encoders.items()},
    }
    return ModelDirectory.create(path, files)


def load_sequence(
    directory: ModelDirectory,
    *,
    threads: int = 1,
    backend: str | None = None,
    streams: int = 1,
    twins: int = 0,
) -> SequenceProgram:
    """Return the sequence model of `directory`, on the backend that `build` found best unless another is named.

    `streams` of its twins may run at the same time. If there are `twins` in all, each may have a copy of the weights;
    with 0 they share large ones. Raises `RepositoryError` for a directory whose files do not fit together,
    `ConfigError` for a backend that cannot be used here.
    """
    files = _read(directory)
    weights = read_tensors(directory, WEIGHTS)
    files.check_weights(directory, weights)
    chosen = backend if backend is not None else files.model.backend
    sizes = step_sizes(chosen, files.model.max_batch) or (1,)

    def compiled_bytes(graph: Graph, sizes: Sequence[int]) -> int:  # for each of these batch sizes and for any other
        return (len(sizes) + 1) * sum([weights[name].nbytes for name in graph.weights()])

    reading = sum([compiled_bytes(graph, (1,)) for graph in files.encoders.values()])
    step_copies, encoder_copies = has_copies_of_decoder(compiled_bytes(files.step, sizes), reading, twins)
    use = partial(compile_graph, weights=weights, backend=chosen, threads=threads, streams=streams)
    calls = [use(graph, copies=encoder_copies) for graph in files.encoders.values()]
    calls.append(use(files.step, sizes=sizes, copies=step_copies))
    return _sequence(files, calls, backend=chosen, threads=threads)


def open_sequence(
    directory: ModelDirectory, *, threads: int = 1, backend: str | None = None, streams: int = 1, cached: bool = True
) -> tuple[SequenceProgram, tuple[Piece, Piece]]:
    """Return what `load_sequence` returns, with nothing in memory, and its two pieces: the encoders, and the step.

    For `cached` see `MappedFile`.
    """
    files = _read(directory)
    weights = MappedTensors(directory, WEIGHTS, cached=cached)
    files.check_weights(directory, weights)
    chosen = backend if backend is not None else files.model.backend
    use = partial(compile_graph, weights=weights, backend=chosen, threads=threads, streams=streams)
    graphs, sizes = files.encoders.values(), step_sizes(chosen, files.model.max_batch) or (1,)
    reading, encoders = make_piece(
        [weights.pages({name for graph in graphs for name in graph.weights()})],
        [partial(use, graph) for graph in graphs],
        backend=chosen,
    )
    writing, places = make_piece(
        [weights.pages(files.step.weights())], [partial(use, files.step, sizes=sizes)], backend=chosen
    )
    return _sequence(files, [*encoders, *places], backend=chosen, threads=threads), (reading, writing)


def encoder_file(length: int) -> str:
    """Return the file name of the encoder's graph for inputs of up to `length` tokens."""
    return f"encode-{length}.json"


@dataclass(frozen=True, slots=True)
class _Files:
    """The checked files of a sequence model, without its weights."""

    model: StoredModel
    profile: Profile
    stored: StoredSequence
    encoders: dict[int, Graph]
    step: Graph

    def check_weights(self, directory: ModelDirectory, weights: Mapping[str, Tensor]) -> None:
        """Raise `RepositoryError` if a weight is missing that a graph names."""
        named = (name for graph in (*self.encoders.values(), self.step) for name in graph.weights())
        check_weights(directory, WEIGHTS, named, weights)


def _read(directory: ModelDirectory) -> _Files:
    model, stored = read_model(directory), directory.read_json(SEQUENCE, StoredSequence)
    encoders = {length: read_graph_file(directory, encoder_file(length)) for length in stored.lengths}
    step = read_graph_file(directory, STEP_FILE)
    _check(directory, model, stored, encoders, step)
    return _Files(model, read_profile(directory), stored, encoders, step)


def _sequence(files: _Files, calls: Sequence[StageFunction], *, backend: str, threads: int) -> SequenceProgram:
    """Return the program of these compiled graphs: the encoders, then the step."""
    model, profile = files.model, files.profile
    named = [Named.of(graph, call) for graph, call in zip((*files.encoders.values(), files.step), calls, strict=True)]
    return SequenceProgram(
        spec=model.spec(),
        costs=profile.costs(),
        backend=backend,
        threads=threads,
        marks=files.stored.marks,
        parts=files.stored.parts,
        encoders=dict(zip(files.encoders, named, strict=False)),
        step=named[-1],
        sizes=step_sizes(backend, model.max_batch),
        costs_fit=len(profile.stages) == len(KINDS) and profile.matches_this_machine(threads=threads, backend=backend),
    )


def _check(
    directory: ModelDirectory, model: StoredModel, stored: StoredSequence, encoders: dict[int, Graph], step: Graph
) -> None:
    """Raise `RepositoryError` unless the files describe one sequence model."""
    lengths, parts = stored.lengths, {part.name: part for part in stored.parts}
    shapes = {spec.name: spec.shape for spec in step.inputs}
    wanted = {TOKEN: (), POSITION: (), **{name: part.shape for name, part in parts.items()}}
    right = (
        stored.format == FORMAT
        and model.kinds == KINDS
        and [len(spec.shape) for spec in (*model.inputs, *model.outputs)] == [1, 1]
        and lengths == tuple(sorted(set(lengths)))
        and lengths[-1:] == model.inputs[0].shape
        and list(shapes.items()) == list(wanted.items())
        and {spec.name for spec in step.output_specs()} <= {LOGITS, *parts}
        and step.outputs[0][0] == LOGITS
        and all(_encodes(graph, length, parts) for length, graph in encoders.items())
        and all(_changes(part, model.outputs[0].shape[0]) for part in stored.parts)
    )
    if not right:
        raise RepositoryError(f"{directory.path}: {SEQUENCE}, {MODEL} and the graphs do not fit: build the model again")


def _encodes(graph: Graph, length: int, parts: dict[str, Part]) -> bool:
    """Return whether a graph reads `length` tokens and outputs only parts of the state."""
    return [(spec.name, spec.shape) for spec in graph.inputs] == [(TOKENS, (length,)), (LENGTH, ())] and all(
        spec.name in parts
        and len(spec.shape) == len(parts[spec.name].shape)
        and all(a <= b for a, b in zip(spec.shape, parts[spec.name].shape, strict=True))
        for spec in graph.output_specs()
    )


def _changes(part: Part, longest_output: int) -> bool:
    """Return whether the part, if it is written by position, has an axis for the positions."""
    return part.change is not Change.WRITTEN or part.shape[part.axis : part.axis + 1] == (longest_output,)
