"""Builds a model directory from a module: export, try backends, cut, verify, profile, write. A trusted step.

`choose` decides which backend is used and how many stages are affordable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod
from pathlib import Path

import torch
from torch import Tensor, nn

from latebind.domain.costs import Grid
from latebind.domain.defaults import MAX_OVERHEAD, MIN_STAGE_SECONDS
from latebind.domain.errors import ExportError
from latebind.domain.model import NOTHING_KNOWN, About, TensorSpec
from latebind.domain.sizes import Dim, Size
from latebind.program.backends import StageFunction, backend_named, compile_graph, compile_stages, run_chain
from latebind.program.choose import Candidate, Chain, Settings, Tuner, none_fits, try_backends, why_chosen
from latebind.program.cut import cut_points
from latebind.program.eager import in_eager
from latebind.program.export import Exported, Tensors, export_any_size, in_order, runner, tensors_of
from latebind.program.graph import Graph, graph_to_json
from latebind.program.lengths import MOST_BUCKETS, count_sizes, own_sizes
from latebind.program.measure import STEADY, profile_stages, time_call, with_batch
from latebind.program.metadata import Profile, profiled_batches, this_hardware
from latebind.program.padding import may_share
from latebind.program.rows import check_stages
from latebind.program.stage_files import stages_as_files
from latebind.program.stored import write_model
from latebind.program.verify import Agreement, Run, find_agreement, relative_error
from latebind.repository.directory import GRAPH, ModelDirectory

NOT_CUT = "not cut: stages would be too short, or cutting cost too much; --min-stage-ms 0 cuts everywhere"

SHARED = "rows of different sizes share a batch: padding does not change their answers"
PACKED = "rows of different sizes share a batch, concatenated without padding where words are processed one by one"
NOT_SHARED = "only rows of one size share a batch: padding changes their answers, or two dimensions vary"

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build found, and `lines` of label and text that report it.

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
    are only tried if a tolerance is given). If it differs from the module for very large numbers, NaN or infinities,
    servers refuse these.

    A stage takes at least `min_stage_seconds` on average (0 keeps every cut point). The number of stages is limited so
    that the chain takes about 1 + `max_overhead` times as long as the uncut model at batch 1 and `max_batch` (None: no
    such limit). A stage has weights of at least `min_stage_bytes`; with `min_stage_seconds` 0 that alone decides, so
    every build cuts alike.

    If the module returns a dictionary, `outputs` names those to serve; by default all are served.

    Rows need not be of one size: `dims` are named dimensions, and `sizes` gives, by name of input, the sizes of a row
    in terms of these (`{"words": ["L"]}`); examples are then rows of any one size. The module is compared at sizes over
    the whole range. Whether rows of different sizes may share a batch, padded to the longest, is found by trying.

    `about` says what the model is for, and `files` are further files of its directory, such as those that say how its
    raw inputs are read.

    Raises `ExportError` for a module that cannot be served and `ConfigError` for invalid settings; nothing is written
    then.
    """
    settings = Settings.checked(
        name, version, max_batch=max_batch, backends=backends, tolerance=tolerance, threads=threads
    )
    on_progress = progress or ignore_progress
    torch.set_num_threads(threads)
    on_progress("exporting the module", 0.0)
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
    on_progress("asking the module", 0.05)
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
        settings, uncut, lambda made: partial(made, *one), lambda step, share: on_progress(step, 0.1 + 0.4 * share)
    )
    on_progress("cutting", 0.6)
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
    on_progress("measuring the stages", 0.8)
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
    on_progress("done", 1.0)
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
        *bucket_lines(exported.graph, fixed),
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
    """Raise `ExportError` for a graph with buckets if padding rows to the next bucket changes their answers."""
    graph, weights = exported
    if not graph.buckets or len(graph.buckets) == count_sizes(graph.dims):
        return
    if not may_share(run, (in_eager(graph, weights),), (graph,), agreement.inputs, rows, agreement.judge.differ):
        raise ExportError(
            f"{fixed}. A graph for each of some sizes does not help, because padding rows to the next of them changes "
            f"their answers: declare at most {MOST_BUCKETS} sizes, by larger steps, and each has its own graph"
        )


def bucket_lines(graph: Graph, fixed: str) -> list[tuple[str, str]]:
    """Return the report's lines on a graph with buckets: their sizes, and why there is not one graph for all."""
    if not graph.buckets:
        return []
    sizes = [" x ".join(map(str, each.values())) for each in graph.bucket_sizes()]
    named = " x ".join(dim.name for dim in graph.dims)
    return [("a graph for each", f"{named} of {', '.join(sizes)}; rows are padded to the next"), ("because", fixed)]


def _others(spec: TensorSpec) -> str:
    return "others" if spec.largest is None else "others, NaN and infinities"


def closing_lines(profile: Profile, directory: ModelDirectory, spread: float) -> list[tuple[str, str]]:
    """Return the last lines of every report; one is a warning if timings differ too much to decide by them."""
    weights = f"{profile.weight_bytes / 1e6:.2f} MB, loaded in {profile.load_seconds:.2f} s"
    lines = [("weights", weights), ("written to", str(directory.path))]
    if spread > STEADY:
        text = f"timings of the same run differ by {spread:.1f} times: other processes use the cores"
        lines.insert(0, ("warning", f"{text}. Build again on a quiet machine"))
    return lines


def ignore_progress(_step: str, _share: float) -> None:
    """Ignore a progress report."""


def _chosen(
    tuner: Tuner,
    cut: Callable[[Candidate[StageFunction]], Chain],
    run: Run,
    agreement: Agreement,
    candidates: Sequence[Candidate[StageFunction]],
) -> tuple[Candidate[StageFunction], Chain, float, dict[str, str]]:
    """Return the fastest backend on which every stage is accurate, the chain on it, and its error.

    The last value says why faster ones were passed over. Refused ones come last among `candidates`.
    """
    passed_over: dict[str, str] = {}
    for candidate in candidates:
        if candidate.refused:
            break
        chain = cut(candidate)
        batches = [with_batch(tuner.rows, batch) for batch in sorted({1, 2, tuner.settings.max_batch})]
        error = max(relative_error(run_chain(chain.stages, rows), run(*rows)) for rows in batches)
        # Stages are compared with eager, so of a chain in eager only the whole is compared.
        compared = () if candidate.backend == "eager" else chain.graphs
        if not error <= tuner.settings.most_error:
            passed_over[candidate.backend] = f"the chain of stages has the relative error {error:.1e}"
        elif not agreement.holds(chain.stages, compared, candidate.largest):
            passed_over[candidate.backend] = "a stage differs on values that clients may send"
        else:
            return candidate, chain, error, passed_over
    refused = [(candidate.backend, candidate.refused) for candidate in candidates if candidate.refused]
    raise none_fits(tuner.settings, [*passed_over.items(), *refused])
