"""Builds a model directory from a sequence module: export, try backends, verify, profile, write. A trusted step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.errors import ConfigError, ExportError, LatebindError, TooBusy
from latebind.domain.model import TensorSpec
from latebind.program.backends import backend_named
from latebind.program.build import Progress, ignore_progress, too_busy
from latebind.program.graph import Graph
from latebind.program.load import compile_graph
from latebind.program.measure import STEADY, compared
from latebind.program.profile import Profile, this_hardware
from latebind.program.settings import Settings
from latebind.program.stored import FORMAT, StoredModel
from latebind.program.verify import DEFAULT_TOLERANCE
from latebind.repository.directory import ModelDirectory
from latebind.sequence.decoding import answer_all
from latebind.sequence.export import TOKENS, ExportedSequence, SequenceModule, as_sequence, export_sequence
from latebind.sequence.measure import measure_sequence
from latebind.sequence.padding import lengths
from latebind.sequence.program import KINDS, Named, SequenceProgram, SpecialTokens, step_sizes
from latebind.sequence.rows import check_sequence
from latebind.sequence.stored import write_sequence
from latebind.sequence.verify import sequence_error

QUICK = ("eager", "openvino")  # backends that compile quickly: an encoder may have a thousand operators
VERIFIED = 16  # rows
ROUNDS = 7  # in which backends take turns
SHARES = (np.arange(100) + 0.5) / 100  # quantiles of the answers' lengths that the profile keeps


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """What `build_sequence` found; `rows` formats it."""

    directory: ModelDirectory
    lengths: tuple[int, ...]
    tried: tuple[tuple[str, str], ...]
    backend: str
    error: float
    costs: ModelCosts
    measured_lengths: bool
    spread: float

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of each line of the report."""
        steps, most = self.costs.output_steps, self.costs.stages[1].batches[-1]
        reading, slope, step = self.costs.stages[0], self.costs.slopes[0], self.costs.stages[1]
        answers = f"{steps[0]} to {steps[-1]} tokens, {sum(steps) / len(steps):.1f} on average"
        return [
            ("encoders for up to", ", ".join(map(str, self.lengths)) + " tokens"),
            *((f"backend {name}", text) for name, text in self.tried),
            ("chosen", self.backend),
            *([("warning", too_busy(self.spread))] if self.spread > STEADY else []),
            ("reading", f"{reading.at(1) * 1e3:.2f} ms and {slope.at(1) * 1e3:.3f} for each token more, alone"),
            ("a step", f"{step.at(1) * 1e3:.2f} ms alone, {step.at(most) * 1e3:.2f} in a batch of {most}"),
            ("answers", answers if self.measured_lengths else "taken to be as long as may be: give --data to measure"),
            ("largest relative error", f"{self.error:.1e}"),
            ("weights", f"{self.costs.weight_bytes / 1e6:.2f} MB, loaded in {self.costs.load_seconds:.2f} s"),
            ("written to", str(self.directory.path)),
        ]


def build_sequence(
    module: nn.Module,
    tokens: Tensor,
    *,
    directory: Path,
    name: str,
    version: str = "1",
    measured_lengths: bool = True,
    backends: Sequence[str] | None = None,
    tolerance: float | None = None,
    max_batch: int = 16,
    threads: int = 1,
    progress: Progress | None = None,
    trust_timings: bool = True,
) -> SequenceReport:
    """Build the sequence model `module` into the model directory `directory`; an existing model there is replaced.

    `tokens` `(N, longest input)` int64 are rows to verify and measure on. If `measured_lengths`, they are like the rows
    to come, and the lengths of their answers become the lengths that policies expect. The backend with the quickest
    typical request is taken among the `backends` whose error is within `tolerance`. Raises `ExportError`,
    `ConfigError`, or, unless `trust_timings`, `TooBusy` as `build_program` does.
    """
    settings = Settings.checked(
        name, version, max_batch=max_batch, backends=backends, tolerance=tolerance, threads=threads
    )
    if backends is None:
        settings = replace(settings, backends=tuple(one for one in settings.backends if one in QUICK))
    tell = progress or ignore_progress
    sequence = as_sequence(module)
    marks = SpecialTokens(sequence.start, sequence.end, sequence.padding)
    if tokens.dim() != 2 or tokens.dtype != torch.int64 or not len(tokens):
        raise ConfigError(f"a sequence model reads one input, {TOKENS}=int64:LONGEST, not {tuple(tokens.shape)}")
    torch.set_num_threads(threads)
    exported = export_sequence(module.eval(), tokens[:VERIFIED], tell=lambda text, share: tell(text, 0.5 * share))
    check_sequence(module, exported, tokens[:VERIFIED], most=settings.max_batch)
    model = _model(sequence, exported, tokens, settings)
    rows = _with_drawn(tokens[:VERIFIED], exported.words, sequence.padding)
    best = _best(partial(compiled, exported, model, marks), module, rows, settings, tell=tell)
    chosen, error, tried, spread = best
    if spread > STEADY and not trust_timings:
        raise TooBusy(too_busy(spread))
    tell("measuring answers", 0.8)
    answers = answer_all(chosen, tokens.numpy()) if measured_lengths else None
    profile = _profile(exported, chosen, tokens, answers)
    written = write_sequence(directory, replace(model, backend=chosen.backend), marks, exported, profile)
    tell("done", 1.0)
    return SequenceReport(
        directory=written,
        lengths=tuple(exported.encoders),
        tried=tried,
        backend=chosen.backend,
        error=error,
        costs=profile.costs(),
        measured_lengths=measured_lengths,
        spread=spread,
    )


def _model(
    sequence: SequenceModule,
    exported: ExportedSequence,
    tokens: Tensor,
    settings: Settings,
) -> StoredModel:
    padding = sequence.padding
    return StoredModel(
        format=FORMAT,
        name=settings.name,
        version=settings.version,
        inputs=(TensorSpec(TOKENS, "int64", (tokens.shape[1],), padding, exported.words),),
        outputs=(TensorSpec(TOKENS, "int64", (sequence.longest_output,), padding),),
        cuts=(),
        backend="",
        tolerance=settings.tolerance,
        max_batch=settings.max_batch,
        kinds=KINDS,
    )


def compiled(
    exported: ExportedSequence, model: StoredModel, marks: SpecialTokens, *, backend: str, threads: int
) -> SequenceProgram:
    """Return the exported model on a backend, with costs that have not been measured."""

    sizes = step_sizes(backend, model.max_batch)

    def on(graph: Graph, *, sizes: tuple[int, ...] = (1,)) -> Named:
        return Named.of(graph, compile_graph(graph, exported.weights, backend=backend, threads=threads, sizes=sizes))

    nothing = Curve((1,), (0.0,))
    return SequenceProgram(
        spec=model.spec(),
        costs=ModelCosts((nothing, nothing)),
        backend=backend,
        threads=threads,
        marks=marks,
        parts=exported.parts,
        encoders={length: on(graph) for length, graph in exported.encoders.items()},
        step=on(exported.step, sizes=sizes or (1,)),
        sizes=sizes,
        costs_fit=False,
    )


def _with_drawn(tokens: Tensor, words: int | None, padding: int) -> Tensor:
    """Return the rows in turns with rows of drawn words, none of them padding: examples may be one word alone."""
    if words is None or words < 2:
        return tokens
    drawn = torch.randint(words, tokens.shape, generator=torch.Generator().manual_seed(0))
    drawn = torch.where(drawn == padding, (padding + 1) % words, drawn)
    return torch.stack((tokens, drawn), 1).flatten(0, 1)


def _best(
    compile_on: Callable[..., SequenceProgram], module: nn.Module, tokens: Tensor, settings: Settings, *, tell: Progress
) -> tuple[SequenceProgram, float, tuple[tuple[str, str], ...], float]:
    """Return the program on the quickest accurate backend, its error, the result for each, and how timings differ."""
    refused: dict[str, str] = {}
    found: dict[str, tuple[float, SequenceProgram]] = {}
    most = settings.tolerance or DEFAULT_TOLERANCE
    for number, backend in enumerate(settings.backends):
        tell(f"trying the backend {backend}", 0.5 + 0.3 * number / len(settings.backends))
        try:
            backend_named(backend)
            program = compile_on(backend=backend, threads=settings.threads)
            error = sequence_error(program, module, tokens)
        except LatebindError as failure:
            refused[backend] = f"not taken: {failure}"
            continue
        if error > most:
            refused[backend] = f"not taken: relative error {error:.1e}, at most {most:.1e} is allowed"
            continue
        found[backend] = error, program
    if not found:
        reasons = "; ".join(f"{backend}: {text}" for backend, text in refused.items())
        raise ExportError(f"no backend runs this model within {most:.1e} of eager: {reasons}")
    row = tokens[:1].numpy()
    rounds = compared({backend: partial(answer_all, program, row) for backend, (_, program) in found.items()}, ROUNDS)
    texts = refused | {
        backend: f"{rounds.median(backend) * 1e3:.2f} ms for the first row, relative error {error:.1e}"
        for backend, (error, _) in found.items()
    }
    error, program = found[min(found, key=rounds.median)]
    tried = tuple([(backend, texts[backend]) for backend in settings.backends])
    return program, error, tried, rounds.spread


def _profile(
    exported: ExportedSequence,
    program: SequenceProgram,
    tokens: Tensor,
    answers: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None,
) -> Profile:
    start = perf_counter()
    for graph in (*exported.encoders.values(), exported.step):
        compile_graph(graph, exported.weights, backend=program.backend, threads=program.threads)
    load_seconds = perf_counter() - start
    reading, slope, step = measure_sequence(program, tokens.numpy())
    output_steps = (program.longest_output,)
    if answers is not None:
        measured = np.array(lengths(answers, program.marks.padding))
        output_steps = tuple(np.quantile(measured, SHARES, method="nearest").tolist())
    return Profile(
        hardware=this_hardware(program.threads),
        backend=program.backend,
        stages=(reading, step),
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in exported.weights.values()),
        load_seconds=load_seconds,
        slopes={0: slope},
        output_steps=output_steps,
    )
