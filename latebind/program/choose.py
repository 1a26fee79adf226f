"""Decides by measurement on which backend a model runs, and into which stages it is cut."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, sqrt
from statistics import median
from typing import Generic, Self, TypeVar

from torch import Tensor

from latebind.domain.errors import ConfigError, ExportError, LatebindError
from latebind.domain.model import NOTHING_KNOWN, About, StageKind, TensorSpec
from latebind.domain.sizes import Dim
from latebind.program.backends import BACKENDS, StageFunction, backend_named, compile_stages, run_chain
from latebind.program.cut import (
    Carry,
    cut_points,
    find_carries,
    fusion_safe_points,
    join_by_bytes,
    join_by_seconds,
    split,
    with_carries,
)
from latebind.program.device import synchronize
from latebind.program.export import Exported
from latebind.program.graph import Graph
from latebind.program.lengths import resized
from latebind.program.measure import interleaved, median_seconds, spread_of, time_call, with_batch
from latebind.program.metadata import FORMAT, StoredModel
from latebind.program.padding import filled_up, turned
from latebind.program.verify import DEFAULT_TOLERANCE
from latebind.repository.directory import NAME

RUNS, FEWEST_RUNS = 41, 7  # of each side in a comparison
COMPARED_SECONDS = 1.0  # a side's time in a comparison, unless the fewest runs take longer
ATTEMPTS = 4  # times as many runs at most, if they differ too much to decide by them
NORMAL = 0.98  # half of the 39/40 quantile of the normal distribution
LEAST_SAVED = 0.05  # of the time of a batch of different lengths, for rows to be packed
MOST_LOST = 0.06  # of the time of one row alone, where rows are packed: by the median, because far more is saved


@dataclass(frozen=True, slots=True)
class Settings:
    """The name and version of the model, its largest batch, and the backends to try with `threads` threads.

    `tolerance` is the relative error that the user accepts; None if none was given.
    """

    name: str
    version: str
    max_batch: int
    backends: tuple[str, ...]
    tolerance: float | None
    threads: int

    @property
    def most_error(self) -> float:
        """The largest relative error of a backend that is taken."""
        return self.tolerance or DEFAULT_TOLERANCE

    @classmethod
    def checked(
        cls,
        name: str,
        version: str,
        *,
        max_batch: int,
        backends: Sequence[str] | None,
        tolerance: float | None,
        threads: int,
    ) -> Self:
        """Return the settings; raises `ConfigError` that names an invalid one.

        Without `backends` all are tried, those of lower precision only if a tolerance is given.
        """
        if not NAME.fullmatch(name) or not version.isdecimal():
            raise ConfigError(f"name {name!r}, version {version!r}: use letters, digits, '.', '_', '-', and a number")
        if max_batch < 1 or threads < 1:
            raise ConfigError(f"max_batch is {max_batch} and threads {threads}: both must be 1 or more")
        if tolerance is not None and not tolerance > 0:
            raise ConfigError(f"tolerance is {tolerance}: give a relative error above 0, as 1e-5")
        for backend in backends or ():
            if backend not in BACKENDS:
                raise ConfigError(f"there is no backend {backend!r}: choose from {', '.join(BACKENDS)}")
            if tolerance is None and not BACKENDS[backend].exact:
                raise ConfigError(f"the backend {backend!r} is less precise: state the tolerance that you accept")
        usual = (name for name, backend in BACKENDS.items() if backend.exact or tolerance is not None)
        return cls(name, version, max_batch, tuple(backends or usual), tolerance, threads)

    def model(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        backend: str,
        *,
        cuts: tuple[str, ...] = (),
        kinds: tuple[StageKind, ...] = (),
        dims: tuple[Dim, ...] = (),
        pads: bool = False,
        packs: bool = False,
        about: About = NOTHING_KNOWN,
    ) -> StoredModel:
        """Return the metadata of a model with these tensors, built on this backend."""
        named, limits = (FORMAT, self.name, self.version), (self.tolerance, self.max_batch)
        return StoredModel(*named, inputs, outputs, cuts, backend, *limits, kinds, dims, pads, packs, about)


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[Made]):
    """A backend that was tried: what was made with it, with its error and seconds, or why it was refused.

    It agrees with the module for numbers up to `largest`; inf: also for infinities and NaN.
    """

    backend: str
    made: Made | None = None
    error: float = 0.0
    largest: float = inf
    seconds: float = 0.0
    refused: str = ""

    def line(self, of: str) -> tuple[str, str]:
        """Return its line in the report; `of` names what its seconds measure."""
        found = f"{self.seconds * 1e3:.2f} ms {of}, relative error {self.error:.1e}"
        return f"backend {self.backend}", f"not taken: {self.refused}" if self.refused else found


NOBODY: Mapping[str, str] = {}


def try_backends(
    settings: Settings,
    make: Callable[[str], Candidate[Made]],
    call: Callable[[Made], Callable[[], object]],
    on_progress: Callable[[str, float], None],
) -> tuple[list[Candidate[Made]], float]:
    """Return the candidates, fastest first and refused ones last, and how much timings of one differ.

    `make` raises for a backend that is refused; the calls that are timed take turns.
    """
    found = []
    for position, backend in enumerate(settings.backends):
        on_progress(f"trying the backend {backend}", position / len(settings.backends))
        try:
            backend_named(backend)
            one = make(backend)
        except (LatebindError, RuntimeError, TypeError) as failure:
            one = Candidate(backend, refused=" ".join(str(failure).split())[:300])
        if not one.error <= settings.most_error:
            one = replace(one, refused=f"relative error {one.error:.1e} is over {settings.most_error:.1e}")
        found.append(one)
    calls = {one.backend: call(one.made) for one in found if one.made is not None and not one.refused}
    seconds = interleaved(calls, min(map(_runs, calls.values()), default=0))
    timed = [replace(one, seconds=median(seconds.get(one.backend, [inf]))) for one in found]
    return sorted(timed, key=lambda one: one.seconds), spread_of(seconds)


def why_chosen(
    chosen: Candidate[Made], candidates: Sequence[Candidate[Made]], passed_over: Mapping[str, str] = NOBODY
) -> str:
    """Return which backend was chosen, and why, for the report; `passed_over` are faster ones that were not."""
    rivals = [one for one in candidates if not one.refused and one is not chosen and one.backend not in passed_over]
    if rivals:
        reasons = [f"{rivals[0].seconds / chosen.seconds:.1f} times as fast as {rivals[0].backend}"]
    else:
        reasons = ["the only one that was tried" if len(candidates) == 1 else "the only one that may be taken"]
    reasons += [f"{backend} is faster, but not taken: {why}" for backend, why in passed_over.items()]
    return f"{chosen.backend}, {'; '.join(reasons)}"


def none_fits(settings: Settings, reasons: Iterable[tuple[str, str]]) -> ExportError:
    """Return what to raise if every backend was refused, for these reasons."""
    refusals = "; ".join(f"{backend}: {why}" for backend, why in reasons)
    return ExportError(f"no backend runs this model within {settings.most_error:.1e} of eager: {refusals}")


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long as another a call takes: the median, and its upper bound, right 39 times in 40."""

    median: float
    most: float


def compared(call: Callable[[], object], other: Callable[[], object], limit: float) -> Ratio:
    """Return how many times as long as the `other` a call takes, from pairs of consecutive runs.

    Pairs are added while it is open whether that is over the `limit`, as on a busy machine.
    """
    runs, ratios = _runs(other), list[float]()
    for _ in range(ATTEMPTS):
        found = interleaved({"call": call, "other": other}, runs)
        ratios = sorted([*ratios, *(a / b for a, b in zip(found["call"], found["other"], strict=True))])
        count = len(ratios)  # the median is between two of them, whatever the noise is like
        below, above = (int(count / 2 + sign * NORMAL * sqrt(count)) for sign in (-1, 1))
        least, most = ratios[max(below, 0)], ratios[min(above, count - 1)]
        if not least <= limit < most:
            break
    return Ratio(median(ratios), most)


@dataclass(frozen=True, slots=True)
class Chain:
    """A model cut and compiled: stages, their graphs, and the chain's time over the uncut model's by batch size.

    `whole` is the graph that was cut into `graphs`: the model's, with what activations carry at the cuts.
    """

    whole: Graph
    graphs: tuple[Graph, ...]
    stages: tuple[StageFunction, ...]
    overhead: dict[int, Ratio]

    @property
    def cuts(self) -> tuple[str, ...]:
        """The names of the activations between stages."""
        return tuple(graph.outputs[0][1] for graph in self.graphs[:-1])

    @property
    def worst(self) -> float:
        """The largest `overhead`, as far as it is known; 1 if the model is not cut."""
        return max((ratio.most for ratio in self.overhead.values()), default=1.0)


@dataclass(frozen=True)
class Tuner:
    """An exported model with real rows of input, on which backends and cuts are tried."""

    exported: Exported
    rows: tuple[Tensor, ...]
    settings: Settings

    @cached_property
    def carries(self) -> tuple[Carry, ...]:
        """What activations may carry."""
        graph, weights = self.exported
        return turned(graph, weights, find_carries(graph))

    @cached_property
    def cuttable(self) -> Graph:
        """The model's graph with all that activations may carry, and so with all its cut points."""
        return with_carries(self.exported.graph, self.carries)

    def cut(
        self, candidate: Candidate[StageFunction], *, seconds: float, overhead: float | None, least_bytes: int = 0
    ) -> Chain:
        """Return the model cut into stages on this backend; for the limits see `build_program`.

        Each cut costs about the same, so if a chain takes too long, its cost shows how many are affordable.
        """
        points = cut_points(self.cuttable)
        if not points or (seconds <= 0 and least_bytes <= 0):
            return self._compile(candidate, points)
        points = fusion_safe_points(self.cuttable, points)
        weights = self.exported.weights
        sizes = [sum(weights[name].nbytes for name in piece.weights()) for piece in split(self.cuttable, points)]
        points = join_by_bytes(points, sizes, least_bytes)
        if seconds <= 0:
            return self._compile(candidate, points)
        pieces, limit = self._piece_seconds(points), inf if overhead is None else 1.0 + overhead
        stages = max(1, int(candidate.seconds / seconds))
        chain = self._compile(candidate, join_by_seconds(points, pieces, stages), limit)
        while overhead is not None and chain.cuts and chain.worst > limit:
            share = overhead / (chain.worst - 1.0) if chain.worst > 1.0 else 0.0
            stages = 1 + max(0, min(int(share * len(chain.cuts)), len(chain.cuts) - 1))
            chain = self._compile(candidate, join_by_seconds(points, pieces, stages), limit)
        return chain

    def packed(self, chain: Chain, candidate: Candidate[StageFunction]) -> Chain | None:
        """Return the chain with stages that run rows of different lengths without their padding, if that pays.

        It must save a share of a batch's time, and cost hardly any of the time of a row that runs alone. The rows of
        the batch have between half and all of a usual length, like those that are chosen to run together.
        """
        if not backend_named(candidate.backend).packs or chain.whole.buckets:
            return None
        threads, (dim,), specs = self.settings.threads, self.exported.graph.dims, self.exported.graph.inputs
        stages = compile_stages(
            chain.graphs, self.exported.weights, backend=candidate.backend, threads=threads, packs=True
        )
        usual, count = sqrt(dim.least * dim.most), max(2, self.settings.max_batch)
        lengths = [dim.near(usual * (count + place) / (2 * count - 1)) for place in range(count)]
        one = resized(with_batch(self.rows, 1), specs, {dim.name: lengths[-1]})
        alone = compared(partial(run_chain, stages, one), partial(run_chain, chain.stages, one), 1.0 + MOST_LOST)
        rows = zip(*(resized(one, specs, {dim.name: length}) for length in lengths), strict=True)
        batch = tuple(
            filled_up(parts, spec.shape_of({dim.name: lengths[-1]}), spec.padding or 0)
            for spec, parts in zip(specs, rows, strict=True)
        )
        calls = partial(run_chain, stages, batch, lengths), partial(run_chain, chain.stages, batch)
        pays = alone.median <= 1.0 + MOST_LOST and compared(*calls, 1.0 - LEAST_SAVED).most <= 1.0 - LEAST_SAVED
        return replace(chain, stages=stages) if pays else None

    def _piece_seconds(self, points: Sequence[int]) -> tuple[float, ...]:
        """Return the seconds of each piece run eagerly; relative to each other, other backends take about the same."""
        graphs = split(self.cuttable, points)
        passed, seconds = with_batch(self.rows, 1), []
        for stage in compile_stages(graphs, self.exported.weights, backend="eager", threads=self.settings.threads):
            seconds.append(median_seconds(partial(stage, *passed)))
            passed = stage(*passed)
        return tuple(seconds)

    def _compile(self, candidate: Candidate[StageFunction], points: tuple[int, ...], limit: float = inf) -> Chain:
        """Return the chain cut at these points of `cuttable`; only there its activations carry something."""
        graph, uncut = self.exported.graph, candidate.made
        assert uncut is not None, f"{candidate.backend} was refused"
        if not points:
            return Chain(graph, (graph,), (uncut,), {})
        names = [self.cuttable.nodes[point].name for point in points]
        whole = with_carries(graph, [carry for carry in self.carries if carry.name in names])
        places = {node.name: place for place, node in enumerate(whole.nodes)}
        graphs = split(whole, tuple(places[name] for name in names))
        stages = compile_stages(graphs, self.exported.weights, backend=candidate.backend, threads=self.settings.threads)
        overhead = {}
        for batch in sorted({1, self.settings.max_batch}):
            inputs = with_batch(self.rows, batch)
            overhead[batch] = compared(partial(run_chain, stages, inputs), partial(uncut, *inputs), limit)
        return Chain(whole, graphs, stages, overhead)


def _runs(call: Callable[[], object]) -> int:
    """Return how many runs to compare: fewer if a run takes long."""
    synchronize(call())
    return max(FEWEST_RUNS, min(RUNS, int(COMPARED_SECONDS / time_call(call))))
