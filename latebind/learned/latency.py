"""What a lookup costs where it will run: between the stages of its network, not in a loop of its own."""

from statistics import median

from torch import Tensor

from latebind.domain.costs import Curve
from latebind.learned.lookup import LookupFunction
from latebind.program.measure import profiled_batches, time_call, with_batch
from latebind.program.program import Program

RUNS, WARM_RUNS = 23, 3  # of the whole network, for each batch size


def latency_in_place(program: Program, row: tuple[Tensor, ...], stage: int, function: LookupFunction) -> Curve:
    """Measure a lookup where it will run, between the stages of the whole network.

    Called again and again it would find its weights and code in the caches near the core and look half as long.
    """
    batches = profiled_batches(program.spec.max_batch)
    seconds = []
    for batch in batches:
        inputs = with_batch(row, batch)
        found = [_seconds_in_place(program, inputs, stage, function) for _ in range(RUNS)]
        seconds.append(median(found[WARM_RUNS:]))
    return Curve(batches, tuple(seconds))


def _seconds_in_place(program: Program, inputs: tuple[Tensor, ...], stage: int, function: LookupFunction) -> float:
    """Run the network once with the lookup behind `stage` and return the seconds of the lookup."""
    passed, seconds = inputs, 0.0
    for number, run in enumerate(program.stages):
        passed = run(*passed)
        if number == stage:
            activation = passed[0]
            seconds = time_call(lambda x=activation: function(x))  # type: ignore[misc]
    return seconds
