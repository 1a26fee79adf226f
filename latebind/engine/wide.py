"""A lone request on the cores of all workers: the same model compiled once more, for one row, where that pays.

Decision 38. Only where several workers run at a time does anybody lend cores, and only a backend whose operators
divide gains from them.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
STEPS = 4  # of a decoder in a run

Call = Callable[[], object]


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
    model: LoadedModel, wide: Program | SequenceProgram, alone: list[float], shares: tuple[float, ...]
) -> LoadedModel:
    """Return the model with `wide` where its stages, which take `alone` seconds, take such shares of that with it."""
    if sum([share * seconds for share, seconds in zip(shares, alone, strict=True)]) > PAYS * sum(alone):
        return model
    return replace(model, wide=wide, costs=replace(model.costs, wide=shares))


def _shares(program: Program, wide: Program) -> tuple[float, ...]:
    """Return what stages take with all cores, as a share of what they take with their worker's own."""
    inputs = made_up_inputs(program.spec.inputs, 1)
    share = _share(partial(run_chain, program.stages, inputs), partial(run_chain, wide.stages, inputs))
    return (share,) * len(program.stages)


def _shares_of_sequences(program: SequenceProgram, wide: SequenceProgram) -> tuple[float, ...]:
    """Return likewise what reading takes, and a step."""
    own, all_cores = typical_decoding(program), typical_decoding(wide)
    reading = _share(partial(own.read, (0,)), partial(all_cores.read, (0,)))
    return reading, _share(partial(_steps, own), partial(_steps, all_cores))


def _steps(decoding: Decoding) -> None:
    for _ in range(STEPS):
        decoding.step((0,))


def _share(own: Call, all_cores: Call) -> float:
    """Return the ratio of the quickest of each: others on the machine only ever make a run longer.

    Each run comes after a pause, as lone requests do: in a loop the second thread would be awake already.
    """
    seconds: dict[Call, list[float]] = {own: [], all_cores: []}
    with torch.inference_mode():
        for _ in range(RUNS):
            for call, found in seconds.items():
                time.sleep(PAUSE)
                found.append(time_call(call))
    return min(1.0, min(seconds[all_cores]) / min(seconds[own]))
