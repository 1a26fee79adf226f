"""Before any training: which boundaries are candidates for a lookup, and how large a network each can afford."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from latebind.learned.compiled import compile_lookup
from latebind.learned.head import Selector
from latebind.learned.networks import DEEP, LIGHT, POOLED, RESIDUAL, SLIM, kinds_for, make_predictor
from latebind.learned.promise import USUAL_TAIL
from latebind.learned.stored import lookup_name
from latebind.program.measure import median_seconds
from latebind.program.program import Program

# What a lookup may take of the time that a hit saves if one is to be chosen before training.
AFFORDABLE = {RESIDUAL: 0.2, DEEP: 0.2, LIGHT: 0.2}
USUALLY_AFFORDABLE = 0.5
HOPELESS = 10.0  # times: eight were seen between eager and eight-bit OpenVINO
HOPELESS_EAGER = 2.5  # where nothing is compiled: batch norms become part of convolutions


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lookup of this kind behind this stage; `seconds` is the latency of its network, still untrained."""

    stage: int
    kind: str
    seconds: float

    @property
    def name(self) -> str:
        """What the lookup is called among those of its model."""
        return lookup_name(self.stage, self.kind)


def plan(
    program: Program,
    stages: Sequence[float],
    activations: Mapping[int, Tensor],
    *,
    most: int,
    kinds: Sequence[str] = (),
) -> list[Candidate]:
    """Return candidates at up to `most` boundaries (0: all), spread evenly over the network's time.

    `stages` are seconds of each stage at batch 1, `activations` one row `(1, ...)` behind each stage but the last.
    At each boundary that is the most able network that its time affords, or all of `kinds` that take less than what a
    hit saves, for the others can never pay. Early boundaries afford deeper networks: what a hit saves is longer there.
    The last may afford none. At the first of all boundaries there is a quick one besides: it knows little, but heads
    that follow the traffic (`adaptation`) make much of it where one picture is like the last. So is a slim one there,
    if it keeps the usual tail and the able one does not.
    """
    found: list[Candidate] = []
    for stage in spread(stages, most or len(stages)):
        activation = activations[stage]
        if activation.dtype != torch.float32:
            continue  # whole numbers, such as words: nothing was computed yet
        shape = tuple(activation.shape[1:])
        saved = sum(stages[stage + 1 :])
        limits = {
            kind: saved * (1.0 if kinds else AFFORDABLE.get(kind, USUALLY_AFFORDABLE))
            for kind in kinds_for(shape, kinds)
        }
        affordable = _affordable(program, stage, activation, limits)
        if kinds:
            found += affordable
            continue
        taken = list(islice(affordable, 1))
        if not found and taken and taken[0].kind != POOLED and len(shape) == 3:
            if POOLED in limits:
                taken += _affordable(program, stage, activation, {POOLED: saved})
            usual = (USUAL_TAIL - 1.0) * sum(stages)
            if taken[0].kind == RESIDUAL and taken[0].seconds > usual:
                taken += _affordable(program, stage, activation, {SLIM: usual})
        found += taken
    return found


def spread(stages: Sequence[float], most: int) -> list[int]:
    """Return up to `most` of the boundaries behind each stage but the last, evenly over the time, the first of all too.

    The earliest exit saves most; where the first stage is empty, it stands before the network.
    """
    ends = [sum(stages[: stage + 1]) for stage in range(len(stages) - 1)]
    if len(ends) <= most:
        return list(range(len(ends)))
    chosen: set[int] = set()
    for place in range(most):
        aim = sum(stages) * place / most
        free = [stage for stage in range(len(ends)) if stage not in chosen]
        chosen.add(min(free, key=lambda stage: abs(ends[stage] - aim)))
    return sorted(chosen)


def _affordable(program: Program, stage: int, activation: Tensor, limits: Mapping[str, float]) -> Iterator[Candidate]:
    """Yield the kinds that take at most the seconds of `limits`, in that order.

    Compiling takes a second, so what is far too slow when run eagerly is not compiled.
    """
    hopeless = HOPELESS_EAGER if program.backend == "eager" else HOPELESS
    classes = program.spec.outputs[0].shape[0]
    for kind, most in limits.items():
        predictor = make_predictor(tuple(activation.shape[1:]), classes, kind).eval()
        with torch.inference_mode():
            eager = median_seconds(partial(predictor, activation))
        if eager > hopeless * most:
            continue
        seconds = compile_lookup(predictor, Selector(classes), activation, program).seconds
        if seconds <= most:
            yield Candidate(stage, kind, seconds)
