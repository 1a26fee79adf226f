"""Before any training: which boundaries are candidates for a lookup, and how large a network each can afford."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from latebind.learned.networks import KINDS, LookupNetwork, Predictor, Selector
from latebind.program.load import compile_module
from latebind.program.measure import median_seconds
from latebind.program.program import Program

AFFORDABLE = 0.125  # a lookup may take this share of the time that a hit saves


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
        left = sum(stages[stage + 1 :])
        for kind in KINDS:
            seconds = _seconds(program, activations[stage], kind)
            if seconds <= AFFORDABLE * left:
                found.append(Candidate(stage, kind, seconds))
                break
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


def _seconds(program: Program, activation: Tensor, kind: str) -> float:
    classes = program.spec.outputs[0].shape[0]
    network = LookupNetwork(Predictor(tuple(activation.shape[1:]), classes, kind=kind), Selector(classes))
    function = compile_module(network.eval(), activation, backend=program.backend, threads=program.threads)
    return median_seconds(lambda: function(activation))
