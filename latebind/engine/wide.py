"""Runs on the cores of all workers: the model compiled again for more threads, if that pays.

A request alone runs that way, and so do batches while workers are not too busy (decisions 38 and 98). It needs several
workers that run at the same time, and a backend whose operators run on several threads. What is measured here for one
row is only the initial estimate: serving goes on learning it (`batching/lone.py`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve
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

MIN_SECONDS = 4e-4  # that a request takes alone: less is not worth dividing
MAX_SHARE = 0.9  # of that with all cores: it must pay for the memory of one more copy of the weights
RUNS = 17  # of each variant, in turn
BATCHES = 16, 8, 4, 2  # the largest of these is measured besides
MOST_SECONDS = 0.03  # of a batch, if its requests run one by one
PAUSE_SECONDS = 0.005  # before each run
DISTURBED = 1.15  # a median above this many times the quickest run means that others use the cores as well
STEPS = 4  # decoder steps in a run

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Share:
    """The time with all cores as a share of the time with one worker's cores; `is_sure` if nobody else used them."""

    value: float
    is_sure: bool


def widen(model: LoadedModel, config: EngineConfig, *, workers: int) -> LoadedModel:
    """Return the model with a way to run on the cores of so many workers, if one request is quicker that way."""
    program, costs = model.program, model.costs
    if workers < 2 or not config.wide or config.device != HOST.type or not backend_named(program.backend).divides:
        return model
    alone = [costs.stages[i].at(1) for i in range(len(costs.stages))]
    if sum(alone) < MIN_SECONDS:
        return model
    threads = workers * config.threads
    if isinstance(program, SequenceProgram):
        sequence = load_sequence(model.directory, threads=threads, backend=program.backend, lone=True)
        warm_up(sequence, 1)
        return with_wide_if_faster(model, sequence, alone, {1: _shares_of_sequences(program, sequence)})
    wide = load_program(model.directory, threads=threads, backend=program.backend)
    if not program.entry:
        wide = wide.without_entry()
    batches = (1, *(size for size in BATCHES if size <= program.spec.max_batch and size * sum(alone) <= MOST_SECONDS))
    shares = {batch: _shares(program, wide, batch) for batch in batches[:2]}
    return with_wide_if_faster(model, wide, alone, shares)


def with_wide_if_faster(
    model: LoadedModel, wide: Program | SequenceProgram, alone: Sequence[float], shares: Mapping[int, Sequence[Share]]
) -> LoadedModel:
    """Return the model with `wide` if that lowers the time of its stages, which take `alone` seconds, enough.

    `shares` are the shares of that time that the stages take with all cores, for batches of 1 and perhaps others. If
    others used the cores during the measurement, `wide` is kept all the same, and serving shows whether it pays.
    """
    taken = sum([share.value * seconds for share, seconds in zip(shares[1], alone, strict=True)])
    if taken > MAX_SHARE * sum(alone) and all(share.is_sure for share in shares[1]):
        return model
    by_stage = zip(*shares.values(), strict=True)
    curves = tuple([Curve(tuple(shares), tuple([share.value for share in stage])) for stage in by_stage])
    return replace(model, wide=wide, costs=replace(model.costs, wide=curves))


def share_of(own: Sequence[float], all_cores: Sequence[float]) -> Share:
    """Return the ratio of the quickest runs: others on the machine only ever make a run longer."""
    sure = all(median(seconds) <= DISTURBED * min(seconds) for seconds in (own, all_cores))
    return Share(min(1.0, min(all_cores) / min(own)), sure)


def _shares(program: Program, wide: Program, batch: int) -> tuple[Share, ...]:
    """Return the share of each stage of a chain; all stages get the share of the whole."""
    inputs = made_up_inputs(program.spec.inputs, batch)
    share = _measured(partial(run_chain, program.stages, inputs), partial(run_chain, wide.stages, inputs))
    return (share,) * len(program.stages)


def _shares_of_sequences(program: SequenceProgram, wide: SequenceProgram) -> tuple[Share, ...]:
    """Return the shares of reading the input and of one decoder step."""
    own, all_cores = typical_decoding(program), typical_decoding(wide)
    reading = _measured(partial(own.read, (0,)), partial(all_cores.read, (0,)))
    return reading, _measured(partial(_steps, own), partial(_steps, all_cores))


def _steps(decoding: Decoding) -> None:
    for _ in range(STEPS):
        decoding.step((0,))


def _measured(own: Call, all_cores: Call) -> Share:
    """Return the share that all cores take, measured in turn with the worker's own cores.

    Each run comes after a pause, as lone requests do: in a tight loop the second thread would be awake already.
    """
    seconds: dict[Call, list[float]] = {own: [], all_cores: []}
    with torch.inference_mode():
        for _ in range(RUNS):
            for call, found in seconds.items():
                time.sleep(PAUSE_SECONDS)
                found.append(time_call(call))
    return share_of(seconds[own], seconds[all_cores])
