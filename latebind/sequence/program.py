"""A loaded sequence model, how a worker decodes many requests with it, and the measured costs.

It is a chain of two stages, the encoder and a step, which is repeated. Decoding is greedy, each request at its own
position.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.costs import EMPTY_STAGE, Curve, Grid, ModelCosts, at_any_length
from latebind.domain.model import LENGTH, StageKind
from latebind.program.backends import StageFunction, backend_named
from latebind.program.graph import Graph
from latebind.program.measure import median_seconds, profile_stages
from latebind.program.metadata import Profile, StoredModel, profiled_batches, profiled_sizes
from latebind.program.program import Program
from latebind.sequence.export import LOGITS, SequenceGraphs
from latebind.sequence.greedy import NO_RULES, Greedy, Rules
from latebind.sequence.state import POSITION, TOKEN, Part, SpecialTokens, State, StateRows

KINDS = (StageKind.STATIC, StageKind.DECODER)  # of the two stages: reading, and a decoder step

Tokens = NDArray[Any]  # int64


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceProgram(Program):
    """A sequence model that can run: `stages` are its encoder and its step.

    The encoder takes tokens `(B, L)` and how many of them count `(B,)`. The step takes token and position `(B,)` and
    all `parts` of the state `(B, ...)` in order, best in batches of `sizes`.
    """

    marks: SpecialTokens
    parts: tuple[Part, ...]
    sizes: tuple[int, ...]
    rules: Rules = NO_RULES

    @property
    def longest_output(self) -> int:
        """The most tokens of an answer, its end included."""
        return self.spec.outputs[0].shape[0]

    def step_size(self, batch: int) -> int:
        """Return the number of rows on which a step is best run for a batch of this size."""
        return next((size for size in self.sizes if size >= batch), batch)

    def encode(self, tokens: Tensor, counts: Tensor) -> dict[str, Tensor]:
        """Return the state for rows `(B, L)` int64, of which the first `counts` `(B,)` int64 tokens count."""
        return self._by_name(0, tokens[:, : int(counts.max())], counts)

    def step(self, state: State) -> dict[str, Tensor]:
        """Return the logits and the changed parts of the state, valid until the next call."""
        return self._by_name(1, *state.values())

    def _by_name(self, stage: int, *inputs: Tensor) -> dict[str, Tensor]:
        names = [name for name, _ in self.graphs[stage].outputs]
        return dict(zip(names, self.stages[stage](*inputs), strict=True))


def program_of(
    graphs: SequenceGraphs,
    model: StoredModel,
    profile: Profile | None,
    stages: tuple[StageFunction, StageFunction],
    *,
    backend: str,
    threads: int,
) -> SequenceProgram:
    """Return the program of compiled graphs. Without a profile it has no costs yet."""
    fits = profile is not None and profile.matches_this_machine(threads=threads, backend=backend)
    return SequenceProgram(
        spec=model.spec(),
        costs=ModelCosts((EMPTY_STAGE, EMPTY_STAGE)) if profile is None else profile.costs(),
        backend=backend,
        threads=threads,
        stages=stages,
        graphs=(graphs.encoder, graphs.step),
        costs_fit=profile is not None and fits and len(profile.stages) == len(KINDS),
        marks=graphs.marks,
        parts=graphs.parts,
        sizes=step_sizes(graphs.step, backend, model.max_batch),
        rules=graphs.rules,
    )


def step_sizes(step: Graph, backend: str, max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes to compile a step for: powers of two, and the largest batch.

    A batch between two sizes is run as the larger one: on OpenVINO a step of 24 as 32 takes 5.1 ms, compiled for any
    size 6.2 (Transformer of `examples/translation`). A step whose state grows is compiled for any batch: its state has
    other sizes too, and a copy of the weights for each would be more than the step reads.
    """
    return profiled_batches(max_batch) if backend_named(backend).fixed and not step.dims else ()


def counted(rows: Tokens, padding: int) -> list[int]:
    """Return the number of tokens of each row `(N, L)` up to its padding, at least 1."""
    counts = rows != padding
    found: list[int] = np.where(counts.any(axis=1), rows.shape[1] - counts[:, ::-1].argmax(axis=1), 1).tolist()
    return found


class Decoding:
    """The requests of one model that one worker decodes, by slot.

    `tokens` returns the rows of some slots, `(B, L)`, padded to the longest; `answer` returns the place for the answer
    of a slot, `(longest output,)`. Slots whose requests have ended must be appended to `ended`, from any thread: their
    rows are free for the next read or step.
    """

    def __init__(
        self,
        program: SequenceProgram,
        tokens: Callable[[Sequence[int]], Tokens],
        answer: Callable[[int], Tokens],
    ) -> None:
        self._program = program
        self._tokens = tokens
        self._answer = answer
        self._answers: dict[int, Tokens] = {}
        self._rows = StateRows(program.parts, program.spec.max_batch)
        self._greedy = Greedy(program.rules, program.marks, program.longest_output)
        self._complete: set[int] = set()
        self.ended: deque[int] = deque()

    def read(self, slots: Sequence[int]) -> None:
        """Read the inputs of these slots: the first stage of their requests."""
        places, marks = list(slots), self._program.marks
        tokens = self._tokens(places)
        counts = counted(tokens, marks.padding)
        state = self._program.encode(torch.from_numpy(tokens), torch.tensor(counts))
        state[TOKEN] = torch.full((len(places),), marks.start)
        self._free_ended()
        self._complete.difference_update(places)
        self._rows.begin(places, state, counts)
        for slot in places:
            self._answers[slot] = answer = self._answer(slot)
            answer[:] = marks.padding

    def step(self, slots: Sequence[int]) -> list[int]:
        """Write the next token of each of these slots; return those whose answer is complete, now or before.

        A complete request gives up its state row at the first step without it. It may still come again, if its batch
        was preempted and keeps its members: then it takes part with a row of zeros, and its answer stays unchanged.
        """
        self._free_ended()
        self._rows.end(self._complete.intersection(self._rows.owners).difference(slots))
        back = [slot for slot in slots if slot not in self._rows.owners]
        if back:
            self._rows.begin(back, {})
        order = self._rows.to_front(slots)
        count = len(order)
        state = self._rows.first(self._program.step_size(count))  # rows past `count` are ignored
        changed = self._program.step(state)
        positions, answers = state[POSITION][:count].numpy(), self._answers
        logits = changed.pop(LOGITS).numpy()[:count]
        tokens = self._greedy.take(logits, positions, lambda row: answers[order[row]])
        self._rows.change({name: rows[:count] for name, rows in changed.items()})
        self._write(order, tokens, positions)
        state[TOKEN].numpy()[:count] = tokens
        return [slot for slot in order if slot in self._complete]

    def _free_ended(self) -> None:
        while self.ended:
            self._rows.end((self.ended.popleft(),))

    def _write(self, order: list[int], tokens: Tokens, positions: Tokens) -> None:
        """Write the tokens into the answers that are not complete yet, and advance all positions by one."""
        last, ends = self._program.longest_output - 1, self._greedy.ends
        for slot, token, position in zip(order, tokens.tolist(), positions.tolist(), strict=True):
            if slot not in self._complete:
                self._answers[slot][position] = token
                if token in ends or position == last:
                    self._complete.add(slot)
        np.minimum(positions + 1, last, out=positions)


def answer_all(program: SequenceProgram, inputs: Tokens) -> Tokens:
    """Return the answers `(N, longest output)` to rows `(N, longest input)`, at most a full batch at a time."""
    answers = np.full((len(inputs), program.longest_output), program.marks.padding)
    decoding = Decoding(program, inputs.__getitem__, answers.__getitem__)
    waiting, running = list(range(len(inputs))), list[int]()
    with torch.inference_mode():
        while waiting or running:
            free = program.spec.max_batch - len(running)
            if free >= min(program.spec.max_batch // 2 + 1, len(waiting)) and waiting:
                newcomers, waiting = waiting[:free], waiting[free:]
                decoding.read(newcomers)
                running += newcomers
            ended = set(decoding.step(running))
            running = [slot for slot in running if slot not in ended]
    return answers


FEW = 8  # the most requests that read at the same time


class _Timed:
    """Decodes rows that are passed to it, none of whose tokens is padding."""

    def __init__(self, program: SequenceProgram) -> None:
        answers = np.zeros((program.spec.max_batch, program.longest_output), np.int64)
        self._given = answers
        self.decoding = Decoding(program, lambda slots: self._given[slots], answers.__getitem__)

    def read(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Read rows `(B, L)`."""
        self._given = tokens.numpy()
        self.decoding.read(range(len(tokens)))
        return ()

    def step(self) -> tuple[Tensor, ...]:
        """Write one more token after what was read."""
        self.decoding.step(range(len(self._given)))
        return ()


def timed_batch(program: SequenceProgram, tokens: Tensor, steps: int) -> Callable[[], None]:
    """Return a call that reads a batch of rows `(B, L)` and writes their first tokens, in `steps` steps.

    No answer ends before that, so every backend does the same.
    """
    timed = _Timed(program)

    @torch.inference_mode()
    def call() -> None:
        timed.read(tokens)
        for _ in range(min(steps, program.longest_output)):
            timed.step()

    return call


@torch.inference_mode()
def measure_sequence(program: SequenceProgram, tokens: Tokens) -> tuple[Grid, Grid]:
    """Return the seconds of reading, by the length of the longest row, and of a step. `tokens` are example rows.

    The batches are those of all profiles, and one row more than each size that steps are compiled for, where costs
    jump. If the state grows, steps are measured by that length too.
    """
    timed, spec, most = _Timed(program), program.spec, program.spec.max_batch
    rows = torch.from_numpy(np.where(tokens == program.marks.padding, _word(program), tokens))
    grows = bool(program.graphs[1].dims)
    stages: list[StageFunction] = [timed.read, timed.step] if grows else [timed.read]
    reading, *others = profile_stages(stages, (rows,), profiled_batches(most), specs=spec.inputs, dims=spec.dims)
    if others:
        return reading, others[0]
    batches = tuple(sorted({*profiled_batches(most), *(size + 1 for size in program.sizes if size < most)}))
    steps = []
    for batch in batches:
        timed.read(rows[torch.arange(batch) % len(rows)])
        steps.append(median_seconds(timed.step))
    (step,) = at_any_length(Curve(batches, tuple(steps)))
    return reading, step


def profile_sequence(program: SequenceProgram) -> SequenceProgram:
    """Return the program with costs measured on this machine; the lengths of answers stay."""
    rows = np.full((1, *program.spec.inputs[0].shape), _word(program))
    costs = replace(program.costs, stages=measure_sequence(program, rows))
    return replace(program, costs=costs, costs_fit=True)


@torch.inference_mode()
def warm_up(program: SequenceProgram, largest: int) -> None:
    """Run each batch size up to `largest` once: a backend may spend tens of milliseconds preparing for a new one.

    This covers all steps, and reading for the sizes of groups that catch up with others, at lengths over the range.
    """
    timed, lengths = _Timed(program), [sizes[LENGTH] for sizes in profiled_sizes(program.spec.dims)]
    for batch in range(1, min(largest, program.spec.max_batch) + 1):
        for length in lengths if batch <= FEW else lengths[:1]:
            timed.read(torch.full((batch, length), _word(program)))
        timed.step()


def _word(program: SequenceProgram) -> int:
    """Return a token that every model has, and that is not padding."""
    marks = program.marks
    return marks.end if marks.start == marks.padding else marks.start
