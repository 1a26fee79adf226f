"""Runs learned caches while serving: a compiled network after a stage, and its head. Loaded as data, never as code."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import RepositoryError
from latebind.domain.model import Promised
from latebind.learned.head import Floats, Head, HeadFunction
from latebind.learned.metadata import (
    SpareLookup,
    StoredCaches,
    StoredLookup,
    levels_down_to,
    overload,
    read_caches,
    read_nearness,
    stage_file,
)
from latebind.learned.reading import Reading, Shape, reading
from latebind.learned.stored import LookupFiles, Read, read_lookup, read_whole
from latebind.program.arrays import over_arrays
from latebind.program.backends import BACKENDS, CompileOptions, Later, StageFunction, compile_for, immediately, twin
from latebind.program.device import HOST, processor_flags
from latebind.program.graph import Graph
from latebind.program.metadata import read_model
from latebind.program.pieces import EvictableStage, Piece
from latebind.program.stage_files import anything, read_all, read_stage
from latebind.program.stored import read_stages
from latebind.repository.directory import ModelDirectory
from latebind.repository.tensors import MappedTensors


@dataclass(frozen=True, slots=True)
class Promises:
    """What is promised of a model's answers: the `fidelity` of each level, and its `thresholds` by lookup.

    Without an operating curve there is one level, whose thresholds are the lookups' own. If requests at the last level
    may be dropped after their start, `overload` is the level whose thresholds it has.
    """

    fidelity: tuple[float, ...]
    thresholds: tuple[Mapping[str, float], ...] = ()
    overload: int | None = None

    def of_version(self, levels: Mapping[float, Mapping[str, float]]) -> tuple[Mapping[str, float], ...]:
        """Return the thresholds by level of a version that has some `levels`, by their fidelities.

        If it lacks one, the thresholds of a stricter one keep that promise too: at worst the whole network.
        """
        found: list[Mapping[str, float]] = []
        for promised in self._kept:
            found.append(levels.get(promised, found[-1] if found else {}))
        return tuple(found if self.overload is None else [*found, found[self.overload]])

    def down_to(self, least: float) -> int:
        """Return how many levels promise at least this; one whose requests may be dropped does not count."""
        return sum([promised >= least for promised in self._kept])

    @property
    def _kept(self) -> tuple[float, ...]:
        return self.fidelity if self.overload is None else self.fidelity[:-1]


NO_PROMISES = Promises((1.0,))


def promises(caches: StoredCaches | None, floor: float) -> Promises:
    """Return what is promised of the answers of a model with these caches, by level if `floor` is under 1."""
    if caches is None or not caches.lookups:
        return NO_PROMISES
    levels = levels_down_to(caches, floor)
    if not levels:
        return Promises((caches.target,))
    kept, thresholds = tuple([one.target for one in levels]), tuple([one.thresholds for one in levels])
    if (found := overload(kept)) is None:
        return Promises(kept, thresholds)
    return Promises((*kept, kept[-1]), (*thresholds, thresholds[found[0]]), found[0])


def promised_by_network(directory: ModelDirectory, backend: str) -> Promised | None:
    """Return what is promised of the network's own answers on this backend.

    None if it computes in full precision, or nothing was shown on this backend. Raises `RepositoryError`.
    """
    if BACKENDS[backend].exact or backend != read_model(directory).backend:
        return None
    near, caches = read_nearness(directory), read_caches(directory)
    if near is not None:
        return Promised(near.target, near.cosine)
    if caches is None:
        return None
    if caches.lookups:
        return Promised(caches.whole)
    return Promised(caches.target) if caches.shows_network else None


class LookupFunction:
    """One learned cache as a function: `lookup(read) -> (answers (B, classes), scores (B,))`, float32.

    It takes what is read of an activation (`reading.Reading`), or `whole` activations, padded or not: arrays on the
    host, or tensors. Not thread-safe: each thread takes a `twin`.
    """

    def __init__(self, features: StageFunction, head: Head, *, whole: bool = False) -> None:
        self.features = features
        self._over_arrays = over_arrays(features)
        self.head = head
        self.whole = whole
        self._answer = HeadFunction(head)

    @property
    def there(self) -> bool:
        """Whether the network is in memory; the head always is."""
        return not isinstance(self.features, EvictableStage) or self.features.filled

    def twin(self) -> "LookupFunction":
        """Return the same function for another thread, over the same weights."""
        return LookupFunction(twin(self.features), self.head, whole=self.whole)

    def with_head(self, head: Head) -> "LookupFunction":
        """Return the same function with another head."""
        return LookupFunction(self.features, head, whole=self.whole)

    def taken(self, activation: Any, reads: Reading) -> Any:
        """Return what it takes of an activation `(B, ...)` of rows of one size."""
        return activation if self.whole else reads(activation)

    def __call__(self, read: Any) -> tuple[Floats, Floats]:
        """Return the predicted answers and their scores."""
        if isinstance(read, np.ndarray):
            (features,) = self._over_arrays(read)
            return self._answer(features)
        (found,) = self.features(read)
        return self._answer(found.cpu().numpy())  # heads are small and run on the host


@dataclass(frozen=True, slots=True)
class Lookup:
    """The learned caches after one stage, tried one after another. Not thread-safe: each thread takes a `twin`.

    `functions` are all of them by name, the fastest first; those that have one of the `thresholds` are in use. `reads`
    is what they read of an activation; None: all of it.
    """

    functions: Mapping[str, LookupFunction]
    thresholds: Mapping[str, float]
    reads: Reading | None = None

    def __call__(
        self,
        activation: Any,
        shapes: Sequence[Shape] = (),
        levels: Sequence[Mapping[str, float]] = (),
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Return answers `(B, classes) float32`, as the model would output them, and which rows are hits, `(B,) bool`.

        An activation is an array on the host, or a tensor. Answers of other rows are below the threshold and must not
        be used. `shapes` are the rows' own shapes, if some are padded. `levels` are the thresholds for each row by
        name, if rows differ in how sure an answer must be; a row without a threshold for a name misses there.
        """
        read = activation if self.reads is None else self.reads(activation, shapes)
        first, *others = self._used
        answers, scores = self.functions[first](activation if self.functions[first].whole else read)
        hits = scores >= self._least(first, levels)
        for name in others:
            missed = np.flatnonzero(~hits)
            if levels:  # a row whose level has no threshold here is not looked up
                missed = missed[[name in levels[int(row)] for row in missed]]
            if not len(missed):
                continue
            taken = activation if self.functions[name].whole else read
            rest = taken if len(missed) == len(hits) else taken[missed]
            answers[missed], scores = self.functions[name](rest)
            hits[missed] = scores >= self._least(name, [levels[int(row)] for row in missed] if levels else ())
        return answers, hits

    def twin(self) -> "Lookup":
        """Return the same lookup for another thread, over the same weights."""
        return replace(self, functions={name: function.twin() for name, function in self.functions.items()})

    def with_heads(self, heads: Mapping[str, tuple[Head, float]]) -> "Lookup | None":
        """Return the same lookup with these heads and thresholds by name; None if it has no function of these names."""
        functions, thresholds = dict(self.functions), {}
        for name, (head, threshold) in heads.items():
            if name in functions:
                functions[name] = functions[name].with_head(head)
                thresholds[name] = threshold
        return Lookup(functions, thresholds, self.reads) if thresholds else None

    @property
    def there(self) -> bool:
        """Whether all networks in use are in memory, so that the lookup can be called."""
        return all(self.functions[name].there for name in self.thresholds)

    @property
    def _used(self) -> list[str]:
        return [name for name in self.functions if name in self.thresholds]

    def _least(self, name: str, levels: Sequence[Mapping[str, float]]) -> float | Floats:
        """Return the score from which a lookup hits: one for all rows, or one for each."""
        if not levels:
            return self.thresholds[name]
        return np.array([level.get(name, inf) for level in levels], np.float32)


def lookup_backend(backend: str) -> str:
    """Return the backend for the lookups of a model on `backend`.

    Calibration, not the precision of the arithmetic, bounds the errors of a lookup. So lookups compute in bfloat16 if
    the processor can, which takes half as long. Their linear layers are too small to gain from eight bits.
    """
    backend = "openvino" if backend == "openvino-int8" else backend
    return f"{backend}-bf16" if backend == "openvino" and has_bfloat16() else backend


def has_bfloat16() -> bool:
    """Return whether this processor computes faster in bfloat16 than in float32."""
    return not processor_flags().isdisjoint({"avx512_bf16", "amx_bf16"})


def load_lookups(
    directory: ModelDirectory,
    *,
    backend: str,
    threads: int = 1,
    device: str = HOST,
    streams: int = 1,
    later: Later = immediately,
) -> dict[int, Lookup]:
    """Return the lookups of a model by stage; empty if it has none.

    Each holds the learned caches in use and the spare ones at the same boundary. Up to `streams` twins may run at the
    same time. Work that only makes batches faster is passed to `later`. Raises `RepositoryError` if the caches do not
    fit the model, `ConfigError` for a backend that cannot be used here.
    """
    options = CompileOptions(threads, device=device, streams=streams, later=later)
    made = partial(_features, backend=backend, options=options)

    def features(found: Mapping[int, Sequence[LookupFiles]]) -> dict[int, list[StageFunction]]:
        makes = [partial(made, one) for files in found.values() for one in files]
        stored = all(one.stored is not None for files in found.values() for one in files)
        functions = iter(read_all(makes) if stored else [make() for make in makes])
        return {stage: list(islice(functions, len(files))) for stage, files in found.items()}

    return _by_stage(directory, backend, read_whole, features)


def open_lookups(
    directory: ModelDirectory, *, backend: str, threads: int = 1, streams: int = 1, cached: bool = True
) -> tuple[dict[int, Lookup], dict[int, Piece]]:
    """Return what `load_lookups` does, but with no network in memory yet, and for each stage the piece that loads them.

    Heads are in memory already. For `cached` see `MappedFile`.
    """
    pieces: dict[int, Piece] = {}

    def placed(found: Mapping[int, Sequence[LookupFiles]]) -> dict[int, Sequence[StageFunction]]:
        for stage, files in found.items():
            pages = [one.weights.pages(one.weights) for one in files if isinstance(one.weights, MappedTensors)]
            options = CompileOptions(threads, streams=streams)
            load = [partial(_features, one, backend=backend, options=options) for one in files]
            pieces[stage] = Piece(pages, load, backend=backend)
        return {stage: piece.stages for stage, piece in pieces.items()}

    def read(directory: ModelDirectory, name: str, *, stored: bool) -> MappedTensors:
        del stored  # they have both
        return MappedTensors(directory, name, cached=cached)

    return _by_stage(directory, backend, read, placed), pieces


def load_functions(
    directory: ModelDirectory, lookups: Sequence[StoredLookup | SpareLookup], *, backend: str, threads: int
) -> dict[str, LookupFunction]:
    """Return learned caches as functions by name, in the order given; raises what `load_lookups` does."""
    checked = _checked(directory, lookups, backend, read_whole, _behind(directory))
    return {name: compile_lookup_files(files, backend=backend, threads=threads) for name, files in checked.items()}


def _by_stage(
    directory: ModelDirectory,
    backend: str,
    read: Read,
    features: Callable[[Mapping[int, Sequence[LookupFiles]]], Mapping[int, Sequence[StageFunction]]],
) -> dict[int, Lookup]:
    """Return the lookups of a model by stage, with what `features` makes of their networks by stage."""
    caches, found = read_caches(directory), dict[int, Lookup]()
    if caches is None or not caches.lookups:
        return found
    behind = _behind(directory)
    checked = {
        stage: _checked(directory, [one for one in caches.at_hand if one.stage == stage], backend, read, behind)
        for stage in sorted({one.stage for one in caches.lookups})
    }
    compiled = features({stage: list(files.values()) for stage, files in checked.items()})
    for stage, files in checked.items():
        made = zip(files.items(), compiled[stage], strict=True)
        functions = {name: LookupFunction(network, one.head, whole=_takes_whole(one)) for (name, one), network in made}
        thresholds = {one.name: one.threshold for one in caches.lookups if one.stage == stage}
        reads = behind[stage][1]
        found[stage] = Lookup(functions, thresholds, reads if reads.axes else None)
    return found


def _behind(directory: ModelDirectory) -> list[tuple[Graph, Reading]]:
    """Return the graph after each stage of a model but the last, and what is read of the activation that it takes."""
    model = read_model(directory)
    return [(graph, reading(graph, pads=model.pads)) for graph in read_stages(directory, model, known=anything)[1:]]


def _checked(
    directory: ModelDirectory,
    lookups: Sequence[StoredLookup | SpareLookup],
    backend: str,
    read: Read,
    behind: Sequence[tuple[Graph, Reading]],
) -> dict[str, LookupFiles]:
    """Return the files of learned caches by name, in the order given; raises `RepositoryError` if they do not fit."""
    model = read_model(directory)
    found = {}
    for one in lookups:
        files = found[one.name] = read_lookup(directory, one.name, read, backend=backend)
        (taken,), (stage, reads) = files.graph.inputs, behind[one.stage]
        whole = _takes_whole(files) and files.graph.dims == stage.dims and taken.sizes == stage.inputs[0].sizes
        if taken.shape != (stage.inputs[0].shape if whole else reads.shape):
            raise RepositoryError(
                f"{directory.path}: the learned cache {one.name} takes another activation than stage {one.stage} "
                "returns: build the caches again"
            )
        if (files.head.classes,) != model.outputs[0].shape:
            raise RepositoryError(
                f"{directory.path}: the learned cache {one.name} answers in another shape than the model: build the "
                "caches again"
            )
    return found


def compile_lookup_files(files: LookupFiles, *, backend: str, threads: int) -> LookupFunction:
    """Return a lookup ready to run with a model on `backend`, on the host."""
    network = _features(files, backend=backend, options=CompileOptions(threads))
    return LookupFunction(network, files.head, whole=_takes_whole(files))


def _takes_whole(files: LookupFiles) -> bool:
    """Return whether a lookup takes whole activations of any length, not what is read of them."""
    return bool(files.graph.dims)


def _features(files: LookupFiles, *, backend: str, options: CompileOptions) -> StageFunction:
    """Return the compiled network of a lookup, from activations to features."""
    chosen = lookup_backend(backend)
    weights = files.weights.arrays if isinstance(files.weights, MappedTensors) else files.weights
    if backend.startswith("openvino") and any(_dtype(one) == "int8" for one in weights.values()):
        chosen = "openvino-int8"
    if files.stored is not None:
        return read_stage(files.stored, stage_file(files.name), files.graph, weights, backend=chosen, options=options)
    # A network that only pools, without weights, takes 13 to 25 microseconds in eager, and 16 to 67 in OpenVINO.
    chosen = chosen if files.graph.weights() else "eager"
    return compile_for(options, files.graph, files.weights, backend=chosen)


def _dtype(weight: Any) -> str:
    return str(weight.dtype).removeprefix("torch.")
