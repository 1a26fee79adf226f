"""Refuses a sequence module whose rows depend on each other, or on how far rows beside them are padded."""

from typing import cast

import torch
from torch import Tensor, nn

from latebind.domain.errors import ExportError
from latebind.program.export import run_module
from latebind.program.rows import check_rows
from latebind.sequence.export import LOGITS, EncodeModule, ExportedSequence, SequenceModule, StepModule
from latebind.sequence.state import POSITION, TOKEN, StateRows

ROWS = 8  # of each length
STEPS = 3
PADDED = 1e-3  # of the largest number: what rounding over other lengths never makes


@torch.inference_mode()
def check_sequence(module: nn.Module, exported: ExportedSequence, tokens: Tensor, *, most: int) -> None:
    """Raise `ExportError` if other rows, or their lengths, change what is written for a row.

    `tokens` `(N, longest input)` are rows that the module takes; further ones are drawn. `most` is the largest batch.
    """
    generator = torch.Generator().manual_seed(0)
    padding = cast(SequenceModule, module).padding
    drawn = _drawn(tokens, exported.words, padding, generator)
    longest = tokens.shape[1]
    length = torch.randint(1, longest + 1, (ROWS,), generator=generator)
    read = drawn.masked_fill(torch.arange(longest) >= length[:, None], padding)
    encoder, step = EncodeModule(module), StepModule(module)
    graph = exported.encoders[longest]
    check_rows(lambda rows: run_module(encoder, rows), graph, exported.weights, (read, length), most=most)
    state = _begun(module, exported, read, length).first(ROWS)
    names = list(state)
    given = tuple(tensor.clone() for tensor in state.values())
    check_rows(
        lambda rows: run_module(step, dict(zip(names, rows, strict=True))),
        exported.step,
        exported.weights,
        given,
        most=most,
    )
    for size in exported.encoders:
        _check_padding(module, exported, drawn, size, padding)


def _check_padding(module: nn.Module, exported: ExportedSequence, tokens: Tensor, size: int, padding: int) -> None:
    """Raise `ExportError` if rows of `size` tokens are written other answers where a longer row is beside them."""
    length = torch.full((len(tokens),), size)
    padded = tokens.masked_fill(torch.arange(tokens.shape[1]) >= size, padding)
    alone, beside = (_begun(module, exported, rows, length) for rows in (padded[:, :size], padded))
    for _ in range(min(STEPS, cast(SequenceModule, module).longest_output - 1)):
        expected, found = (_step(module, rows) for rows in (alone, beside))
        words = expected.pop(LOGITS).double()
        most = PADDED * float(words.abs().max())
        if not torch.allclose(found.pop(LOGITS).double(), words, rtol=0, atol=most, equal_nan=True):
            raise ExportError(
                f"rows depend on each other: for a row of {size} tokens, other words are likely where it is padded to "
                f"{tokens.shape[1]}, as it is beside a longer row. encode must not count what is behind `length`, and "
                "step must not read the state there"
            )
        for rows, changed in ((alone, expected), (beside, found)):
            rows.change(changed)
            state = rows.first(len(tokens))
            state[TOKEN][:] = words.argmax(dim=1)
            state[POSITION].add_(1)


def _begun(module: nn.Module, exported: ExportedSequence, tokens: Tensor, length: Tensor) -> StateRows:
    """Return the state of rows that have been read, before the first step."""
    sequence = cast(SequenceModule, module)
    rows = StateRows(exported.parts, len(tokens))
    state = sequence.encode(tokens.clone(), length.clone())
    rows.begin(range(len(tokens)), {**state, TOKEN: torch.full((len(tokens),), sequence.start)})
    return rows


def _step(module: nn.Module, rows: StateRows) -> dict[str, Tensor]:
    state = {name: part.clone() for name, part in rows.first(ROWS).items()}
    return dict(cast(SequenceModule, module).step(**state))


def _drawn(tokens: Tensor, words: int | None, padding: int, generator: torch.Generator) -> Tensor:
    """Return random rows without padding, of words that the module knows."""
    known = torch.tensor(sorted(set(tokens.flatten().tolist()))) if words is None else torch.arange(words)
    known = known[known != padding]
    if not len(known):
        return tokens[torch.arange(ROWS) % len(tokens)]
    return known[torch.randint(len(known), (ROWS, tokens.shape[1]), generator=generator)]
