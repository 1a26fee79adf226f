"""Builds a model directory from a sequence module: export, try backends, verify, profile, write. A trusted step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from latebind.domain.errors import ConfigError, ExportError
from latebind.domain.model import LENGTH, NOTHING_KNOWN, About, TensorSpec
from latebind.program.backends import BACKENDS, compile_graph
from latebind.program.build import BuildReport, Progress, bucket_lines, closing_lines, ignore_progress
from latebind.program.choose import Candidate, Settings, none_fits, try_backends, why_chosen
from latebind.program.export import runner
from latebind.program.lengths import at_size, own_sizes, tried_sizes
from latebind.program.measure import time_call, with_batch
from latebind.program.metadata import Profile, this_hardware
from latebind.program.rows import check_rows
from latebind.program.trials import operations
from latebind.program.verify import relative_error
from latebind.program.whole_numbers import find_limits
from latebind.sequence.export import (
    LOGITS,
    TOKENS,
    EncodeModule,
    SequenceGraphs,
    SequenceModule,
    StepModule,
    as_sequence,
    export_sequence,
)
from latebind.sequence.program import (
    KINDS,
    SequenceProgram,
    answer_all,
    counted,
    measure_sequence,
    program_of,
    step_sizes,
    timed_batch,
)
from latebind.sequence.state import POSITION, TOKEN, Part, State, StateRows
from latebind.sequence.stored import write_sequence

VERIFIED = 16  # rows
STEPS = 3  # that are verified
TIMED = 16  # steps after each read, by which backends are chosen
LENGTHS = 4  # of rows, besides the ends of the range
ROWS, FEW_ROWS = 8, 2  # of each length that are tried beside others
WORK = 1e9  # operations of reading a row from which few rows are tried, and most of them cut to `SHORT` tokens
SHORT = 64
PADDED = 1e-3  # of the largest number: more than rounding over other lengths causes
SHARES = (np.arange(100) + 0.5) / 100  # quantiles of the answers' lengths that the profile keeps


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
    about: About = NOTHING_KNOWN,
    files: Mapping[str, bytes] | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Build the sequence model `module` into the model directory `directory`; an existing model there is replaced.

    `tokens` `(N, longest input)` int64 are rows to verify and measure on. If `measured_lengths`, they are like the rows
    to be served, and the lengths of their answers become the lengths that policies expect. The backend that is fastest
    with a full batch is taken among the `backends` whose error is within `tolerance`. For `about` and `files`, and for
    `ExportError` and `ConfigError`, see `build_program`.
    """
    settings = Settings.checked(
        name, version, max_batch=max_batch, backends=backends, tolerance=tolerance, threads=threads
    )
    if backends is None:
        settings = replace(settings, backends=tuple(one for one in settings.backends if BACKENDS[one].quick))
    on_progress = progress or ignore_progress
    sequence = as_sequence(module)
    if tokens.dim() != 2 or tokens.dtype != torch.int64 or not len(tokens) or tokens.shape[1] < 2:
        wanted = f"{TOKENS}=int64:LONGEST, which is 2 or more"
        raise ConfigError(f"a sequence model reads one input, {wanted}, not {tuple(tokens.shape)}")
    torch.set_num_threads(threads)
    exported = export_sequence(
        module.eval(), tokens[:VERIFIED], on_progress=lambda text, share: on_progress(text, 0.5 * share)
    )
    words = find_limits(exported.encoder, exported.weights)[0].limit
    check_sequence(module, exported, tokens[:VERIFIED], words, most=max_batch)
    inputs = (TensorSpec(TOKENS, "int64", (tokens.shape[1],), sequence.padding, words, sizes=(LENGTH,)),)
    outputs = (TensorSpec(TOKENS, "int64", (sequence.longest_output,), sequence.padding),)
    model = settings.model(inputs, outputs, "", kinds=KINDS, dims=exported.encoder.dims, pads=True, about=about)

    def compiled(backend: str) -> SequenceProgram:
        use = partial(compile_graph, weights=exported.weights, backend=backend, threads=threads)
        sizes = step_sizes(exported.step, backend, max_batch) or (1,)
        stages = use(exported.encoder), use(exported.step, sizes=sizes)
        return program_of(exported, model, None, stages, backend=backend, threads=threads)

    rows = _with_drawn(tokens[:VERIFIED], words, sequence.padding)

    def tried(backend: str) -> Candidate[SequenceProgram]:
        program = compiled(backend)
        return Candidate(backend, program, sequence_error(program, module, rows))

    (full,) = with_batch((tokens[:, :SHORT] if _is_heavy(module, tokens) else tokens,), max_batch)
    candidates, spread = try_backends(
        settings,
        tried,
        lambda made: timed_batch(made, full, TIMED),
        lambda step, share: on_progress(step, 0.5 + 0.3 * share),
    )
    chosen, error = candidates[0].made, candidates[0].error
    if chosen is None or candidates[0].refused:
        raise none_fits(settings, ((each.backend, each.refused) for each in candidates))
    on_progress("measuring answers", 0.8)
    output_steps = (sequence.longest_output,)
    if measured_lengths:
        measured = counted(answer_all(chosen, tokens.numpy()), sequence.padding)
        output_steps = tuple(np.quantile(measured, SHARES, method="nearest").tolist())
    reading, step = stages = measure_sequence(chosen, tokens.numpy())
    profile = Profile(
        hardware=this_hardware(threads),
        backend=chosen.backend,
        stages=stages,
        weight_bytes=sum(tensor.nbytes for tensor in exported.weights.values()),
        load_seconds=time_call(partial(compiled, chosen.backend)),
        output_steps=output_steps,
    )
    written = write_sequence(directory, replace(model, backend=chosen.backend), exported, profile, files or {})
    on_progress("done", 1.0)
    most, answers = max_batch, f"{output_steps[0]} to {output_steps[-1]} tokens, {np.mean(output_steps):.1f} on average"
    reads = ", ".join(f"{reading.at(1, length) * 1e3:.2f} ms for {length}" for length in reading.lengths)
    lines = [
        *bucket_lines(exported.encoder, exported.fixed),
        *(candidate.line(f"for a batch of {most}, its first tokens") for candidate in candidates),
        ("chosen", why_chosen(candidates[0], candidates)),
        ("reading", f"{reads} tokens, alone"),
        ("a step", f"{step.at(1) * 1e3:.2f} ms alone, {step.at(most) * 1e3:.2f} in a batch of {most}"),
        ("answers", answers if measured_lengths else "assumed to have the largest length: give --data to measure"),
        ("largest relative error", f"{error:.1e}"),
        *closing_lines(profile, written, spread),
    ]
    return BuildReport(written, chosen.backend, error, model.inputs, profile.stages, tuple(lines))


def _with_drawn(tokens: Tensor, words: int | None, padding: int) -> Tensor:
    """Return the rows alternating with rows of random words, none of them padding: examples may be a single word."""
    if words is None or words < 2:
        return tokens
    drawn = torch.randint(words, tokens.shape, generator=torch.Generator().manual_seed(0))
    drawn = torch.where(drawn == padding, (padding + 1) % words, drawn)
    return torch.stack((tokens, drawn), 1).flatten(0, 1)


@torch.inference_mode()
def sequence_error(program: SequenceProgram, module: nn.Module, tokens: Tensor) -> float:
    """Return the worst relative error of encoder and first steps against the module, over batch sizes.

    Rows are read cut to lengths over the range. The steps, the first ones and one at the last position, follow the
    module's tokens.
    """
    worst, sequence, heavy = 0.0, cast(SequenceModule, module), _is_heavy(module, tokens)
    for batch in sorted({1, 2, program.spec.max_batch}):
        (rows,) = with_batch((tokens,), batch)
        for sizes in tried_sizes(program.spec.dims, LENGTHS):
            if heavy and batch > FEW_ROWS and sizes[LENGTH] > SHORT:
                continue
            cut = rows[:, : sizes[LENGTH]]
            counts = torch.tensor(counted(cut.numpy(), program.marks.padding))
            cut = cut[:, : int(counts.max())]
            found, state = program.encode(cut, counts), sequence.encode(cut.clone(), counts.clone())
            worst = max(worst, relative_error([found[name] for name in state], list(state.values())))
            written = _begun(sequence, program.parts, state, batch)
            last = program.longest_output - 1
            for position in (*range(min(STEPS, last)), last):
                written.first(batch)[POSITION].fill_(position)
                written.to_front(range(batch))  # makes room
                changed, expected = program.step(written.first(batch)), _step(sequence, written, batch)
                worst = max(worst, relative_error([changed[name] for name in expected], list(expected.values())))
                _advance(written, expected, expected.pop(LOGITS).argmax(dim=1))
    return worst


def _is_heavy(module: nn.Module, tokens: Tensor) -> bool:
    """Return whether reading the longest row takes so long that only few rows are tried."""
    row = tokens[:1], torch.tensor([tokens.shape[1]])
    return operations(runner(EncodeModule(module), row), row) > WORK


@torch.inference_mode()
def check_sequence(
    module: nn.Module, exported: SequenceGraphs, tokens: Tensor, words: int | None, *, most: int
) -> None:
    """Raise `ExportError` if other rows, or the padding that they cause, change what is written for a row.

    `tokens` `(N, longest input)` are rows that the module takes; further ones are drawn from `words` words. `most` is
    the largest batch.
    """
    generator = torch.Generator().manual_seed(0)
    sequence, longest, heavy = cast(SequenceModule, module), tokens.shape[1], _is_heavy(module, tokens)
    rows = FEW_ROWS if heavy else ROWS
    seen = sorted(set(tokens.flatten().tolist()))
    known = torch.tensor(seen) if words is None else torch.arange(words)
    known = known[known != sequence.padding]
    drawn = tokens[torch.arange(rows) % len(tokens)]  # else random rows without padding, of words that the module knows
    if len(known):
        drawn = known[torch.randint(len(known), (rows, longest), generator=generator)]
    short = drawn[:, : SHORT if heavy else longest]
    length = torch.randint(1, short.shape[1] + 1, (rows,), generator=generator)
    read = short.masked_fill(torch.arange(short.shape[1]) >= length[:, None], sequence.padding)
    encoder, step = EncodeModule(module), StepModule(module)
    graph = exported.encoder
    specs = at_size(find_limits(graph, exported.weights), own_sizes(graph, (read, length)))
    check_rows(runner(encoder, (read, length)), graph, exported.weights, (read, length), specs=specs, most=most)
    encoded = sequence.encode(read.clone(), length.clone())
    state = {name: part.clone() for name, part in _begun(sequence, exported.parts, encoded, rows).first(rows).items()}

    specs = at_size(find_limits(exported.step, exported.weights), own_sizes(exported.step, tuple(state.values())))
    check_rows(runner(step, state), exported.step, exported.weights, tuple(state.values()), specs=specs, most=most)
    for size in sorted({sizes[LENGTH] for sizes in tried_sizes(exported.encoder.dims, LENGTHS)}):
        _check_padding(sequence, exported, drawn, size)


def _check_padding(sequence: SequenceModule, exported: SequenceGraphs, tokens: Tensor, size: int) -> None:
    """Raise `ExportError` if rows of `size` tokens get other answers when a longer row is beside them."""
    count = len(tokens)
    length = torch.full((count,), size)
    padded = tokens.masked_fill(torch.arange(tokens.shape[1]) >= size, sequence.padding)
    alone, beside = (
        _begun(sequence, exported.parts, sequence.encode(rows.clone(), length.clone()), count)
        for rows in (padded[:, :size], padded)
    )
    for _ in range(min(STEPS, sequence.longest_output - 1)):
        expected, found = (_step(sequence, rows, count) for rows in (alone, beside))
        words = expected.pop(LOGITS).double()
        most = PADDED * float(words.abs().max())
        if not torch.allclose(found.pop(LOGITS).double(), words, rtol=0, atol=most, equal_nan=True):
            raise ExportError(
                f"rows depend on each other: for a row of {size} tokens, other words are likely if it is padded to "
                f"{tokens.shape[1]}, as it is beside a longer row. encode must not count what is after `length`, and "
                "step must not read the state there"
            )
        for rows, changed in ((alone, expected), (beside, found)):
            _advance(rows, changed, words.argmax(dim=1))


def _begun(sequence: SequenceModule, parts: tuple[Part, ...], state: State, count: int) -> StateRows:
    """Return the state of rows that have been read, before the first step."""
    rows = StateRows(parts, count)
    rows.begin(range(count), {**state, TOKEN: torch.full((count,), sequence.start)})
    return rows


def _step(sequence: SequenceModule, rows: StateRows, count: int) -> dict[str, Tensor]:
    """Return what the module's own step returns for the rows; it may write to copies of them."""
    return dict(sequence.step(**{name: part.clone() for name, part in rows.first(count).items()}))


def _advance(rows: StateRows, changed: State, token: Tensor) -> None:
    rows.change(changed)
    state = rows.first(len(token))
    state[TOKEN][:] = token
    state[POSITION].add_(1)
