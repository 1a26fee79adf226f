"""Greedy decoding for many requests at once, each at its own position: what a worker does for a sequence model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.sequence.export import LOGITS
from latebind.sequence.padding import lengths
from latebind.sequence.program import SequenceProgram
from latebind.sequence.state import POSITION, TOKEN, Rows

Tokens = NDArray[Any]  # int64


class Decoding:
    """The requests of one model that one worker answers, by slot.

    `inputs` `(slots, longest input)` and `answers` `(slots, longest output)` are the rows that slots have. `wide` is
    the same program for one request with more cores, where there is one.
    """

    def __init__(
        self, program: SequenceProgram, inputs: Tokens, answers: Tokens, *, wide: SequenceProgram | None = None
    ) -> None:
        self._program = program
        self._wide = wide or program
        self._inputs = inputs
        self._answers = answers
        self._rows = Rows(program.parts, program.spec.max_batch)
        self._complete: set[int] = set()

    def read(self, slots: Sequence[int], *, wide: bool = False) -> None:
        """Read the inputs of these slots: the first stage of their requests."""
        places = list(slots)
        tokens = self._inputs[places]
        marks = self._program.marks
        counts = torch.tensor(lengths(tokens, marks.padding))
        state = (self._wide if wide else self._program).encode(torch.from_numpy(tokens), counts)
        state[TOKEN] = torch.full((len(places),), marks.start)
        self._complete.difference_update(places)
        self._rows.begin(places, state)
        self._answers[places] = marks.padding

    def step(self, slots: Sequence[int], *, wide: bool = False) -> list[int]:
        """Write the next token of each of these slots; return those whose answer is complete, now or before.

        Who is complete gives its row to others once a step comes without it. It may come again all the same, if its
        batch was preempted and nobody leaves it: then it takes part with a row of zeros, and its answer stays.
        """
        self._rows.end(self._complete.intersection(self._rows.owners).difference(slots))
        back = [slot for slot in slots if slot not in self._rows.owners]
        if back:
            self._rows.begin(back, {})
        order = self._rows.together(slots)
        count = len(order)
        state = self._rows.first(self._program.step_size(count))  # rows behind the last are anybody's or nobody's
        changed = (self._wide if wide else self._program).step(*state.values())
        tokens = changed.pop(LOGITS).numpy()[:count].argmax(axis=1)  # torch takes 12 microseconds for each row of 8,192
        self._rows.change({name: rows[:count] for name, rows in changed.items()})
        self._write(order, tokens, state[POSITION][:count].numpy())
        state[TOKEN].numpy()[:count] = tokens
        return [slot for slot in order if slot in self._complete]

    def _write(self, order: list[int], tokens: Tokens, positions: Tokens) -> None:
        """Put the tokens into the answers that are not complete yet, and go on by one position."""
        last, end = self._program.longest_output - 1, self._program.marks.end
        for slot, token, position in zip(order, tokens.tolist(), positions.tolist(), strict=True):
            if slot not in self._complete:
                self._answers[slot, position] = token
                if token == end or position == last:
                    self._complete.add(slot)
        np.minimum(positions + 1, last, out=positions)


def answer_all(program: SequenceProgram, inputs: Tokens) -> Tokens:
    """Return the answers `(N, longest output)` to rows `(N, longest input)`, as many at a time as a batch has."""
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
