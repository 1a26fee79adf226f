"""A loaded sequence model, how a worker decodes many requests with it, and what that costs here.

Encoders and a step are callables for one thread: each worker has a twin. Decoding is greedy, each request at its own
position.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.costs import EMPTY_STAGE, Curve, Grid, ModelCosts, at_any_length, in_turn
from latebind.domain.model import ModelSpec, StageKind
from latebind.program.backends import StageFunction, backend_named, twin
from latebind.program.measure import Profile, median_seconds, profiled_batches
from latebind.program.stored import StoredModel
from latebind.sequence.export import LOGITS, SequenceGraphs
from latebind.sequence.padding import lengths
from latebind.sequence.state import POSITION, TOKEN, Part, SpecialTokens, StateRows

KINDS = (StageKind.STATIC, StageKind.DECODER)  # of the two stages: reading, and a decoder step


@dataclass(frozen=True, slots=True)
class Named:
    """A compiled graph and the names of its outputs."""

    call: StageFunction
    outputs: tuple[str, ...]

    def twin(self) -> "Named":
        """Return the same call for another thread, over the same weights."""
        return Named(twin(self.call), self.outputs)

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name; they are valid until the next call."""
        return dict(zip(self.outputs, self.call(*inputs), strict=True))


@dataclass(frozen=True, slots=True)
class SequenceProgram:
    """A sequence model that can run. `encoders` are keyed by the longest input that they take, ascending.

    `step` takes token and position `(B,)` and all `parts` of the state `(B, ...)` in their order, best in batches of
    `sizes`. `costs_fit` is False if the costs were measured on another machine or with other settings.
    """

    spec: ModelSpec
    costs: ModelCosts
    backend: str
    threads: int
    marks: SpecialTokens
    parts: tuple[Part, ...]
    encoders: Mapping[int, Named]
    step: Named
    sizes: tuple[int, ...]
    costs_fit: bool

    def twin(self) -> "SequenceProgram":
        """Return the program for another thread, over the same weights."""
        encoders = {length: encoder.twin() for length, encoder in self.encoders.items()}
        return replace(self, encoders=encoders, step=self.step.twin())

    @property
    def longest_output(self) -> int:
        """The most tokens of an answer, its end included."""
        return self.spec.outputs[0].shape[0]

    def step_size(self, batch: int) -> int:
        """Return the number of rows on which a step is best run for a batch of this size."""
        return next((size for size in self.sizes if size >= batch), batch)

    def encode(self, tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return the state for padded rows `(B, longest input)` int64 with these numbers of tokens `(B,)` int64."""
        longest = int(lengths.max())
        length = next(length for length in self.encoders if length >= longest)
        return self.encoders[length](tokens[:, :length].contiguous(), lengths)


def program_of(
    graphs: SequenceGraphs,
    model: StoredModel,
    profile: Profile | None,
    calls: Sequence[StageFunction],
    *,
    backend: str,
    threads: int,
) -> SequenceProgram:
    """Return the program of compiled graphs: the encoders, then the step. Without a profile it has no costs yet."""
    named = [
        Named(call, tuple(name for name, _ in graph.outputs)) for graph, call in zip(graphs.graphs, calls, strict=True)
    ]
    fits = profile is not None and profile.matches_this_machine(threads=threads, backend=backend)
    return SequenceProgram(
        spec=model.spec(),
        costs=ModelCosts((EMPTY_STAGE, EMPTY_STAGE)) if profile is None else profile.costs(),
        backend=backend,
        threads=threads,
        marks=graphs.marks,
        parts=graphs.parts,
        encoders=dict(zip(graphs.encoders, named, strict=False)),
        step=named[-1],
        sizes=step_sizes(backend, model.max_batch),
        costs_fit=profile is not None and fits and len(profile.stages) == len(KINDS),
    )


def step_sizes(backend: str, max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes to compile a step for: powers of two, and the largest batch.

    A batch between two sizes is run as the larger one: on OpenVINO a step of 24 as 32 takes 5.1 ms, compiled for any
    size 6.2 (Transformer of `examples/translation`).
    """
    return profiled_batches(max_batch) if backend_named(backend).fixed else ()


Tokens = NDArray[Any]  # int64


class Decoding:
    """The requests of one model that one worker decodes, by slot.

    `inputs` `(slots, longest input)` and `answers` `(slots, longest output)` are the rows of the slots. Slots whose
    requests have ended are to be appended to `ended`, from any thread: their rows are free for the next read or step.
    """

    def __init__(self, program: SequenceProgram, inputs: Tokens, answers: Tokens) -> None:
        self._program = program
        self._inputs = inputs
        self._answers = answers
        self._rows = StateRows(program.parts, program.spec.max_batch)
        self._complete: set[int] = set()
        self.ended: deque[int] = deque()

    def read(self, slots: Sequence[int]) -> None:
        """Read the inputs of these slots: the first stage of their requests."""
        places = list(slots)
        tokens = self._inputs[places]
        marks = self._program.marks
        counts = torch.tensor(lengths(tokens, marks.padding))
        state = self._program.encode(torch.from_numpy(tokens), counts)
        state[TOKEN] = torch.full((len(places),), marks.start)
        self._free_ended()
        self._complete.difference_update(places)
        self._rows.begin(places, state)
        self._answers[places] = marks.padding

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
        changed = self._program.step(*state.values())
        tokens = changed.pop(LOGITS).numpy()[:count].argmax(axis=1)  # torch takes 12 microseconds for each row of 8,192
        self._rows.change({name: rows[:count] for name, rows in changed.items()})
        self._write(order, tokens, state[POSITION][:count].numpy())
        state[TOKEN].numpy()[:count] = tokens
        return [slot for slot in order if slot in self._complete]

    def _free_ended(self) -> None:
        while self.ended:
            self._rows.end((self.ended.popleft(),))

    def _write(self, order: list[int], tokens: Tokens, positions: Tokens) -> None:
        """Write the tokens into the answers that are not complete yet, and advance all positions by one."""
        last, end = self._program.longest_output - 1, self._program.marks.end
        for slot, token, position in zip(order, tokens.tolist(), positions.tolist(), strict=True):
            if slot not in self._complete:
                self._answers[slot, position] = token
                if token == end or position == last:
                    self._complete.add(slot)
        np.minimum(positions + 1, last, out=positions)


def answer_all(program: SequenceProgram, inputs: Tokens) -> Tokens:
    """Return the answers `(N, longest output)` to rows `(N, longest input)`, at most a full batch at a time."""
    answers = np.full((len(inputs), program.longest_output), program.marks.padding)
    decoding = Decoding(program, inputs, answers)
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
FLOOR = 1e-6  # seconds: a fitted line may start below zero


@torch.inference_mode()
def measure_sequence(program: SequenceProgram, tokens: NDArray[np.int64]) -> tuple[Grid, Grid]:
    """Return the seconds of reading, by the length of the longest row, and of a step. `tokens` are example rows.

    The batches are those of all profiles, and one more than each size that steps are compiled for, where costs jump.
    """
    most, longest = program.spec.max_batch, program.spec.inputs[0].shape[0]
    jumps = {size + 1 for size in program.sizes if size < most}
    batches = tuple(sorted({*profiled_batches(most), *jumps}))
    lines = [_reading(program, tokens, batch) for batch in batches]
    steps = []
    for batch in batches:
        decoding = _decoding(program, tokens, batch, longest)
        decoding.read(range(batch))
        steps.append(median_seconds(partial(decoding.step, range(batch))))
    first = Curve(batches, tuple(max(FLOOR, base) for base, _ in lines))
    more = Curve(batches, tuple(max(0.0, slope) for _, slope in lines))
    (step,) = at_any_length(Curve(batches, tuple(steps)))
    return Grid((1, 2), (first, in_turn([first, more]))), step


def profile_sequence(program: SequenceProgram) -> SequenceProgram:
    """Return the program with costs measured on this machine; lengths of answers stay as they were."""
    rows = np.zeros((1, program.spec.inputs[0].shape[0]), np.int64)
    rows[:] = program.marks.start
    costs = replace(program.costs, stages=measure_sequence(program, rows))
    return replace(program, costs=costs, costs_fit=True)


@torch.inference_mode()
def warm_up(program: SequenceProgram, largest: int) -> None:
    """Run each batch size up to `largest` once: a backend may spend tens of milliseconds preparing for a new one.

    This covers all steps, and reading for the sizes of groups that catch up with others.
    """
    rows = np.full((1, program.spec.inputs[0].shape[0]), program.marks.start)
    for batch in range(1, min(largest, program.spec.max_batch) + 1):
        for length in program.encoders if batch <= FEW else [min(program.encoders)]:
            decoding = _decoding(program, rows, batch, length)
            decoding.read(range(batch))
        decoding.step(range(batch))


def _decoding(program: SequenceProgram, tokens: NDArray[np.int64], batch: int, length: int) -> Decoding:
    """Return a decoding whose slots hold `batch` rows of exactly `length` tokens, none of them padding."""
    rows = tokens[np.arange(batch) % len(tokens)].copy()
    rows[rows == program.marks.padding] = program.marks.end
    rows[:, length:] = program.marks.padding
    return Decoding(program, rows, np.zeros((batch, program.longest_output), np.int64))


def _reading(program: SequenceProgram, tokens: NDArray[np.int64], batch: int) -> tuple[float, float]:
    """Fit a line through the reading times of all encoders; return its value at one token, and its slope."""
    lengths, seconds = list(program.encoders), []
    for length in lengths:
        decoding = _decoding(program, tokens, batch, length)
        seconds.append(median_seconds(partial(decoding.read, range(batch))))
    # An encoder serves all lengths above that of the next shorter one: their mean is its place on the line.
    middles = [(length + before + 1) / 2 for before, length in zip([0, *lengths], lengths, strict=False)]
    if len(lengths) == 1:
        return seconds[0], 0.0
    slope, base = np.polyfit(middles, seconds, 1)
    return float(base + slope), float(slope)
