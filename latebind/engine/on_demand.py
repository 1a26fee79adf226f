"""Models that are served on demand: opened without loading, measured piece by piece, and unloaded again.

The size and loading time of each piece are measured before anything is served, one piece at a time, so that even this
needs no more memory than serving does.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.domain.footprint import Footprint
from latebind.engine.worker import LoadedModel
from latebind.learned.lookup import Lookup, open_lookups
from latebind.learned.stored import read_caches, with_caches
from latebind.program.backends import StageFunction
from latebind.program.device import HOST
from latebind.program.graph import Graph
from latebind.program.load import open_program, try_stage
from latebind.program.measure import made_up_inputs, median_seconds, profiled_batches, with_batch
from latebind.program.pieces import Piece, peak_growth, release_memory, resident_bytes
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.sequence.program import SequenceProgram, profile_sequence, warm_up
from latebind.sequence.stored import is_stored_sequence, open_sequence

MIB = 1 << 20
ROW_COPIES = 3  # of a decoder's rows, at most: they double when they are too few, and are copied then

Rows = dict[int, tuple[Tensor, ...]]  # inputs of a stage, by batch size


@dataclass(frozen=True, slots=True)
class Opened:
    """A model with nothing in memory. `pieces` are its stages, then the learned caches behind the stages `behind`."""

    model: LoadedModel
    pieces: tuple[Piece, ...]
    behind: tuple[int, ...] = ()
    graphs: tuple[Graph, ...] = ()


def open_model(path: Path, config: EngineConfig, *, streams: int = 1, cached: bool = True) -> Opened:
    """Open a model directory. Raises what `load_model` raises. For `cached` see `MappedFile`."""
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


def measure(opened: Opened, budget: int) -> LoadedModel:
    """Load each piece, run a row through it and unload it; return the model with its footprint and valid costs.

    A profile that was measured on another machine is measured again here. Raises `RepositoryError` for a model that
    does not run, and `ConfigError` for a piece that takes more than `budget` bytes.
    """
    model = opened.model
    with torch.inference_mode():
        if isinstance(model.program, SequenceProgram):
            return _measure_sequence(model, model.program, opened.pieces, budget)
        return _measure_chain(opened, model.program, budget)


def _measure_chain(opened: Opened, program: Program, budget: int) -> LoadedModel:
    model = opened.model
    seconds, curves, seen, working = _measure_stages(opened, program, budget)
    for stage, piece in zip(opened.behind, opened.pieces[len(seen) :], strict=True):
        with _loaded(piece, model, budget) as loading:
            _try_lookup(model, stage, seen[stage])
        seconds.append(loading.seconds)
    costs = replace(model.costs, stages=tuple(curves)) if curves else model.costs
    gains = tuple(_gain(costs, stage) for stage in opened.behind)
    sizes = tuple(piece.size for piece in opened.pieces)
    grain = min((piece.grain for piece in opened.pieces[: len(seen)]), default=0)
    runs = tuple(curve.at(1) for curve in costs.stages)
    row = max([tensor.nbytes for tensor in seen[:-1]], default=0)
    footprint = Footprint(sizes, tuple(seconds), opened.behind, gains, grain=grain, runs=runs, row=row)
    return replace(model, costs=costs, footprint=footprint, working=working)


def _measure_stages(
    opened: Opened, program: Program, budget: int
) -> tuple[list[float], list[Curve], list[Tensor], int]:
    """Return each stage's loading time, its curve if the stored profile is of no use here, and its output for one row.

    Also return the most bytes that a batch takes while it runs, inputs included, in whole MiB, because the kernel
    counts pages with some delay.
    """
    most = program.spec.max_batch
    batches = tuple(sorted({1, most})) if program.costs_fit else profiled_batches(most)
    made = made_up_inputs(program.spec.inputs, most)
    rows: Rows = {batch: with_batch(made, batch) for batch in batches}
    seconds, curves, seen, working = list[float](), list[Curve](), list[Tensor](), 0
    for number, (graph, stage) in enumerate(zip(opened.graphs, program.stages, strict=True)):
        with _loaded(opened.pieces[number], opened.model, budget) as loading:
            try_stage(opened.model.directory, number, graph, stage, rows[1])
            if not program.costs_fit:
                times = [median_seconds(partial(stage, *rows[batch])) for batch in batches]
                curves.append(Curve(batches, tuple(times)))
            read, before = sum(tensor.nbytes for tensor in rows[most]), _bytes(rows)
            rows, grown = peak_growth(partial(_run, stage, rows))
            working = max(working, read + grown)
            loading.beside = _bytes(rows) - before
        seconds.append(loading.seconds)
        seen.append(rows[1][0])
    return seconds, curves, seen, working // MIB * MIB


def _bytes(rows: Rows) -> int:
    return sum(tensor.nbytes for some in rows.values() for tensor in some)


@torch.inference_mode()
def _run(stage: StageFunction, rows: Rows) -> Rows:
    return {batch: tuple([tensor.clone() for tensor in stage(*some)]) for batch, some in rows.items()}


def _measure_sequence(
    model: LoadedModel, program: SequenceProgram, pieces: Sequence[Piece], budget: int
) -> LoadedModel:
    """Load both pieces together: reading is useless without writing."""
    with ExitStack() as held:
        seconds = tuple(held.enter_context(_loaded(piece, model, budget)).seconds for piece in pieces)
        _, working = peak_growth(partial(_warm_up, program, model.spec.max_batch))
        if not program.costs_fit:
            program = profile_sequence(program)
    row = ROW_COPIES * sum([np.dtype(part.dtype).itemsize * prod(part.shape) for part in program.parts])
    footprint = Footprint(tuple(piece.size for piece in pieces), seconds, row=row)
    return replace(model, costs=program.costs, program=program, footprint=footprint, working=working // MIB * MIB)


@torch.inference_mode()
def _warm_up(program: SequenceProgram, largest: int) -> None:
    warm_up(program, largest)


@dataclass(slots=True)
class Loading:
    """A piece that is in memory: the seconds that loading took, and what it is measured `beside`, in bytes."""

    seconds: float
    beside: int = 0


@contextmanager
def _loaded(piece: Piece, model: LoadedModel, budget: int) -> Iterator[Loading]:
    """Hold a piece in memory within this context and tell it its size: what the process has grown by.

    What was freed meanwhile does not count, nor the bytes that whoever measures keeps `beside` it.
    """
    if piece.weights > budget:
        raise ConfigError(
            f"a piece of {model.spec.name} has {_mb(piece.weights)} of weights and models may take {_mb(budget)} "
            "beside their slots: give more --memory, or build the model with more stages "
            "(latebind build --min-stage-ms 0 --overhead 0)"
        )
    before, begun = resident_bytes(), time.monotonic()
    piece.load()
    try:
        loading = Loading(time.monotonic() - begun)
        yield loading
        release_memory()
        piece.measured(resident_bytes() - before - loading.beside)
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
    """Return the mean seconds that the learned cache behind a stage saves a request."""
    saved = costs.hit_rates.get(stage, 0.0) * costs.remaining(stage + 1, 1)
    return max(0.0, saved - (0.0 if costs.aside else costs.lookups[stage].at(1)))


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
