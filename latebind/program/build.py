"""Builds a model directory from a module: export, try backends, cut, verify, profile, write. A trusted step.

Which backend is used, and how many stages are affordable, is decided by measuring.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, prod, sqrt
from pathlib import Path
from statistics import median
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from latebind.domain.costs import Grid
from latebind.domain.defaults import MAX_OVERHEAD, MIN_STAGE_SECONDS
from latebind.domain.errors import ConfigError, ExportError, LatebindError
from latebind.domain.model import NOTHING_KNOWN, About, StageKind, TensorSpec
from latebind.domain.sizes import Dim, Size
from latebind.program.backends import BACKENDS, StageFunction, backend_named, compile_graph, compile_stages, run_chain
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
from latebind.program.eager import in_eager
from latebind.program.export import Exported, Tensors, export_any_size, in_order, runner, tensors_of
from latebind.program.graph import Graph, graph_to_json
from latebind.program.lengths import MOST_RUNGS, count_sizes, own_sizes, resized
from latebind.program.measure import (
    STEADY,
    interleaved,
    median_seconds,
    profile_stages,
    spread_of,
    time_call,
    with_batch,
)
from latebind.program.metadata import FORMAT, Profile, StoredModel, profiled_batches, this_hardware
from latebind.program.padding import filled_up, may_share, turned
from latebind.program.rows import check_stages
from latebind.program.stage_files import stages_as_files
from latebind.program.stored import write_model
from latebind.program.verify import DEFAULT_TOLERANCE, Agreement, Run, find_agreement, relative_error
from latebind.repository.directory import GRAPH, NAME, ModelDirectory

RUNS, FEWEST_RUNS = 41, 7  # of each side in a comparison
COMPARED_SECONDS = 1.0  # a side's time in a comparison, unless the fewest runs take longer
ATTEMPTS = 4  # times as many runs at most, where they differ too much to decide by them
NORMAL = 0.98  # half of the quantile of a normal distribution that 39 in 40 are below
NOT_CUT = "not cut: stages would be too short, or cutting cost too much; --min-stage-ms 0 cuts everywhere"

LEAST_SAVED = 0.05  # of the time of a batch of different lengths, for rows to be packed
MOST_LOST = 0.06  # of the time of one row alone, where rows are packed: by the median, for far more is saved

SHARED = "rows of different sizes share a batch: filled up, they are answered alike"
PACKED = "rows of different sizes share a batch, one below another where words are handled one by one"
NOT_SHARED = "only rows of one size share a batch: filled up, they are answered otherwise, or two dimensions vary"

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """The name and version of the model, its largest batch, and the backends to try with so many threads.

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
        """Return what is stored of a model with these tensors, which is built on this backend."""
        named, limits = (FORMAT, self.name, self.version), (self.tolerance, self.max_batch)
        return StoredModel(*named, inputs, outputs, cuts, backend, *limits, kinds, dims, pads, packs, about)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build found, and the same in words: label and text of each line.

    `overhead` is the chain's time over the uncut model's by batch size, `refused` says why a backend was not taken. For
    `pads` see `ModelSpec`.
    """

    directory: ModelDirectory
    backend: str
    error: float
    inputs: tuple[TensorSpec, ...]
    stages: tuple[Grid, ...]
    lines: tuple[tuple[str, str], ...]
    cut_points: int = 0
    overhead: dict[int, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    pads: bool = False

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of each line of the report."""
        return list(self.lines)


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[Made]):
    """A backend that was tried: what was made with it, with its error and seconds, or why it was refused.

    It does as the module does for numbers up to `largest`; inf also for infinities and NaN.
    """

    backend: str
    made: Made | None = None
    error: float = 0.0
    largest: float = inf
    seconds: float = 0.0
    refused: str = ""

    def line(self, of: str) -> tuple[str, str]:
        """What came of it, for the report; its seconds are those `of` something."""
        found = f"{self.seconds * 1e3:.2f} ms {of}, relative error {self.error:.1e}"
        return f"backend {self.backend}", f"not taken: {self.refused}" if self.refused else found


NOBODY: Mapping[str, str] = {}


def try_backends(
    settings: Settings,
    make: Callable[[str], Candidate[Made]],
    call: Callable[[Made], Callable[[], object]],
    tell: Callable[[str, float], None],
) -> tuple[list[Candidate[Made]], float]:
    """Return what came of each backend, the quickest first and refused ones last, and how timings of one differ.

    `make` raises for a backend that is refused; the calls that are timed take turns.
    """
    found = []
    for position, backend in enumerate(settings.backends):
        tell(f"trying the backend {backend}", position / len(settings.backends))
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
    """Return which backend was chosen, and why, for the report; `passed_over` are quicker ones that were not."""
    rivals = [one for one in candidates if not one.refused and one is not chosen and one.backend not in passed_over]
    if rivals:
        told = [f"{rivals[0].seconds / chosen.seconds:.1f} times as quick as {rivals[0].backend}"]
    else:
        told = ["the only one that was tried" if len(candidates) == 1 else "the only one that may be taken"]
    told += [f"{backend} is quicker, but not taken: {why}" for backend, why in passed_over.items()]
    return f"{chosen.backend}, {'; '.join(told)}"


def none_fits(settings: Settings, reasons: Iterable[tuple[str, str]]) -> ExportError:
    """Return what to raise where each backend was refused, for these reasons."""
    said = "; ".join(f"{backend}: {why}" for backend, why in reasons)
    return ExportError(f"no backend runs this model within {settings.most_error:.1e} of eager: {said}")


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long as another a call takes: the median, and what that is at most, 39 times in 40."""

    median: float
    most: float


def compared(call: Callable[[], object], other: Callable[[], object], limit: float) -> Ratio:
    """Return how many times as long as the `other` a call takes, from pairs of runs that follow each other.

    Pairs are added while they leave open whether that is over the `limit`, as they do where the machine is busy.
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
        """The largest `overhead`, as far as that is known; 1 if the model is not cut."""
        return max((ratio.most for ratio in self.overhead.values()), default=1.0)


def build_program(
    module: nn.Module,
    example_inputs: Tensors,
    *,
    directory: Path,
    name: str,
    version: str = "1",
    backends: Sequence[str] | None = None,
    tolerance: float | None = None,
    min_stage_seconds: float = MIN_STAGE_SECONDS,
    min_stage_bytes: int = 0,
    max_overhead: float | None = MAX_OVERHEAD,
    max_batch: int = 16,
    threads: int = 1,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    dims: Sequence[Dim] = (),
    sizes: Mapping[str, Sequence[Size]] | None = None,
    data: Tensors | None = None,
    about: About = NOTHING_KNOWN,
    files: Mapping[str, bytes] | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Build `module` into the model directory `directory`; an existing model there is replaced.

    `example_inputs` are rows, by name or in order: backends are measured on them. They are verified on these, on rows
    of `data`, and on values over all that a client may send (`trials`). All `backends` are tried, and the fastest at
    batch 1 is taken among those whose relative error is at most `tolerance` (1e-5 if None; backends of lower precision
    are only tried if a tolerance is given). Where it differs from the module for very large numbers, NaN or infinities,
    a server refuses these.

    A stage takes at least `min_stage_seconds` on average (0 keeps every cut point), and there are only so many stages
    that the chain takes about 1 + `max_overhead` times as long as the uncut model at batch 1 and `max_batch` (None: no
    such limit). A stage has weights of at least `min_stage_bytes`; with `min_stage_seconds` 0 that alone decides, so
    every build cuts alike.

    If the module returns a dictionary, `outputs` names those to serve; by default all are served.

    Rows need not be of one size: `dims` are named dimensions, and `sizes` says, by name of input, what a row of it has
    in terms of these (`{"words": ["L"]}`); examples are then rows of any one size. The module is compared at sizes over
    the whole range. Whether rows of different sizes may share a batch, filled up to the longest, is found by trying.

    `about` says what the model is for, and `files` are further files of its directory, such as those that say how its
    raw inputs are read.

    Raises `ExportError` for a module that cannot be served and `ConfigError` for invalid settings; nothing is written
    then.
    """
    settings = Settings.checked(
        name, version, max_batch=max_batch, backends=backends, tolerance=tolerance, threads=threads
    )
    tell = progress or ignore_progress
    torch.set_num_threads(threads)
    tell("exporting the module", 0.0)
    exported, fixed = export_any_size(
        module,
        example_inputs,
        input_names=input_names,
        output_names=output_names,
        outputs=outputs,
        dims=dims,
        sizes=sizes,
    )
    run, rows = runner(module, example_inputs, outputs=outputs), tensors_of(example_inputs)
    known = [rows, *([] if data is None else [in_order(data, example_inputs)])]
    tell("asking the module", 0.05)
    agreement = find_agreement(run, exported, known, settings.most_error, most=max_batch)
    tuner, one = Tuner(exported, rows, settings), with_batch(rows, 1)
    check_filled_up(exported, fixed, run, agreement, rows)

    def uncut(backend: str) -> Candidate[StageFunction]:
        """Compile the uncut model and compare it with the module."""
        if idle := backend_named(backend).gains_nothing(exported.graph):
            raise ExportError(idle)
        made = compile_graph(exported.graph, exported.weights, backend=backend, threads=threads)
        error = relative_error(made(*rows), run(*rows))
        largest = agreement.largest(made) if error <= settings.most_error else inf
        if largest is None:
            raise ExportError("differs from the module on values that clients may send, though not on the examples")
        return Candidate(backend, made, error, largest)

    candidates, spread = try_backends(
        settings, uncut, lambda made: partial(made, *one), lambda said, share: tell(said, 0.1 + 0.4 * share)
    )
    tell("cutting", 0.6)
    cut = partial(tuner.cut, seconds=min_stage_seconds, overhead=max_overhead, least_bytes=min_stage_bytes)
    chosen, chain, error, passed_over = _chosen(tuner, cut, run, agreement, candidates)
    if chain.cuts:
        check_stages(chain.whole, chain.cuts, exported.weights, rows, most=max_batch)
    share = partial(
        may_share, run, graphs=chain.graphs, specs=agreement.inputs, real=rows, differ=agreement.judge.differ
    )
    pads = share(chain.stages)
    packed = tuner.packed(chain, chosen) if pads else None
    if packed is not None and not (
        agreement.holds(packed.stages, chain.graphs, chosen.largest) and share(packed.stages)
    ):
        packed = None
    chain, packs = packed or chain, packed is not None
    tell("measuring the stages", 0.8)
    load = partial(compile_stages, chain.graphs, exported.weights, backend=chosen.backend, threads=threads, packs=packs)
    profile = Profile(
        hardware=this_hardware(threads),
        backend=chosen.backend,
        load_seconds=time_call(load),
        stages=profile_stages(
            chain.stages,
            rows,
            profiled_batches(max_batch),
            specs=exported.graph.inputs,
            dims=exported.graph.dims,
        ),
        weight_bytes=sum(tensor.nbytes for tensor in exported.weights.values()),
    )
    inputs = agreement.limited(chosen.largest)
    tensors = inputs, exported.graph.output_specs()
    model = settings.model(
        *tensors,
        chosen.backend,
        cuts=chain.cuts,
        dims=exported.graph.dims,
        pads=pads,
        packs=packs,
        about=about,
    )
    stored, needing = stages_as_files(chain.graphs, exported.weights, chosen.backend, packs=packs)
    beside = {GRAPH: graph_to_json(chain.whole), **stored, **(files or {})}
    written = write_model(directory, model, exported.weights, profile, beside)
    tell("done", 1.0)
    points, length = len(cut_points(tuner.cuttable)), prod(own_sizes(exported.graph, rows).values())
    whole, size = sum(grid.at(1, length) for grid in profile.stages), f" and length {length}" if dims else ""
    overhead = {batch: ratio.median for batch, ratio in chain.overhead.items()}
    together = PACKED if packs else SHARED if pads else NOT_SHARED
    lines = [
        ("cut points", str(points)),
        *(candidate.line(f"uncut at batch 1{size}") for candidate in candidates),
        ("chosen", why_chosen(chosen, candidates, passed_over)),
        ("stages", f"{len(chain.stages)}, {whole * 1e3:.2f} ms in all at batch 1{size}"),
        ("chain over uncut", ", ".join(f"{r:.3f} at batch {b}" for b, r in overhead.items()) or NOT_CUT),
        ("largest relative error", f"{error:.1e}"),
        *((f"sizes of {dim.name}", f"{dim.range()}; {together}") for dim in exported.graph.dims),
        *rung_lines(exported.graph, fixed),
        *([("served with torch alone", needing)] if needing else []),
        *(
            (f"values of {spec.name}", f"{spec.range()}; {_others(spec)} are refused")
            for spec in model.inputs
            if spec.is_limited
        ),
        *closing_lines(profile, written, spread),
    ]
    refused = {one.backend: one.refused for one in candidates if one.refused} | passed_over
    return BuildReport(
        written,
        chosen.backend,
        error,
        model.inputs,
        profile.stages,
        tuple(lines),
        points,
        overhead,
        refused,
        pads,
    )


def check_filled_up(exported: Exported, fixed: str, run: Run, agreement: Agreement, rows: tuple[Tensor, ...]) -> None:
    """Raise `ExportError` for a graph with rungs where rows that are filled up to the next are answered otherwise."""
    graph, weights = exported
    if not graph.rungs or len(graph.rungs) == count_sizes(graph.dims):
        return
    if not may_share(run, (in_eager(graph, weights),), (graph,), agreement.inputs, rows, agreement.judge.differ):
        raise ExportError(
            f"{fixed}. A graph for each of some sizes does not help, because rows that are filled up to the next are "
            f"answered otherwise: declare at most {MOST_RUNGS} sizes, by larger steps, and each has its own"
        )


def rung_lines(graph: Graph, fixed: str) -> list[tuple[str, str]]:
    """Return what a report says of a graph with rungs: their sizes, and why there is not one graph for all."""
    if not graph.rungs:
        return []
    sizes = [" x ".join(map(str, each.values())) for each in graph.rung_sizes()]
    named = " x ".join(dim.name for dim in graph.dims)
    return [("a graph for each", f"{named} of {', '.join(sizes)}; rows are filled up to the next"), ("because", fixed)]


def _others(spec: TensorSpec) -> str:
    return "others" if spec.largest is None else "others, NaN and infinities"


def closing_lines(profile: Profile, directory: ModelDirectory, spread: float) -> list[tuple[str, str]]:
    """Return the last lines of every report; one warns if timings differ too much to decide by them."""
    weights = f"{profile.weight_bytes / 1e6:.2f} MB, loaded in {profile.load_seconds:.2f} s"
    lines = [("weights", weights), ("written to", str(directory.path))]
    if spread > STEADY:
        said = f"timings of the same run differ by {spread:.1f} times: other processes use the cores"
        lines.insert(0, ("warning", f"{said}. Build again on a quiet machine"))
    return lines


def ignore_progress(_step: str, _share: float) -> None:
    """Report progress to nobody."""


def _chosen(
    tuner: "Tuner",
    cut: Callable[[Candidate[StageFunction]], Chain],
    run: Run,
    agreement: Agreement,
    candidates: Sequence[Candidate[StageFunction]],
) -> tuple[Candidate[StageFunction], Chain, float, dict[str, str]]:
    """Return the fastest backend on which every stage is accurate, the chain on it, and its error.

    Last come those that are faster and were passed over, and why. Refused ones come last among `candidates`.
    """
    passed_over: dict[str, str] = {}
    for candidate in candidates:
        if candidate.refused:
            break
        chain = cut(candidate)
        batches = [with_batch(tuner.rows, batch) for batch in sorted({1, 2, tuner.settings.max_batch})]
        error = max(relative_error(run_chain(chain.stages, rows), run(*rows)) for rows in batches)
        # A stage in eager is what stages are compared with, so of such a chain only the whole is compared.
        compared = () if candidate.backend == "eager" else chain.graphs
        if not error <= tuner.settings.most_error:
            passed_over[candidate.backend] = f"the chain of stages has the relative error {error:.1e}"
        elif not agreement.holds(chain.stages, compared, candidate.largest):
            passed_over[candidate.backend] = "a stage differs on values that clients may send"
        else:
            return candidate, chain, error, passed_over
    refused = [(candidate.backend, candidate.refused) for candidate in candidates if candidate.refused]
    raise none_fits(tuner.settings, [*passed_over.items(), *refused])


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

        Each cut costs about the same, which says how many are affordable where a chain takes too long.
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

        It has to save a share of a batch's time, and to cost hardly any of a row's that runs alone. The rows of the
        batch have half a usual length to all of that, as those that are chosen to run together.
        """
        if not backend_named(candidate.backend).packs or chain.whole.rungs:
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
        """Return the chain cut at these points of `cuttable`, where alone its activations carry something."""
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
