"""`python -m research faults`: what clients see of faults, shutdowns and changes."""

from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.console import reporting
from research.evaluation import Found, Output, evaluate
from research.faults import mixed


def faults(
    times: Annotated[int, Option(min=1, help="How often each fault is caused, and the server told to end.")] = 20,
    fault: Annotated[list[mixed.Fault] | None, Option(help="For mixed: which; may be repeated.")] = None,
    pause: Annotated[float, Option(help="For mixed: seconds without a fault before each.")] = 1.0,
    patience: Annotated[float, Option(help="For mixed: seconds for which an engine may stand still.")] = 1.0,
    *,
    output: Output,
) -> None:
    """Cause faults in a real `latebind serve` and count what its clients get.

    Parts: mixed (the engine killed, stopped for 10 s, stuck in a stage, and rows that raise, all under load), terminate
    (SIGTERM with 32 requests in flight). New versions under load: `latebind bench ledger --inject reload`.

    Example: `python -m research faults --part mixed --fault killed --times 5`
    """
    with reporting():

        def under_load(on_progress: Progress) -> Found:
            rows = mixed.rows(fault or list(mixed.Fault), times, on_progress, pause=pause, patience=patience)
            return Found({f"faults under a mixed load on four models, calls of {mixed.TIMEOUT:g} s": rows})

        def terminate(on_progress: Progress) -> Found:
            return Found({f"SIGTERM with {mixed.IN_FLIGHT} requests in flight": [mixed.terminate(times, on_progress)]})

        evaluate({"mixed": under_load, "terminate": terminate}, output)
