"""Before any training: which boundaries are candidates for a lookup, and how large a network each can afford."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from latebind.learned.lookup import lookup_backend
from latebind.learned.networks import DEEP, KINDS, LIGHT, PLAIN, LookupNetwork, Predictor, Selector
from latebind.program.load import compile_module
from latebind.program.measure import median_seconds
from latebind.program.program import Program

# What a lookup may take of the time that a hit saves; whether the smallest pays is left to composition.
AFFORDABLE = {DEEP: 0.2, LIGHT: 0.2, PLAIN: 0.5}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lookup of this kind behind this stage; `seconds` is the latency of its network, still untrained."""

    stage: int
    kind: str
    seconds: float


def plan(program: Program, stages: Sequence[float], activations: Mapping[int, Tensor], most: int) -> list[Candidate]:
    """Return at most `most` candidates, spread evenly over the network's time.

    `stages` are seconds of each stage at batch 1, `activations` one row `(1, ...)` behind each stage but the last.
    Early boundaries afford deeper networks: what a hit saves is longer there. The last boundaries may afford none.
    """
    found = []
    for stage in spread(stages, most):
        if activations[stage].dtype != torch.float32:
            continue  # whole numbers, such as words: nothing was computed yet
        best = _largest_affordable(program, stage, activations[stage], sum(stages[stage + 1 :]))
        if best is not None:
            found.append(best)
    return found


def spread(stages: Sequence[float], most: int) -> list[int]:
    """Return up to `most` of the boundaries behind each stage but the last, evenly over the time, the first early.

    An early exit with a deep predictor gains most: half of CIFAR-10 leaves ResNet-56 after a sixth of the time.
    """
    ends = [sum(stages[: stage + 1]) for stage in range(len(stages) - 1)]
    if len(ends) <= most:
        return list(range(len(ends)))
    aims = [sum(stages) * (place + 0.5) / (most + 0.5) for place in range(most)]
    chosen: set[int] = set()
    for aim in aims:
        free = [stage for stage in range(len(ends)) if stage not in chosen]
        chosen.add(min(free, key=lambda stage: abs(ends[stage] - aim)))
    return sorted(chosen)


def _largest_affordable(program: Program, stage: int, activation: Tensor, saved: float) -> Candidate | None:
    """Try the kinds from the smallest up and stop at the first that takes too long: each trial costs a second."""
    best = None
    for kind in reversed(KINDS):
        seconds = _seconds(program, activation, kind)
        if seconds > AFFORDABLE[kind] * saved:
            break
        best = Candidate(stage, kind, seconds)
        if seconds > AFFORDABLE[DEEP] * saved:
            break
    return best


def _seconds(program: Program, activation: Tensor, kind: str) -> float:
    classes = program.spec.outputs[0].shape[0]
    network = LookupNetwork(Predictor(tuple(activation.shape[1:]), classes, kind=kind), Selector(classes))
    function = compile_module(
        network.eval(), activation, backend=lookup_backend(program.backend), threads=program.threads
    )
    return median_seconds(lambda: function(activation))
