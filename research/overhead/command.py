"""`python -m research scheduler`, `stages` and `boundary`: what deciding late costs."""

from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.console import reporting
from latebind.cli.options import Seed
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS
from research.evaluation import Conditions, Floats, Found, Output, Rounds, Words, evaluate
from research.overhead import boundary as on_engines
from research.overhead import scheduler as costs
from research.overhead import stages as chains
from research.policies import BATCHING

Policies = Annotated[Words, Option(help="A policy to measure; may be repeated.")]


def scheduler(
    policy: Policies = None,
    events: Annotated[int, Option(help="How many events each measurement has.")] = 6_000,
    rounds: Rounds = 3,
    seed: Seed = 0,
    *,
    output: Output,
) -> None:
    """Measure what scheduler and policies cost on one core: a stage boundary, a decision, and many models.

    Times are CPU time of the thread, which means something on a busy machine too, and clock time beside it; of several
    rounds the least counts. Boundaries are those of a model with learned caches behind some of its stages, at which no
    request leaves: the mean of all while no request rests; of these, separately, the boundaries without and with a
    lookup; and those while other requests rest at a stage. How short stages may be: `python -m research boundary`.
    """
    with reporting():

        def speeds(tell: Progress) -> Found:
            cells = [(one, waiting) for one in policy or BATCHING for waiting in costs.BACKLOGS]
            found = []
            for number, (one, waiting) in enumerate(cells):
                tell(one, number / len(cells))
                found.append(costs.measure(one, waiting=waiting, events=events, rounds=rounds, seed=seed))
            return Found(
                {"CPU (by the clock), least of the rounds": [costs.speed_row(one) for one in found]}, raw=found
            )

        def many(tell: Progress) -> Found:
            del tell
            title = f"many models, {costs.BUSY} of which {costs.ASKED} requests each wait for or run"
            return Found({title: costs.many_rows(events=events // 3, rounds=rounds)})

        evaluate({"speeds": speeds, "many": many}, output)


def stages(
    network: Annotated[Words, Option(help=f"Of {' and '.join(chains.NETWORKS)}; may be repeated.")] = None,
    backend: Annotated[Words, Option(help="A backend; may be repeated. Default: eager and openvino.")] = None,
    min_stage_ms: Annotated[Floats, Option(help="The least time that a stage takes; repeat it for a sweep.")] = None,
    limit: Annotated[bool, Option(help="Let a chain of stages take at most 5 % longer than the uncut model.")] = True,
    runs: Annotated[int, Option(help="How many pairs of runs each ratio is taken from.")] = 100,
    *,
    output: Output,
) -> None:
    """Show where networks can be cut, and measure what a chain of stages costs compared with the uncut network.

    Both sides run alternately, and each ratio is of a pair of runs. Weights are drawn.

    Example: `python -m research stages --network resnet56 --backend openvino --no-limit --min-stage-ms 0.3`
    """
    with reporting():

        def chained(tell: Progress) -> Found:
            del tell
            minima = [ms / 1e3 for ms in min_stage_ms or [MIN_STAGE_SECONDS * 1e3]]
            networks, backends = network or tuple(chains.NETWORKS), backend or ("eager", "openvino")
            rows = chains.run(
                networks, backends, minima=minima, max_overhead=MAX_OVERHEAD if limit else None, runs=runs
            )
            return Found({"chain of stages over the uncut model, one thread": rows})

        evaluate({"chains": chained}, output)


def boundary(
    *,
    policy: Policies = None,
    requests: Annotated[int, Option(help="Requests of each side.")] = 2000,
    conditions: Conditions,
    output: Output,
) -> None:
    """Measure what a stage boundary costs in the engine, and how long a stage must be to make that cost small.

    `latebind build` makes stages of at least 0.8 ms unless --min-stage-ms says otherwise.
    """
    with reporting():

        def measured(tell: Progress) -> Found:
            del tell
            policies, backend = tuple(policy or ("graph", "lazy+")), conditions.backend or "openvino"
            rows = on_engines.run(policies=policies, backend=backend, setting=conditions.setting(), requests=requests)
            return Found({"a boundary where nobody waits, joins or leaves": rows})

        evaluate({"boundary": measured}, output)
