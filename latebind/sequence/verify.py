"""Compares what a backend computes with what the module computes: encoder and steps, for several batch sizes."""

from typing import cast

import torch
from torch import Tensor, nn

from latebind.program.measure import with_batch
from latebind.program.verify import relative_error
from latebind.sequence.export import LOGITS, SequenceModule
from latebind.sequence.padding import lengths
from latebind.sequence.program import SequenceProgram
from latebind.sequence.state import POSITION, TOKEN, StateRows

STEPS = 3


@torch.inference_mode()
def sequence_error(program: SequenceProgram, module: nn.Module, tokens: Tensor) -> float:
    """Return the worst relative error of encoders and the first steps against the module, over batch sizes.

    Each encoder reads rows cut to its length. The steps follow the module's tokens.
    """
    worst = 0.0
    for batch in sorted({1, 2, program.spec.max_batch}):
        (rows,) = with_batch((tokens,), batch)
        for length in program.encoders:
            cut = rows.clone()
            cut[:, length:] = program.marks.padding
            worst = max(worst, _error(program, cast(SequenceModule, module), cut))
    return worst


def _error(program: SequenceProgram, module: SequenceModule, tokens: Tensor) -> float:
    counts = torch.tensor(lengths(tokens.numpy(), program.marks.padding))
    size = next(size for size in program.encoders if size >= int(counts.max()))
    wanted, found = module.encode(tokens[:, :size].clone(), counts.clone()), program.encode(tokens, counts)
    worst = relative_error([found[name] for name in wanted], list(wanted.values()))
    rows = StateRows(program.parts, len(tokens))
    owners = range(len(tokens))
    rows.begin(owners, {**wanted, TOKEN: torch.full((len(tokens),), program.marks.start)})
    for _ in range(min(STEPS, program.longest_output - 1)):
        state = rows.first(len(tokens))
        expected = module.step(**{name: part.clone() for name, part in state.items()})  # it may write to them
        changed = program.step(*state.values())
        worst = max(worst, relative_error([changed[name] for name in expected], list(expected.values())))
        token = expected.pop(LOGITS).argmax(dim=1)
        rows.change(expected)
        state[TOKEN][:] = token
        state[POSITION].add_(1)
    return worst
