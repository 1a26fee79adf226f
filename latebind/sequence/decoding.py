"""Greedy decoding of many requests at once, each at its own position: how a worker runs a sequence model."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.sequence.export import LOGITS
from latebind.sequence.padding import lengths
from latebind.sequence.program import SequenceProgram
from latebind.sequence.state import POSITION, TOKEN, StateRows

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
