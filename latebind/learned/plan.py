"""Chooses candidates before any training: which boundaries get a lookup, and how large a network each can afford."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from latebind.learned.compiled import compile_lookup
from latebind.learned.metadata import lookup_name
from latebind.learned.networks import DEEP, LIGHT, POOLED, RESIDUAL, Selector, kinds_for, make_predictor
from latebind.program.measure import median_seconds
from latebind.program.program import Program

# The most that a lookup may take, as a share of the time that a hit saves, to be a candidate.
AFFORDABLE = {RESIDUAL: 0.2, DEEP: 0.2, LIGHT: 0.2}
USUALLY_AFFORDABLE = 0.5  # for other kinds
HOPELESS = 10.0  # times too slow when run eagerly: up to eight were seen between eager and eight-bit OpenVINO
HOPELESS_EAGER = 2.5  # for the eager backend, where only folding batch norms into convolutions gains anything


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lookup of this kind after this stage; `seconds` is the latency of its network, still untrained."""

    stage: int
    kind: str
    seconds: float

    @property
    def name(self) -> str:
        """The name of the lookup among those of its model."""
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

    `stages` are the seconds of each stage at batch 1, `activations` what is read of one row after each stage but the
    last, `(1, ...)`. A boundary gets the most able network that it affords, or all of `kinds` that take less than a hit
    saves, since slower ones can never pay. A hit saves more at early boundaries, so they afford deeper networks; the
    last may afford none.

    The first boundary also gets a fast network. It knows little, but heads that follow the traffic (`adaptation`) gain
    much from it if successive pictures are alike.
    """
    found: list[Candidate] = []
    for stage in spread(stages, most or len(stages)):
        activation = activations[stage]
        if activation.dtype != torch.float32:
            continue  # integers, such as tokens: nothing was computed yet
        shape = tuple(activation.shape[1:])
        saved = sum(stages[stage + 1 :])
        limits = {
            kind: saved * (1.0 if kinds else AFFORDABLE.get(kind, USUALLY_AFFORDABLE))
            for kind in kinds_for(shape, kinds, sized=bool(program.spec.dims))
        }
        affordable = _affordable(program, stage, activation, limits)
        some = list(affordable if kinds else islice(affordable, 1))
        if some and not (found or kinds) and len(shape) == 3 and POOLED in limits and some[0].kind != POOLED:
            some += _affordable(program, stage, activation, {POOLED: saved})
        found += some
    return found


def spread(stages: Sequence[float], most: int) -> list[int]:
    """Return up to `most` boundaries after stages, spread evenly over the network's time, always with the first.

    An exit at the first saves most; if the first stage is empty, it is before the network.
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
    """Yield the candidates whose networks take at most the seconds of `limits`, in that order of kinds.

    Compiling takes a second, so a network that is far too slow when run eagerly is not compiled.
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
