"""The files of a sequence model: graphs of encoders and step, `sequence.json`, and the files of any model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from latebind.domain.errors import RepositoryError
from latebind.program.backends import compile_graph
from latebind.program.graph import Graph, checked_buckets, graph_to_json, read_graph_file
from latebind.program.load import has_copies
from latebind.program.metadata import Profile, StoredModel, read_model, read_profile
from latebind.program.pieces import Piece
from latebind.program.stored import write_model
from latebind.repository.directory import SEQUENCE, WEIGHTS, ModelDirectory, json_bytes
from latebind.repository.tensors import MappedTensors, check_weights, read_tensors
from latebind.sequence.export import SequenceGraphs, padded
from latebind.sequence.greedy import NO_RULES, Rules
from latebind.sequence.program import KINDS, SequenceProgram, program_of, step_sizes
from latebind.sequence.state import Part, SpecialTokens

FORMAT = 1
STEP_FILE, ENCODER_FILE = "step.json", "encode.json"  # of graphs
BUCKET_FILE = "encode-{}.json"  # of one of several encoders, as earlier builds stored them, by its longest input
SPARE_FOR_DECODERS = 512 << 20  # bytes that the further copies of a sequence model may take


@dataclass(frozen=True, slots=True)
class StoredSequence:
    """`sequence.json`: the special tokens, the parts of the state, and the rules by which tokens are taken.

    `lengths` are those of several encoders of one length each, which earlier builds made; now empty.
    """

    format: int
    marks: SpecialTokens
    parts: tuple[Part, ...]
    lengths: tuple[int, ...] = ()
    rules: Rules = NO_RULES


def is_stored_sequence(directory: ModelDirectory) -> bool:
    """Return whether this is the directory of a sequence model."""
    return SEQUENCE in directory.files


def write_sequence(
    path: Path, model: StoredModel, graphs: SequenceGraphs, profile: Profile, others: Mapping[str, bytes]
) -> ModelDirectory:
    """Write all files of a sequence model, in one rename; `others` say how its raw inputs are read."""
    files = {**others, ENCODER_FILE: graph_to_json(graphs.encoder), STEP_FILE: graph_to_json(graphs.step)}
    files[SEQUENCE] = json_bytes(StoredSequence(FORMAT, graphs.marks, graphs.parts, rules=graphs.rules))
    return write_model(path, model, graphs.weights, profile, files)


def load_sequence(
    directory: ModelDirectory, *, threads: int = 1, backend: str | None = None, streams: int = 1, twins: int = 0
) -> SequenceProgram:
    """Return the sequence model of `directory`, on the backend that `build` found best unless another is given.

    `streams` of its twins may run at the same time. If there are `twins` in all, each may have a copy of the weights;
    with 0 they share large ones. Steps are so short that handing them to an OpenVINO thread takes longer than they do
    (`has_copies`), so their copies may take more memory, and come first: when two workers shared a step, one request's
    took 1.5 ms instead of 0.5. Raises `RepositoryError` for a directory whose files do not match, `ConfigError` for a
    backend that cannot be used here.
    """
    model, profile, graphs = _read(directory, read_tensors(directory, WEIGHTS))
    chosen = backend if backend is not None else model.backend
    sizes = step_sizes(graphs.step, chosen, model.max_batch) or (1,)

    def compiled_bytes(graph: Graph, sizes: Sequence[int]) -> int:  # for each of these batch sizes and for any other
        return (len(sizes) + 1) * sum([graphs.weights[name].nbytes for name in graph.weights()])

    step = compiled_bytes(graphs.step, () if graphs.step.dims else sizes)
    whole = step + sum([compiled_bytes(bucket, ()) for bucket in graphs.encoder.buckets or (graphs.encoder,)])
    step_copies, all_copies = (has_copies(size, twins, spare=SPARE_FOR_DECODERS) for size in (step, whole))
    use = partial(compile_graph, weights=graphs.weights, backend=chosen, threads=threads, streams=streams)
    stages = use(graphs.encoder, copies=all_copies), use(graphs.step, sizes=sizes, copies=step_copies)
    return program_of(graphs, model, profile, stages, backend=chosen, threads=threads)


def open_sequence(
    directory: ModelDirectory, *, threads: int = 1, backend: str | None = None, streams: int = 1, cached: bool = True
) -> tuple[SequenceProgram, tuple[Piece, ...]]:
    """Return what `load_sequence` returns, with nothing in memory, and its two pieces: the encoder, and the step.

    For `cached` see `MappedFile`.
    """
    weights = MappedTensors(directory, WEIGHTS, cached=cached)
    model, profile, graphs = _read(directory, weights)
    chosen = backend if backend is not None else model.backend
    use = partial(compile_graph, weights=weights, backend=chosen, threads=threads, streams=streams)
    sizes = step_sizes(graphs.step, chosen, model.max_batch) or (1,)
    makes = partial(use, graphs.encoder), partial(use, graphs.step, sizes=sizes)
    pieces = tuple(
        Piece([weights.pages(graph.weights())], [make], backend=chosen)
        for graph, make in zip((graphs.encoder, graphs.step), makes, strict=True)
    )
    stages = pieces[0].stages[0], pieces[1].stages[0]
    return program_of(graphs, model, profile, stages, backend=chosen, threads=threads), pieces


def _read(directory: ModelDirectory, weights: Mapping[str, Tensor]) -> tuple[StoredModel, Profile, SequenceGraphs]:
    """Return the contents of the files; raises `RepositoryError` unless they describe one sequence model."""
    model, stored = read_model(directory), directory.read_json(SEQUENCE, StoredSequence)
    try:
        graphs = _graphs(directory, model, stored, weights)
    except RepositoryError as error:
        raise RepositoryError(f"{directory.path}: its files do not fit ({error}): build the model again") from None
    check_weights(directory, WEIGHTS, (*graphs.encoder.weights(), *graphs.step.weights()), weights)
    return model, read_profile(directory), graphs


def _graphs(
    directory: ModelDirectory, model: StoredModel, stored: StoredSequence, weights: Mapping[str, Tensor]
) -> SequenceGraphs:
    tensors = (*model.inputs, *model.outputs)
    if stored.format != FORMAT or model.kinds != KINDS or [len(spec.shape) for spec in tensors] != [1, 1]:
        raise RepositoryError("another format, or kind of model")
    encoder = padded(_read_encoder(directory, model, stored.lengths), stored.marks)
    step = read_graph_file(directory, STEP_FILE)
    graphs = SequenceGraphs(stored.marks, stored.parts, encoder, step, weights, rules=stored.rules)
    for fault in graphs.faults(*(spec.shape[0] for spec in tensors)):
        raise RepositoryError(fault)
    if encoder.dims != model.dims:
        raise RepositoryError("the encoder takes other lengths")
    return graphs


def _read_encoder(directory: ModelDirectory, model: StoredModel, lengths: Sequence[int]) -> Graph:
    """Return the encoder: one graph, or those of some `lengths` as buckets of one."""
    if not lengths:
        return read_graph_file(directory, ENCODER_FILE)
    buckets = tuple(read_graph_file(directory, BUCKET_FILE.format(length)) for length in lengths)
    tokens, *others = buckets[-1].inputs
    inputs = (replace(tokens, sizes=model.inputs[0].sizes), *others)
    return checked_buckets(Graph(inputs, (), buckets[-1].outputs, model.dims, buckets))
