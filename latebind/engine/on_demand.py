"""Models that are served on demand, where memory is limited: opened, measured, then loaded and evicted piece by piece.

The size and loading time of each piece are measured before anything is served, one piece at a time, so that measuring
needs no more memory than serving does.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from latebind.domain.actions import Evict, Load
from latebind.domain.config import TIERS, EngineConfig, ResidencyConfig
from latebind.domain.costs import Curve, Footprint, Grid
from latebind.domain.errors import ConfigError, LatebindError, RepositoryError
from latebind.domain.events import Loaded, LoadFailed
from latebind.domain.model import ITEM_BYTES
from latebind.engine.cores import at_once
from latebind.engine.loaded import OWN_NAMES, LoadedModel, as_served
from latebind.engine.order import with_queries
from latebind.engine.shared import LOAD_SECONDS, LOADER, LOADS, Running
from latebind.engine.slots import file_bytes
from latebind.engine.worker import MOST_WAITING
from latebind.learned.lookup import open_lookups
from latebind.program.arrays import Array, ArrayFunction, Arrays, computing
from latebind.program.device import HOST, NO_TORCH, has_torch
from latebind.program.lengths import resized
from latebind.program.load import open_program, try_stage
from latebind.program.measure import MOST_SECONDS, made_up_inputs, median_seconds, with_batch
from latebind.program.metadata import profiled_batches, profiled_sizes
from latebind.program.pieces import Piece, mmap_large_blocks, peak_growth, release_memory, resident_bytes, trim_heap
from latebind.program.program import Program
from latebind.repository.directory import SEQUENCE, ModelDirectory
from latebind.repository.tensors import BytesRead

if TYPE_CHECKING:
    from latebind.sequence.program import SequenceProgram

logger = logging.getLogger(__name__)

MIB = 1 << 20
ROW_COPIES = 3  # of a decoder's rows, at most: they double when they are too few, and are copied then
END_SECONDS = 10.0  # that a load has to end once the engine closes
TRIMS_EVERY = 1.0  # seconds at least: after a trim, the next batch has to allocate its pages again

Rows = dict[tuple[int, int], Arrays]  # inputs of a stage, by length and batch size


@dataclass(frozen=True, slots=True)
class Opened:
    """A model with nothing in memory. `pieces` are its stages, then the learned caches behind the stages `behind`."""

    model: LoadedModel
    pieces: tuple[Piece, ...]
    behind: tuple[int, ...] = ()


def open_model(path: Path, config: EngineConfig, *, streams: int = 1, cached: bool = True) -> Opened:
    """Open a model directory. Raises what `load_model` raises. For `cached` see `MappedFile`."""
    if config.device != HOST:
        raise ConfigError(
            f"engine.device is {config.device}: models are loaded on demand only on the CPU, leave --memory out"
        )
    directory, threads = ModelDirectory.open(path), config.threads
    if SEQUENCE in directory.files:
        if not has_torch():
            raise ConfigError(f"{path} is a sequence model, which torch decodes, and {NO_TORCH}")
        from latebind.sequence.stored import open_sequence  # noqa: PLC0415  (with torch)

        sequence, pieces = open_sequence(
            directory, threads=threads, backend=config.backend, streams=streams, cached=cached
        )
        return Opened(LoadedModel(sequence.spec, sequence.costs, sequence, {}, directory), pieces)
    program, stages = open_program(directory, threads=threads, backend=config.backend, streams=streams, cached=cached)
    if not config.exits:
        stages, program = stages[1:] if program.entry else stages, program.without_entry()
        return Opened(as_served(program, directory, {}, config), stages)
    lookups, caches = open_lookups(directory, backend=program.backend, threads=threads, streams=streams, cached=cached)
    return Opened(as_served(program, directory, lookups, config), (*stages, *caches.values()), tuple(caches))


def open_for_workers(
    paths: Iterable[Path],
    config: EngineConfig,
    residency: ResidencyConfig,
    queries: Sequence[Path] = (),
    *,
    named: Mapping[str, str] = OWN_NAMES,
    running: Running | None = None,
) -> tuple[list[list[LoadedModel]], dict[str, tuple[Piece, ...]], ResidencyConfig]:
    """Return the models of each worker with nothing in memory, their pieces, and the residency that is left for them.

    Each piece is loaded once to measure it, one after another. The budget is reduced by all slots, those of `queries`
    too, although they take memory only once they have been used, because that memory could not be reclaimed. It is also
    reduced by what the workers' largest batches take while they run, and by what requests keep between stages. Raises
    `RepositoryError` for a model that does not run, and `ConfigError` if a piece does not fit, or if all that leaves
    nothing of the budget; then `running` names the model that is to blame, or the one that takes most.
    """
    running = Running(0) if running is None else running
    mmap_large_blocks()
    cached = residency.tier == TIERS[0]
    opened = [open_model(path, config, streams=at_once(config), cached=cached) for path in running.loading(paths)]
    opened = [replace(one, model=one.model.named(named)) for one in opened]
    # made before measuring: they take memory too
    twins = [[one.model.twin() for one in opened] for _ in range(1, config.worker_count)]
    served = with_queries([one.model for one in opened], queries, config.slots, memory=residency.budget)
    slots = [file_bytes([one.model.spec], served.rows.total) for one in opened]
    running.load(_largest(slots))
    budget = served.left_of(residency.budget)
    for number in {one.model.program.backend: number for number, one in enumerate(opened)}.values():
        running.load(number + 1)
        measure(opened[number], budget)  # once per backend before: what the backend itself takes counts for no model
    first = [measure(one, budget) for one in running.loading(opened)]
    others = [
        [replace(twin, costs=model.costs, footprint=model.footprint) for twin, model in zip(models, first, strict=True)]
        for models in twins
    ]
    workers = at_once(config)
    working = workers * max(model.working for model in first)
    # Between stages, requests keep a batch for each worker, besides those that run: no more start meanwhile. Each
    # worker may launch one batch more before that bound is looked at again. Lookups aside have copies of their own, and
    # each worker has rows for a whole batch of each decoder from the start.
    batches = [model.spec.max_batch * model.footprint.row for model in first]
    asides = [size for size, model in zip(batches, first, strict=True) if model.costs.aside]
    decoders = sum([size for size, model in zip(batches, first, strict=True) if model.spec.kinds]) // ROW_COPIES
    resting = (2 * config.worker_count - workers) * max(batches)
    resting += config.worker_count * ((1 + MOST_WAITING) * max(asides, default=0) + decoders)
    if working + resting >= budget:
        running.load(_largest([workers * model.working + size for model, size in zip(first, batches, strict=True)]))
        raise ConfigError(
            f"residency.budget leaves {budget} bytes beside slots; {workers} batches take {working} while they run, "
            f"and requests between stages {resting}: give more --memory, or build the models with a smaller --max-batch"
        )
    pieces = {one.model.spec.name: one.pieces for one in opened}
    release_memory()  # memory that measuring left behind
    left = msgspec.structs.replace(
        residency, budget=budget - working - resting, resting=config.worker_count * max(batches)
    )
    return [first, *others], pieces, left


def _largest(sizes: Sequence[int]) -> int:
    """Return the number of the model that takes most; the first is 1."""
    return 1 + max(range(len(sizes)), key=sizes.__getitem__)


def report_memory(models: Iterable[LoadedModel], memory: int, budget: int) -> dict[str, str]:
    """Log the `budget` that slots and batches leave of `memory`, in bytes, and what does not fit into it as a whole.

    Return what each such model takes.
    """
    logger.info(
        "--memory: models may take %.1f of %.1f MB, slots and batches take the rest", budget / 1e6, memory / 1e6
    )
    found = {}
    for model in models:
        takes = sum(model.footprint.sizes[: model.footprint.stages])
        if takes > budget:
            name = model.spec.name
            found[name] = f"it takes {takes / 1e6:.1f} MB and models may take {budget / 1e6:.1f} MB of --memory"
            logger.warning(
                "%s does not fit into memory as a whole: %s. It is loaded piece by piece, again for each batch, and"
                " requests whose deadline does not allow that are refused: give more --memory or fewer --slots",
                *(name, found[name]),
            )
    return found


def measure(opened: Opened, budget: int) -> LoadedModel:
    """Load each piece, run a row through it and unload it; return the model with its footprint and valid costs.

    A profile that was measured on another machine is measured again here. Raises `RepositoryError` for a model that
    does not run, and `ConfigError` for a piece that takes more than `budget` bytes.
    """
    model = opened.model
    with computing():
        if model.spec.kinds:
            from latebind.sequence.program import SequenceProgram  # noqa: PLC0415  (with torch)

            assert isinstance(model.program, SequenceProgram)
            return _measure_sequence(model, model.program, opened.pieces, budget)
        return _measure_chain(opened, model.program, budget)


def _measure_chain(opened: Opened, program: Program, budget: int) -> LoadedModel:
    """Measure all stages, then the learned caches.

    `working` is the most bytes that a batch takes while it runs, inputs included, in whole MiB, because the kernel
    counts pages with some delay. Where rows differ in size, it is a batch of the largest ones.
    """
    model, spec, most = opened.model, program.spec, program.spec.max_batch
    batches = tuple(sorted({1, most})) if program.costs_fit else profiled_batches(most)
    sizes = {prod(each.values()): each for each in profiled_sizes(spec.dims)} if spec.dims else {1: {}}
    lengths = tuple(sizes)[-1:] if program.costs_fit else tuple(sizes)
    made, largest = made_up_inputs(spec.inputs, most), lengths[-1]
    rows: Rows = {
        (length, batch): with_batch(resized(made, spec.inputs, sizes[length]), batch)
        for length in lengths
        for batch in batches
    }
    seconds, grids, seen, working = list[float](), list[Grid](), list[Array](), 0
    for number, stage in enumerate(program.calls):
        with _loaded(opened.pieces[number], model, budget) as loading:
            try_stage(program, number, model.directory, rows[largest, 1])
            if not program.costs_fit:
                longest = MOST_SECONDS if spec.dims else inf
                curves = [
                    _curve(stage, {batch: rows[length, batch] for batch in batches}, longest) for length in lengths
                ]
                grids.append(Grid(lengths, tuple(curves)))
            read, before = sum(tensor.nbytes for tensor in rows[largest, most]), _bytes(rows)
            rows, grown = peak_growth(partial(_run, stage, rows))
            working = max(working, read + grown)
            loading.beside = _bytes(rows) - before
        seconds.append(loading.seconds)
        seen.append(rows[largest, 1][0])  # the stage's output for one row
    for number, piece in zip(opened.behind, opened.pieces[len(seen) :], strict=True):
        with _loaded(piece, model, budget) as loading:
            try:
                model.lookups[number](seen[number])
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                place = f"behind stage {number} of {model.directory.path}"
                raise RepositoryError(f"the learned cache {place} does not run ({error}): build it again") from error
        seconds.append(loading.seconds)
    costs = replace(model.costs, stages=tuple(grids)) if grids else model.costs
    gains = []  # the mean seconds that each learned cache saves a request
    for number in opened.behind:
        saved = costs.hit_rates.get(number, 0.0) * costs.remaining(number + 1, 1, costs.typical)
        gains.append(max(0.0, saved - (0.0 if costs.aside else costs.lookups[number].at(1))))
    footprint = Footprint(
        tuple(piece.size for piece in opened.pieces),
        tuple(seconds),
        opened.behind,
        tuple(gains),
        runs=tuple(grid.at(1, min(sizes)) for grid in costs.stages),
        row=max([tensor.nbytes for tensor in seen[:-1]], default=0),
    )
    return replace(model, costs=costs, footprint=footprint, working=working // MIB * MIB)


def _curve(stage: ArrayFunction, rows: Mapping[int, Arrays], most: float) -> Curve:
    """Return a stage's latency for these rows, by batch; after one that takes over `most` seconds, none is measured."""
    seconds = dict[int, float]()
    for batch, some in rows.items():
        if max(seconds.values(), default=0.0) <= most:
            seconds[batch] = median_seconds(partial(stage, *some))
    return Curve(tuple(seconds), tuple(seconds.values()))


def _bytes(rows: Rows) -> int:
    return sum(tensor.nbytes for some in rows.values() for tensor in some)


def _run(stage: ArrayFunction, rows: Rows) -> Rows:
    with computing():
        return {batch: tuple([tensor.copy() for tensor in stage(*some)]) for batch, some in rows.items()}


def _measure_sequence(
    model: LoadedModel, program: "SequenceProgram", pieces: Sequence[Piece], budget: int
) -> LoadedModel:
    """Load both pieces together: reading is useless without writing."""
    from latebind.sequence.program import profile_sequence, warm_up  # noqa: PLC0415  (with torch)

    with ExitStack() as held:
        seconds = tuple(held.enter_context(_loaded(piece, model, budget)).seconds for piece in pieces)
        _, working = peak_growth(partial(warm_up, program, model.spec.max_batch))
        if not program.costs_fit:
            program = profile_sequence(program)
    row = ROW_COPIES * sum([ITEM_BYTES[part.dtype] * prod(part.shape) for part in program.parts])
    footprint = Footprint(tuple(piece.size for piece in pieces), seconds, row=row)
    return replace(model, costs=program.costs, program=program, footprint=footprint, working=working // MIB * MIB)


@dataclass(slots=True)
class Loading:
    """A piece that is in memory: the seconds that loading took, and the bytes kept `beside` it while measuring."""

    seconds: float
    beside: int = 0


@contextmanager
def _loaded(piece: Piece, model: LoadedModel, budget: int) -> Iterator[Loading]:
    """Hold a piece in memory within this context and set its size: what the process has grown by.

    Neither what was freed meanwhile counts, nor the bytes that measuring itself keeps `beside` it.
    """
    if piece.weights > budget:
        raise ConfigError(
            f"a piece of {model.spec.name} has {piece.weights / 1e6:.1f} MB of weights and models may take "
            f"{budget / 1e6:.1f} MB beside their slots: give more --memory, or build the model with more stages "
            "(latebind build --min-stage-ms 0)"
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


class Loader:
    """Performs `Load` and `Evict` in the order in which they were given, once it has been started.

    `pieces` are those of each model, numbered as in its `Footprint`; models are in the engine's order, and `running`
    says which is being loaded. After an eviction, memory that the C library kept from activations is returned to the
    system too: for batches of several sizes, the workers' arenas keep more than one batch takes.
    """

    def __init__(self, pieces: Mapping[str, Sequence[Piece]], running: Running | None = None) -> None:
        self._pieces = pieces
        self._running = Running(0) if running is None else running
        self._numbers = {name: number for number, name in enumerate(pieces, 1)}
        self._actions: SimpleQueue[Load | Evict | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._trimmed = -inf  # when the heap was last trimmed

    def start(self, report: Callable[[Loaded | LoadFailed], None]) -> None:
        """Start the thread, which calls `report` with the outcome of each load."""
        self._thread = Thread(target=self._work, args=(report,), name="loader", daemon=True)
        self._thread.start()

    def perform(self, action: Load | Evict) -> None:
        """Queue an action. Thread-safe."""
        self._actions.put(action)

    def close(self) -> None:
        """Return when all queued actions have been performed, or `END_SECONDS` are over; queue none after that."""
        self._actions.put(None)
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def _work(self, report: Callable[[Loaded | LoadFailed], None]) -> None:
        """Root of the thread. An error fails the requests that wait for this model and no others."""
        while (action := self._actions.get()) is not None:
            event: Loaded | LoadFailed | None = None
            self._running.begin(LOADER, self._numbers[action.model], LOADS, LOAD_SECONDS)
            try:
                if isinstance(action, Load):
                    event = self._load(action)
                else:
                    self._evict(action)
            except Exception as error:
                expected = isinstance(error, LatebindError | OSError | MemoryError)
                logger.error("%s: %s", action, error, exc_info=not expected)
                if isinstance(action, Load):
                    event = LoadFailed(action.model, action.pieces)
            self._running.rest(LOADER)
            if event is not None:
                report(event)

    def _load(self, action: Load) -> Loaded:
        """Load all of the pieces or none."""
        begun, read = time.monotonic(), BytesRead()
        pieces = [self._pieces[action.model][number] for number in action.pieces]
        with ExitStack() as loaded:
            for piece in pieces:
                read += piece.load()
                loaded.callback(piece.unload)
            loaded.pop_all()  # all have been loaded: keep them
        seconds, sizes = time.monotonic() - begun, tuple([piece.size for piece in pieces])
        return Loaded(action.model, action.pieces, seconds, sizes, read.size, read.cached)

    def _evict(self, action: Evict) -> None:
        pieces = self._pieces[action.model]
        for number in action.pieces:
            pieces[number].unload()
        if time.monotonic() - self._trimmed >= TRIMS_EVERY:
            trim_heap()
            self._trimmed = time.monotonic()
