"""Builds a model directory from a module: export, try backends, cut, verify, profile, write. A trusted step.

Which backend is used, and how many stages are affordable, is decided by measuring.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Self

import torch
from torch import Tensor, nn

from latebind.domain.costs import Curve
from latebind.domain.errors import ConfigError, ExportError, LatebindError, TooBusy
from latebind.domain.model import TensorSpec
from latebind.program.agreement import (
    DEFAULT_TOLERANCE,
    Agreement,
    chain_error,
    find_agreement,
    in_order,
    like,
    relative_error,
)
from latebind.program.backends import BACKENDS, StageFunction, compile_graph, compile_stages, run_chain
from latebind.program.cut import (
    cut_points,
    find_carries,
    fusion_safe_points,
    join_by_bytes,
    join_by_seconds,
    split,
    with_carries,
)
from latebind.program.device import synchronize
from latebind.program.export import Exported, export, run_module, tensors_of
from latebind.program.graph import Graph
from latebind.program.measure import (
    STEADY,
    Profile,
    Rounds,
    compared,
    interleaved,
    median_seconds,
    profile_stages,
    profiled_batches,
    this_hardware,
    time_call,
    with_batch,
)
from latebind.program.rows import check_rows, check_stages
from latebind.program.stored import FORMAT, StoredModel, write_program
from latebind.repository.directory import NAME, ModelDirectory

RUNS, FEWEST_RUNS = 41, 7  # of each side in a comparison
COMPARED_SECONDS = 1.0  # a side's time in a comparison, unless the fewest runs take longer
PROBE_STAGES = 8  # in the chain on which the cost of a cut is measured
MAX_OVERHEAD = 0.04  # of a chain's time over the uncut model's
BOUNDARY_SECONDS = 31e-6  # the engine's time between two stages with nothing queued: `python -m research boundary`
MIN_STAGE_SECONDS = round(BOUNDARY_SECONDS / MAX_OVERHEAD, 4)  # so its boundary is at most that share of it
NOT_CUT = "not cut: stages would be too short, or cutting cost too much; --min-stage-ms 0 cuts everywhere"

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


@dataclass(frozen=True, slots=True)
class StageLimits:
    """How a model is cut: what a stage has to be worth, and what the cuts may cost.

    A stage takes at least `seconds` on average (0 keeps every cut) and has weights of at least `bytes`; with `seconds`
    0, `bytes` alone decides. The chain of stages may take 1 + `overhead` times as long as the uncut model (None: no
    limit).
    """

    seconds: float
    overhead: float | None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What `build_program` found; `rows` formats it.

    `overhead` is the chain's time over the uncut model's by batch size.
    """

    directory: ModelDirectory
    cut_points: int
    candidates: tuple["Candidate", ...]
    backend: str
    error: float
    inputs: tuple[TensorSpec, ...]
    stages: tuple[Curve, ...]
    overhead: dict[int, float]
    weight_bytes: int
    load_seconds: float
    spread: float

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of each line of the report."""
        whole = sum(curve.at(1) for curve in self.stages)
        ratios = ", ".join(f"{ratio:.3f} at batch {batch}" for batch, ratio in self.overhead.items())
        limited = [
            (
                f"values of {spec.name}",
                f"{spec.range()}; {'others' if spec.largest is None else 'others, NaN and infinities'} are refused",
            )
            for spec in self.inputs
            if spec.is_limited
        ]
        return [
            ("cut points", str(self.cut_points)),
            *((f"backend {candidate.backend}", candidate.tried) for candidate in self.candidates),
            ("chosen", self.backend),
            ("stages", f"{len(self.stages)}, {whole * 1e3:.2f} ms in all at batch 1"),
            *([("warning", too_busy(self.spread))] if self.spread > STEADY else []),
            ("chain over uncut", ratios or NOT_CUT),
            ("largest relative error", f"{self.error:.1e}"),
            *limited,
            ("weights", f"{self.weight_bytes / 1e6:.2f} MB, loaded in {self.load_seconds:.2f} s"),
            ("written to", str(self.directory.path)),
        ]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that was tried: seconds of the uncut model at batch 1 and its error, or why it was refused.

    It does as the module does for numbers up to `largest`; inf also for infinities and NaN. `spread` is how many times
    as long as the quick runs of the candidates the slow ones took.
    """

    backend: str
    seconds: float = 0.0
    error: float = 0.0
    refused: str | None = None
    uncut: StageFunction | None = None
    largest: float = inf
    spread: float = 1.0

    @property
    def tried(self) -> str:
        """What came of it."""
        if self.refused is not None:
            return f"not taken: {self.refused}"
        return f"{self.seconds * 1e3:.2f} ms uncut at batch 1, relative error {self.error:.1e}"


@dataclass(frozen=True, slots=True)
class Chain:
    """A model cut and compiled: stages, their graphs, and the chain's time over the uncut model's by batch size.

    `whole` is the graph that was cut into `graphs`: the model's, with what activations carry at the cuts.
    """

    backend: str
    cuts: tuple[int, ...]
    whole: Graph
    graphs: tuple[Graph, ...]
    stages: tuple[StageFunction, ...]
    overhead: dict[int, float]

    @property
    def worst(self) -> float:
        """The largest `overhead`; 1 if the model is not cut."""
        return max(self.overhead.values(), default=1.0)


def build_program(
    module: nn.Module,
    example_inputs: Mapping[str, Tensor] | Sequence[Tensor],
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
    data: Mapping[str, Tensor] | Sequence[Tensor] | None = None,
    progress: Progress | None = None,
    trust_timings: bool = True,
) -> BuildReport:
    """Build `module` into the model directory `directory`; an existing model there is replaced.

    `example_inputs` are rows, by name or in order: backends are measured on them. They are verified on these, on rows
    of `data`, and on values over all that a client may send (`trial_rows`). All `backends` are tried, and the fastest
    at batch 1 is taken among those whose relative error is at most `tolerance` (1e-5 if None; backends of lower
    precision are only tried if a tolerance is given). Where it differs from the module for very large numbers, NaN or
    infinities, a server refuses these.

    A stage takes at least `min_stage_seconds` on average (0 keeps every cut point), and there are only so many stages
    that the chain takes about 1 + `max_overhead` times as long as the uncut model at batch 1 and `max_batch` (None: no
    such limit). A stage has weights of at least `min_stage_bytes`; with `min_stage_seconds` 0 that alone decides, so
    every build cuts alike.

    If the module returns a dictionary, `outputs` names those to serve; by default all are served. Raises `ExportError`
    for a module that cannot be served, `ConfigError` for invalid settings, and, unless `trust_timings`, `TooBusy` where
    the same run takes several times as long from one moment to the next; nothing is written then.
    """
    settings = Settings.checked(
        name, version, max_batch=max_batch, backends=backends, tolerance=tolerance, threads=threads
    )
    tell = progress or ignore_progress
    torch.set_num_threads(threads)
    tell("exporting the module", 0.0)
    exported = export(module, example_inputs, input_names=input_names, output_names=output_names, outputs=outputs)
    rows = tensors_of(example_inputs)
    known = [rows, *([] if data is None else [in_order(data, example_inputs)])]

    def answer(*given: Tensor) -> tuple[Tensor, ...]:
        return run_module(module, like(example_inputs, given), outputs=outputs)

    tell("looking whether rows depend on each other", 0.05)
    check_rows(lambda given: answer(*given), exported.graph, exported.weights, known[-1], most=max_batch)
    expected = run_module(module, example_inputs, outputs=outputs)
    tuner = Tuner(exported, rows, expected, tolerance or DEFAULT_TOLERANCE, max_batch, threads)
    agreement = find_agreement(answer, exported, known, tuner.tolerance)
    tried = []
    for position, backend in enumerate(settings.backends):
        tell(f"trying the backend {backend}", 0.1 + 0.4 * position / len(settings.backends))
        tried.append(judged(tuner.try_backend(backend), agreement))
    candidates = tuner.time_candidates(tried)
    limits = StageLimits(min_stage_seconds, max_overhead, min_stage_bytes)
    chosen, chain, error = _cut(tuner, agreement, candidates, limits, tell)
    cuts = tuple(graph.outputs[0][1] for graph in chain.graphs[:-1])
    if cuts:
        check_stages(chain.whole, cuts, exported.weights, rows, most=max_batch)
    tell("measuring the stages", 0.8)
    start = perf_counter()
    compile_stages(chain.graphs, exported.weights, backend=chain.backend, threads=threads)
    load_seconds = perf_counter() - start
    profile = Profile(
        hardware=this_hardware(threads),
        backend=chain.backend,
        stages=profile_stages(chain.stages, rows, profiled_batches(max_batch)),
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in exported.weights.values()),
        load_seconds=load_seconds,
    )
    # How many times timings of the same run differ: within the comparison, and from there to now.
    before, after = chosen.seconds, tuner.seconds(chosen)
    spread = max(chosen.spread, before / after if after else 1.0, after / before if before else 1.0)
    if spread > STEADY and not trust_timings:
        raise TooBusy(too_busy(spread))
    model = StoredModel(
        format=FORMAT,
        name=settings.name,
        version=settings.version,
        inputs=agreement.limited(chosen.largest),
        outputs=exported.graph.output_specs(),
        cuts=cuts,
        backend=chain.backend,
        tolerance=settings.tolerance,
        max_batch=settings.max_batch,
    )
    written = write_program(directory, model, chain.whole, exported.weights, profile)
    tell("done", 1.0)
    return BuildReport(
        directory=written,
        cut_points=len(cut_points(tuner.cuttable)),
        candidates=candidates,
        backend=chain.backend,
        error=error,
        inputs=model.inputs,
        stages=profile.stages,
        overhead=chain.overhead,
        weight_bytes=profile.weight_bytes,
        load_seconds=profile.load_seconds,
        spread=spread,
    )


def too_busy(spread: float) -> str:
    """Say that timings differ too much to decide by them."""
    return (
        f"timings of the same run differ by {spread:.1f} times: other processes use the cores. Build again on a quiet "
        "machine, or with --trust-timings"
    )


def ignore_progress(_step: str, _share: float) -> None:
    """Report progress to nobody."""


def judged(candidate: Candidate, agreement: Agreement) -> Candidate:
    """Return the candidate with the largest numbers up to which it does as the module does, or refused."""
    if candidate.uncut is None:
        return candidate
    if agreement.open is not None and not BACKENDS[candidate.backend].raises:
        return replace(candidate, refused=agreement.open, uncut=None)
    largest = agreement.largest(candidate.uncut)
    if largest is None:
        why = "differs from the module on values that clients may send, though not on the examples"
        return replace(candidate, refused=why, uncut=None)
    return replace(candidate, largest=largest)


def _cut(
    tuner: "Tuner", agreement: Agreement, candidates: Sequence[Candidate], limits: StageLimits, tell: Progress
) -> tuple[Candidate, Chain, float]:
    """Return the fastest backend on which every stage is accurate, the chain on it, and its error."""
    reasons = [f"{c.backend}: {c.refused}" for c in candidates if c.refused is not None]
    for candidate in candidates:
        if candidate.refused is not None:
            continue
        tell(f"cutting for {candidate.backend}", 0.6)
        chain = tuner.cut(candidate, limits)
        batches = sorted({1, 2, tuner.max_batch})
        error = chain_error(chain.stages, chain.graphs, tuner.exported.weights, tuner.rows, batches)
        # A stage in eager is what stages are compared with, so of such a chain only the whole is compared.
        compared_graphs = () if BACKENDS[candidate.backend].raises else chain.graphs
        if not error <= tuner.tolerance:
            reasons.append(f"{candidate.backend}: a stage has the relative error {error:.1e}")
        elif not agreement.holds(chain.stages, compared_graphs, candidate.largest):
            reasons.append(f"{candidate.backend}: a stage differs on values that clients may send")
        else:
            return candidate, chain, error
    raise ExportError(f"no backend runs this model within {tuner.tolerance:.1e} of eager: {'; '.join(reasons)}")


@dataclass(frozen=True)
class Tuner:
    """An exported model with real rows of input, on which backends and cuts are tried."""

    exported: Exported
    rows: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]
    tolerance: float
    max_batch: int
    threads: int

    def try_backend(self, name: str) -> Candidate:
        """Compile the uncut model and compare its outputs with the module's own."""
        reason = BACKENDS[name].unavailable()
        if reason is not None:
            return Candidate(name, refused=reason)
        try:
            uncut = compile_graph(self.exported.graph, self.exported.weights, backend=name, threads=self.threads)
            error = relative_error(uncut(*self.rows), self.expected)
        except (LatebindError, RuntimeError, TypeError) as failure:
            return Candidate(name, refused=" ".join(str(failure).split())[:300])
        if not error <= self.tolerance:
            return Candidate(name, error=error, refused=f"relative error {error:.1e} is over {self.tolerance:.1e}")
        return Candidate(name, error=error, uncut=uncut)

    def time_candidates(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Return the candidates with their interleaved times at batch 1, fastest first, refused ones last."""
        one = with_batch(self.rows, 1)
        calls = {c.backend: partial(c.uncut, *one) for c in candidates if c.uncut is not None}
        if not calls:
            return tuple(candidates)
        found = compared(calls, min(_runs(call) for call in calls.values()))
        timed = [
            c if c.uncut is None else replace(c, seconds=found.median(c.backend), spread=found.spread)
            for c in candidates
        ]
        return tuple(sorted(timed, key=lambda c: (c.refused is not None, c.seconds)))

    def seconds(self, candidate: Candidate) -> float:
        """Return the seconds of the uncut model at batch 1, measured now."""
        assert candidate.uncut is not None, f"{candidate.backend} was refused"
        return median_seconds(partial(candidate.uncut, *with_batch(self.rows, 1)))

    @cached_property
    def cuttable(self) -> Graph:
        """The model's graph with all that activations may carry, and so with all its cut points."""
        return with_carries(self.exported.graph, find_carries(self.exported.graph))

    def cut(self, candidate: Candidate, limits: StageLimits) -> Chain:
        """Return the model cut into stages that keep within `limits` on this backend.

        The overhead limit holds at batch 1 and at `max_batch`. The cost of one cut is measured on a chain of a few
        stages, which gives the number of affordable cuts; while the resulting chain takes too long, it gets one stage
        less.
        """
        points = cut_points(self.cuttable)
        if limits.seconds <= 0 and limits.bytes <= 0:
            return self._compile(candidate, points)
        points = fusion_safe_points(self.cuttable, points)
        weights = self.exported.weights
        sizes = [sum(weights[name].nbytes for name in piece.weights()) for piece in split(self.cuttable, points)]
        points = join_by_bytes(points, sizes, limits.bytes)
        if limits.seconds <= 0:
            return self._compile(candidate, points)
        pieces = self._piece_seconds(points)
        stages = max(1, int(candidate.seconds / limits.seconds))
        if limits.overhead is None or stages == 1 or not points:
            return self._compile(candidate, join_by_seconds(points, pieces, stages))
        chain = self._compile(candidate, join_by_seconds(points, pieces, min(stages, PROBE_STAGES)))
        each = (chain.worst - 1.0) / max(1, len(chain.stages) - 1)
        stages = min(stages, 1 + int(limits.overhead / each)) if each > 0 else stages
        cuts = join_by_seconds(points, pieces, stages)
        if cuts != chain.cuts:
            chain = self._compile(candidate, cuts)
        while chain.cuts and chain.worst > 1.0 + limits.overhead:  # the estimate was too optimistic
            chain = self._compile(candidate, join_by_seconds(points, pieces, len(chain.stages) - 1))
        return chain

    def _piece_seconds(self, points: Sequence[int]) -> tuple[float, ...]:
        """Return the seconds of each piece run eagerly; relative to each other, other backends take about the same."""
        graphs = split(self.cuttable, points)
        passed, seconds = with_batch(self.rows, 1), []
        for stage in compile_stages(graphs, self.exported.weights, backend="eager", threads=self.threads):
            seconds.append(median_seconds(partial(stage, *passed)))
            passed = stage(*passed)
        return tuple(seconds)

    def _compile(self, candidate: Candidate, points: tuple[int, ...]) -> Chain:
        """Return the chain cut at these points of `cuttable`, where alone its activations carry something."""
        assert candidate.uncut is not None, f"{candidate.backend} was refused"
        graph = self.exported.graph
        if not points:
            return Chain(candidate.backend, (), graph, (graph,), (candidate.uncut,), {})
        names = [self.cuttable.nodes[point].name for point in points]
        whole = with_carries(graph, [carry for carry in find_carries(graph) if carry.name in names])
        places = {node.name: place for place, node in enumerate(whole.nodes)}
        graphs = split(whole, tuple(places[name] for name in names))
        stages = compile_stages(graphs, self.exported.weights, backend=candidate.backend, threads=self.threads)
        overhead = {}
        for batch in sorted({1, self.max_batch}):  # the median ratio of paired, interleaved runs
            inputs = with_batch(self.rows, batch)
            runs = _runs(partial(candidate.uncut, *inputs))
            seconds = chain_and_uncut(stages, candidate.uncut, inputs, runs).seconds
            overhead[batch] = median(a / b for a, b in zip(seconds["chain"], seconds["uncut"], strict=True))
        return Chain(candidate.backend, points, whole, graphs, stages, overhead)


def chain_and_uncut(
    stages: Sequence[StageFunction], uncut: StageFunction, inputs: tuple[Tensor, ...], runs: int
) -> Rounds:
    """Return the seconds of `runs` interleaved calls of "chain" and "uncut"."""
    return interleaved({"chain": partial(run_chain, stages, inputs), "uncut": partial(uncut, *inputs)}, runs)


def _runs(call: Callable[[], object]) -> int:
    """Return how many runs to compare: fewer if a run takes long."""
    synchronize(call())
    return max(FEWEST_RUNS, min(RUNS, int(COMPARED_SECONDS / time_call(call))))
