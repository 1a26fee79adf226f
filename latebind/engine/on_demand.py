"""Models that are served and not in memory: opened, measured piece by piece, and let go again.

What a piece takes and how long it takes to come is measured here, before anything is served, one piece at a time, so
that not even this needs more memory than serving does.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.domain.footprint import Footprint
from latebind.domain.model import TensorSpec
from latebind.engine.worker import LoadedModel
from latebind.learned.lookup import Lookup, open_lookups
from latebind.learned.stored import read_caches, with_caches
from latebind.program.backends import backend_named
from latebind.program.device import HOST
from latebind.program.graph import Graph, Node, TensorType, Value
from latebind.program.load import compile_graph, open_program, try_stage
from latebind.program.measure import made_up_inputs, median_seconds, profiled_batches, with_batch
from latebind.program.pieces import Piece
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.sequence.measure import profile_sequence, warm_up
from latebind.sequence.program import SequenceProgram
from latebind.sequence.stored import is_stored_sequence, open_sequence

NOTHING_MUCH = Graph(
    inputs=(TensorSpec("x", "float32", (1,)),),
    nodes=(Node("y", "aten.relu.default", (Value("x"),), type=TensorType("float32", (None, 1))),),
    outputs=(("y", "y"),),
)
Rows = dict[int, tuple[Tensor, ...]]  # what a stage takes, by size of batch


@dataclass(frozen=True, slots=True)
class Opened:
    """A model of which nothing is in memory; `pieces` are its stages, then the learned caches behind `behind`."""

    model: LoadedModel
    pieces: tuple[Piece, ...]
    behind: tuple[int, ...] = ()
    graphs: tuple[Graph, ...] = ()


def open_model(path: Path, config: EngineConfig, *, streams: int = 1, cached: bool = True) -> Opened:
    """Open a model directory; raises what `load_model` raises. For `cached` see `MappedFile`."""
    if config.device != HOST.type:
        raise ConfigError(f"engine.device is {config.device}: models come and go on the CPU alone, leave --memory out")
    directory, threads = ModelDirectory.open(path), config.threads
    if is_stored_sequence(directory):
        sequence, pieces = open_sequence(
            directory, threads=threads, backend=config.backend, streams=streams, cached=cached
        )
        return Opened(LoadedModel(sequence.spec, sequence.costs, sequence, {}, directory), pieces)
    program, graphs, stages = open_program(
        directory, threads=threads, backend=config.backend, streams=streams, cached=cached
    )
    if not config.exits:
        if program.entry:
            graphs, stages = graphs[1:], stages[1:]
        program = program.without_entry()
        return Opened(LoadedModel(program.spec, program.costs, program, {}, directory), stages, graphs=graphs)
    spec, costs = with_caches(program.spec, program.costs, read_caches(directory))
    lookups, caches = open_lookups(directory, backend=program.backend, threads=threads, streams=streams, cached=cached)
    model = LoadedModel(spec, costs, program, lookups, directory)
    return Opened(model, (*stages, *caches.values()), tuple(caches), graphs)


def warm_backend(name: str, threads: int) -> None:
    """Have a backend take now what it takes for itself, so that it counts for no model's piece."""
    if backend_named(name).compiles:
        compile_graph(NOTHING_MUCH, {}, backend=name, threads=threads)(torch.zeros(1, 1))


def measure(opened: Opened, budget: int) -> LoadedModel:
    """Load each piece, run a row through it and let it go; return the model with its footprint, and costs that hold.

    A profile that was taken elsewhere is taken anew. Raises `RepositoryError` for a model that does not run, and
    `ConfigError` for a piece that takes more than `budget` bytes.
    """
    model = opened.model
    with torch.inference_mode():
        if isinstance(model.program, SequenceProgram):
            return _measure_sequence(model, model.program, opened.pieces, budget)
        return _measure_chain(opened, model.program, budget)


def _measure_chain(opened: Opened, program: Program, budget: int) -> LoadedModel:
    model = opened.model
    batches = (1,) if program.costs_fit else profiled_batches(program.spec.max_batch)
    made = made_up_inputs(program.spec.inputs, max(batches))
    rows: Rows = {batch: with_batch(made, batch) for batch in batches}
    seconds, curves, seen = list[float](), list[Curve](), list[Tensor]()
    for number, (piece, graph) in enumerate(zip(opened.pieces, opened.graphs, strict=False)):
        with _loaded(piece, model, budget) as taken:
            stage = program.stages[number]
            try_stage(model.directory, number, graph, stage, rows[1])
            if not program.costs_fit:
                times = [median_seconds(lambda x=rows[batch], s=stage: s(*x)) for batch in batches]  # type: ignore[misc]
                curves.append(Curve(batches, tuple(times)))
            rows = {batch: tuple(tensor.clone() for tensor in stage(*rows[batch])) for batch in batches}
        seconds.append(taken)
        seen.append(rows[1][0])
    for stage_before, piece in zip(opened.behind, opened.pieces[len(seen) :], strict=True):
        with _loaded(piece, model, budget) as taken:
            _try_lookup(model, stage_before, seen[stage_before])
        seconds.append(taken)
    costs = replace(model.costs, stages=tuple(curves)) if curves else model.costs
    gains = tuple(_gain(costs, stage) for stage in opened.behind)
    footprint = Footprint(tuple(piece.size for piece in opened.pieces), tuple(seconds), opened.behind, gains)
    return replace(model, costs=costs, footprint=footprint)


def _measure_sequence(
    model: LoadedModel, program: SequenceProgram, pieces: Sequence[Piece], budget: int
) -> LoadedModel:
    """Load both pieces: what reads is of no use without what writes."""
    with ExitStack() as held:
        seconds = tuple(held.enter_context(_loaded(piece, model, budget)) for piece in pieces)
        warm_up(program, 1)
        if not program.costs_fit:
            program = profile_sequence(program)
    footprint = Footprint(tuple(piece.size for piece in pieces), seconds)
    return replace(model, costs=program.costs, program=program, footprint=footprint)


@contextmanager
def _loaded(piece: Piece, model: LoadedModel, budget: int) -> Iterator[float]:
    """Have a piece in memory; yields the seconds that it took to get there."""
    if piece.weights > budget:
        raise ConfigError(
            f"a piece of {model.spec.name} has {_mb(piece.weights)} of weights and models may take {_mb(budget)} "
            "beside their slots: give more --memory, or build the model with more stages"
        )
    begun = time.monotonic()
    piece.load()
    try:
        yield time.monotonic() - begun
    finally:
        piece.unload()


def _try_lookup(model: LoadedModel, stage: int, activation: Tensor) -> None:
    lookup: Lookup = model.lookups[stage]
    try:
        lookup(activation)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise RepositoryError(
            f"the learned cache behind stage {stage} of {model.directory.path} does not run ({error}): build it again"
        ) from error


def _gain(costs: ModelCosts, stage: int) -> float:
    """Return the seconds that the learned cache behind a stage saves a request on average."""
    saved = costs.hit_rates.get(stage, 0.0) * costs.remaining(stage + 1, 1)
    return max(0.0, saved - (0.0 if costs.aside else costs.lookups[stage].at(1)))


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
