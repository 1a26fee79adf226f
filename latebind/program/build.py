"""Builds a model directory from a module: export, try backends, cut, verify, profile, write. A trusted step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from latebind.domain.costs import Curve
from latebind.domain.errors import ExportError, TooBusy
from latebind.domain.model import TensorSpec
from latebind.program.agreement import Agreement, find_agreement, in_order, like
from latebind.program.cut import cut_points
from latebind.program.export import Exported, export, run_module
from latebind.program.load import compile_stages
from latebind.program.measure import STEADY, profile_stages, profiled_batches
from latebind.program.profile import Profile, this_hardware
from latebind.program.rows import check_rows, check_stages
from latebind.program.settings import Settings, StageLimits
from latebind.program.stored import FORMAT, StoredModel, write_program
from latebind.program.tuning import Candidate, Chain, Tuner
from latebind.program.verify import DEFAULT_TOLERANCE, chain_error
from latebind.repository.directory import ModelDirectory

MAX_OVERHEAD = 0.04  # of a chain's time over the uncut model's
BOUNDARY_SECONDS = 31e-6  # the engine's time between two stages with nothing queued: `python -m research boundary`
MIN_STAGE_SECONDS = round(BOUNDARY_SECONDS / MAX_OVERHEAD, 4)  # so its boundary is at most that share of it

Progress = Callable[[str, float], None]


NOT_CUT = "not cut: stages would be too short (--min-stage-ms), or cutting cost too much (--overhead)"


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What `build_program` found; `rows` formats it.

    `overhead` is the chain's time over the uncut model's by batch size.
    """

    directory: ModelDirectory
    cut_points: int
    candidates: tuple[Candidate, ...]
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
        return [
            ("cut points", str(self.cut_points)),
            *((f"backend {candidate.backend}", _tried(candidate)) for candidate in self.candidates),
            ("chosen", self.backend),
            ("stages", f"{len(self.stages)}, {whole * 1e3:.2f} ms in all at batch 1"),
            *([("warning", too_busy(self.spread))] if self.spread > STEADY else []),
            ("chain over uncut", ratios or NOT_CUT),
            ("largest relative error", f"{self.error:.1e}"),
            *((f"values of {spec.name}", _allowed(spec)) for spec in self.inputs if spec.is_limited),
            ("weights", f"{self.weight_bytes / 1e6:.2f} MB, loaded in {self.load_seconds:.2f} s"),
            ("written to", str(self.directory.path)),
        ]


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
    rows = tuple(example_inputs.values() if isinstance(example_inputs, Mapping) else example_inputs)
    known = [rows, *([] if data is None else [in_order(data, example_inputs)])]

    def answer(*given: Tensor) -> tuple[Tensor, ...]:
        return run_module(module, like(example_inputs, given), outputs=outputs)

    tell("looking whether rows depend on each other", 0.05)
    check_rows(lambda given: answer(*given), exported.graph, exported.weights, known[-1], most=max_batch)
    expected = run_module(module, example_inputs, outputs=outputs)
    tuner = Tuner(exported, rows, expected, tolerance or DEFAULT_TOLERANCE, max_batch, threads)
    agreement = find_agreement(answer, exported, known, tuner.tolerance)
    candidates = _try_backends(tuner, agreement, settings.backends, tell)
    limits = StageLimits(min_stage_seconds, max_overhead, min_stage_bytes)
    chosen, chain, error = _cut(tuner, agreement, candidates, limits, tell)
    if len(chain.stages) > 1:
        ends = [graph.outputs[0][1] for graph in chain.graphs[:-1]]
        check_stages(chain.whole, ends, exported.weights, rows, most=max_batch)
    inputs = agreement.limited(chosen.largest)
    tell("measuring the stages", 0.8)
    profile = _profile(tuner, chain)
    spread = _spread(tuner, chosen)
    if spread > STEADY and not trust_timings:
        raise TooBusy(too_busy(spread))
    model = _stored(settings, exported, chain, inputs)
    written = write_program(directory, model, chain.whole, exported.weights, profile)
    tell("done", 1.0)
    return BuildReport(
        directory=written,
        cut_points=len(cut_points(tuner.cuttable())),
        candidates=candidates,
        backend=chain.backend,
        error=error,
        inputs=inputs,
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


def _spread(tuner: Tuner, chosen: Candidate) -> float:
    """Return how many times timings of the same run differ: within the comparison, and from there to now."""
    before, after = chosen.seconds, tuner.seconds(chosen)
    return max(chosen.spread, before / after if after else 1.0, after / before if before else 1.0)


def _stored(settings: Settings, exported: Exported, chain: Chain, inputs: tuple[TensorSpec, ...]) -> StoredModel:
    """Return the content of `model.json` for this chain."""
    return StoredModel(
        format=FORMAT,
        name=settings.name,
        version=settings.version,
        inputs=inputs,
        outputs=exported.graph.output_specs(),
        cuts=tuple(graph.outputs[0][1] for graph in chain.graphs[:-1]),
        backend=chain.backend,
        tolerance=settings.tolerance,
        max_batch=settings.max_batch,
    )


def _try_backends(tuner: Tuner, agreement: Agreement, names: Sequence[str], tell: Progress) -> tuple[Candidate, ...]:
    tried = []
    for position, backend in enumerate(names):
        tell(f"trying the backend {backend}", 0.1 + 0.4 * position / len(names))
        tried.append(agreement.judged(tuner.try_backend(backend)))
    return tuner.time_candidates(tried)


def _cut(
    tuner: Tuner, agreement: Agreement, candidates: Sequence[Candidate], limits: StageLimits, tell: Progress
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
        if not error <= tuner.tolerance:
            reasons.append(f"{candidate.backend}: a stage has the relative error {error:.1e}")
        elif not agreement.holds(chain, candidate.largest):
            reasons.append(f"{candidate.backend}: a stage differs on values that clients may send")
        else:
            return candidate, chain, error
    raise ExportError(f"no backend runs this model within {tuner.tolerance:.1e} of eager: {'; '.join(reasons)}")


def _profile(tuner: Tuner, chain: Chain) -> Profile:
    weights = tuner.exported.weights
    start = perf_counter()
    compile_stages(chain.graphs, weights, backend=chain.backend, threads=tuner.threads)
    load_seconds = perf_counter() - start
    return Profile(
        hardware=this_hardware(tuner.threads),
        backend=chain.backend,
        stages=profile_stages(chain.stages, tuner.rows, profiled_batches(tuner.max_batch)),
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in weights.values()),
        load_seconds=load_seconds,
    )


def _tried(candidate: Candidate) -> str:
    if candidate.refused is not None:
        return f"not taken: {candidate.refused}"
    return f"{candidate.seconds * 1e3:.2f} ms uncut at batch 1, relative error {candidate.error:.1e}"


def _allowed(spec: TensorSpec) -> str:
    """Return which values an input may have."""
    others = "others" if spec.largest is None else "others, NaN and infinities"
    return f"{spec.range()}; {others} are refused"


def ignore_progress(_step: str, _share: float) -> None:
    """Report progress to nobody."""
