"""`python -m research scheduler` and `boundary`: what deciding late costs."""

from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.console import reporting
from latebind.cli.options import Seed
from research.evaluation import Conditions, Found, Output, Words, evaluate
from research.overhead import boundary as on_engines
from research.overhead import scheduler as costs
from research.policies import BATCHING

Policies = Annotated[Words, Option(help="A policy to measure; may be repeated.")]


def scheduler(
    policy: Policies = None,
    events: Annotated[int, Option(help="How many events each measurement has.")] = 6_000,
    seed: Seed = 0,
    *,
    output: Output,
) -> None:
    """Measure what scheduler and policies cost on one core: a stage boundary, a decision, and many models.

    Times are CPU time of the thread, which means something on a busy machine too, and clock time beside it. Boundaries
    are those of a model with learned caches behind some of its stages, at which no request leaves: behind a stage
    without and with a lookup while no request rests; and those while other requests rest at a stage. How short stages
    may be: `python -m research boundary`.
    """
    with reporting():

        def speeds(tell: Progress) -> Found:
            cells = [(one, waiting) for one in policy or BATCHING for waiting in costs.BACKLOGS]
            rows = []
            for number, (one, waiting) in enumerate(cells):
                tell(one, number / len(cells))
                rows.append(costs.speed_row(one, waiting=waiting, events=events, seed=seed))
            return Found({"CPU (by the clock)": rows})

        def many(tell: Progress) -> Found:
            del tell
            title = f"many models, {costs.BUSY} of which {costs.ASKED} requests each wait for or run"
            return Found({title: costs.many_rows(events=events // 3)})

        evaluate({"speeds": speeds, "many": many}, output)


def boundary(
    *,
    policy: Policies = None,
    requests: Annotated[int, Option(help="Requests of each side.")] = 2000,
    conditions: Conditions,
    output: Output,
) -> None:
    """Measure what a stage boundary costs in the engine, and how long a stage must be to make that cost small.

    `latebind build` makes stages of at least 0.8 ms unless --min-stage-ms says otherwise, and prints what its chain of
    stages takes of the uncut network's time.
    """
    with reporting():

        def measured(tell: Progress) -> Found:
            del tell
            policies, backend = tuple(policy or ("graph", "lazy+")), conditions.backend or "openvino"
            rows = on_engines.run(policies=policies, backend=backend, setting=conditions.setting(), requests=requests)
            return Found({"a boundary where nobody waits, joins or leaves": rows})

        evaluate({"boundary": measured}, output)
