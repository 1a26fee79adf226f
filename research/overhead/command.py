"""`python -m research scheduler`: what deciding late costs."""

from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.console import reporting
from latebind.cli.options import Seed
from research.evaluation import Found, Output, Words, evaluate
from research.overhead import scheduler as costs
from research.policies import BATCHING


def scheduler(
    policy: Annotated[Words, Option(help="A policy to measure; may be repeated.")] = None,
    events: Annotated[int, Option(help="How many events each measurement has.")] = 6_000,
    seed: Seed = 0,
    *,
    output: Output,
) -> None:
    """Measure what scheduler and policies cost on one core: a stage boundary, and a decision.

    Times are CPU time of the thread, which means something on a busy machine too, and clock time beside it. Boundaries
    are those of a model with learned caches behind some of its stages, at which no request leaves: behind a stage
    without and with a lookup while no request rests; and those while other requests rest at a stage.
    """
    with reporting():

        def speeds(tell: Progress) -> Found:
            cells = [(one, waiting) for one in policy or BATCHING for waiting in costs.BACKLOGS]
            rows = []
            for number, (one, waiting) in enumerate(cells):
                tell(one, number / len(cells))
                rows.append(costs.speed_row(one, waiting=waiting, events=events, seed=seed))
            return Found({"CPU (by the clock)": rows})

        evaluate({"speeds": speeds}, output)
