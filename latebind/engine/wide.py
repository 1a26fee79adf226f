"""A lone request on the cores of all workers: the same model compiled once more, for one row, where that pays.

Decision 38. Only where several workers run at a time does anybody lend cores, and only a backend whose operators
divide gains from them. What is measured here is where serving begins: it goes on learning (`batching/lone.py`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from latebind.domain.config import EngineConfig
from latebind.engine.worker import LoadedModel
from latebind.program.backends import backend_named
from latebind.program.device import HOST
from latebind.program.load import load_program
from latebind.program.measure import made_up_inputs, run_chain, time_call
from latebind.program.program import Program
from latebind.sequence.decoding import Decoding
from latebind.sequence.measure import typical_decoding, warm_up
from latebind.sequence.program import SequenceProgram
from latebind.sequence.stored import load_sequence

LEAST = 1e-3  # seconds that a request takes alone: of less there is nothing to divide
PAYS = 0.9  # of that at most, with all cores: it takes memory for one more copy of the weights
RUNS = 17  # of each, in turn
PAUSE = 0.005  # seconds before each
DISTURBED = 1.15  # times the quickest run takes the median one where others use the cores as well
STEPS = 4  # of a decoder in a run

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Share:
    """What all cores take, as a share of what a worker's own take; `is_sure` where nobody else used them meanwhile."""

    value: float
    is_sure: bool


def widen(model: LoadedModel, config: EngineConfig, *, workers: int) -> LoadedModel:
    """Return the model with a way to run one request on the cores of so many workers, where that is quicker."""
    program, costs = model.program, model.costs
    if workers < 2 or not config.wide or config.device != HOST.type or not backend_named(program.backend).divides:
        return model
    alone = [costs.stages[i].at(1) for i in range(len(costs.stages))]
    if sum(alone) < LEAST:
        return model
    threads = workers * config.threads
    if isinstance(program, SequenceProgram):
        sequence = load_sequence(model.directory, threads=threads, backend=program.backend, lone=True)
        warm_up(sequence, 1)
        return kept(model, sequence, alone, _shares_of_sequences(program, sequence))
    wide = load_program(model.directory, threads=threads, backend=program.backend, lone=True)
    if not program.entry:
        wide = wide.without_entry()
    return kept(model, wide, alone, _shares(program, wide))


def kept(
    model: LoadedModel, wide: Program | SequenceProgram, alone: Sequence[float], shares: Sequence[Share]
) -> LoadedModel:
    """Return the model with `wide` where its stages, which take `alone` seconds, take such shares of that with it.

    Where somebody else used the cores when that was measured, serving is to show it.
    """
    taken = sum([share.value * seconds for share, seconds in zip(shares, alone, strict=True)])
    if taken > PAYS * sum(alone) and all(share.is_sure for share in shares):
        return model
    return replace(model, wide=wide, costs=replace(model.costs, wide=tuple([share.value for share in shares])))


def share_of(own: Sequence[float], all_cores: Sequence[float]) -> Share:
    """Return the ratio of the quickest of each: others on the machine only ever make a run longer."""
    sure = all(median(seconds) <= DISTURBED * min(seconds) for seconds in (own, all_cores))
    return Share(min(1.0, min(all_cores) / min(own)), sure)


def _shares(program: Program, wide: Program) -> tuple[Share, ...]:
    """Return what stages take with all cores, as a share of what they take with their worker's own."""
    inputs = made_up_inputs(program.spec.inputs, 1)
    share = _measured(partial(run_chain, program.stages, inputs), partial(run_chain, wide.stages, inputs))
    return (share,) * len(program.stages)


def _shares_of_sequences(program: SequenceProgram, wide: SequenceProgram) -> tuple[Share, ...]:
    """Return likewise what reading takes, and a step."""
    own, all_cores = typical_decoding(program), typical_decoding(wide)
    reading = _measured(partial(own.read, (0,)), partial(all_cores.read, (0,)))
    return reading, _measured(partial(_steps, own), partial(_steps, all_cores))


def _steps(decoding: Decoding) -> None:
    for _ in range(STEPS):
        decoding.step((0,))


def _measured(own: Call, all_cores: Call) -> Share:
    """Return what all cores take, in turn with its worker's own.

    Each run comes after a pause, as lone requests do: in a loop the second thread would be awake already.
    """
    seconds: dict[Call, list[float]] = {own: [], all_cores: []}
    with torch.inference_mode():
        for _ in range(RUNS):
            for call, found in seconds.items():
                time.sleep(PAUSE)
                found.append(time_call(call))
    return share_of(seconds[own], seconds[all_cores])
