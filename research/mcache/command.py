"""`python -m research residency` and `residency-live`."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Trace
from latebind.cli.console import progress, reporting, show
from latebind.cli.options import Processes, Seed
from latebind.domain.config import TIERS
from latebind.domain.errors import ConfigError
from research.evaluation import Floats, Found, Output, Part, Rounds, Seconds, Seeds, SideName, Words, evaluate
from research.mcache import live, parts
from research.mcache.crowd import CLIENTS, crowd, sides
from research.mcache.play import Plan, policy
from research.mcache.traces import REQUESTS, Pairing, services_of
from research.policies import EVICTION
from research.sides import chosen

Share = Annotated[Floats, Option(help="Memory, as a share (0 to 1) of what all models take; may be repeated.")]
Clients = Annotated[int, Option(min=1, help="For crowd: how many clients there are.")]
Pairings = Annotated[list[Pairing] | None, Option(help="How models get services of the trace; may be repeated.")]


def residency(
    *,
    trace: Trace = None,
    policies: Annotated[
        Words, Option("--policy", help=f"A policy beside LRU: {', '.join(EVICTION)}; may be repeated.")
    ] = None,
    pairing: Pairings = None,
    share: Share = None,
    clients: Clients = CLIENTS,
    requests: Annotated[
        int, Option(min=1, help="How many requests an hour has, where the trace has so many.")
    ] = REQUESTS,
    seeds: Seeds = 10,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Play mCache's evaluation: seven models in less memory than they take, requests after an Azure trace.

    Parts: table (table 3, figures 6 and 9), known (requests that wait), many (a model
    for each service), bounds (the least loading that is possible), crowd (clients that each wait for an answer,
    in real time).

    Requests are played one after another, and each loads what is missing before the next one begins. That is the
    paper's latency, which leaves queueing out. Stages that load while the stages before them run cost no waiting. The
    seed draws which service gets which model, the instants and the hour, on both halves of the trace. Intervals are of
    95 %, paired with LRU in the very same hours. `iam-oracle` and `belady` are told the future and `late-oracle` is
    told all rates; the other policies learn from past requests.

    A load takes 0.15 s plus its bytes at 110 MB/s; with that, LRU loads for as long as in table 3, within a sixth. A
    request takes 0.26 s beside loading. Without --trace, counts are drawn with rates as in the trace: the policies rank
    the same, and their gain over LRU is within a few points.

    Example: `python -m research residency --part table --pairing random --policy iam --policy late --seeds 3`
    """
    with reporting():
        if unknown := [name for name in policies or () if name not in EVICTION]:
            raise ConfigError(f"there is no policy {unknown[0]!r}: take some of {', '.join(EVICTION)}")
        beside = [policy(name) for name in policies or EVICTION]
        some = _shares(share)
        plan = Plan(services_of(trace), seeds, tuple(pairing or Pairing), some, requests=requests, processes=processes)
        every: dict[str, Part] = {
            "table": partial(parts.table, plan, beside),
            "known": partial(parts.known, plan),
            "many": partial(parts.many, plan, beside),
            "bounds": partial(parts.bounds, plan),
            "crowd": partial(crowd, plan, some or parts.USUAL, clients),
        }
        evaluate(every, output)


def residency_live(
    models: Annotated[Path, Argument(help="A folder of several models, such as the one that examples/zoo builds.")],
    *,
    share: Share = None,
    trace: Trace = None,
    speed: Annotated[float, Option(min=0.01, help="How many times faster than in the trace requests come.")] = 10.0,
    seconds: Seconds = 20.0,
    warm_up: Annotated[float, Option(min=0.0, help="Seconds at the start of each block that do not count.")] = 5.0,
    rounds: Rounds = 3,
    side: SideName = None,
    clients: Clients = CLIENTS,
    tier: Annotated[str, Option(help=f"Where evicted stages stay: {' or '.join(TIERS)}.")] = "disk",
    workers: Annotated[int, Option(min=1, help="How many workers each engine has, with one thread each.")] = 1,
    patience: Annotated[float, Option(help="The most seconds that a request waits for its model.")] = 30,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare residency policies on live engines that have less memory than their models take.

    Parts: trace (the requests of an hour, played faster), crowd (clients that send again as soon as they have an
    answer), cold (the first answers of the largest models). Without --share, trace has 0.4 of the memory, and crowd 0.4
    and 0.6. Sides are those of `residency --part crowd`.

    Every side is an engine of its own with all models of the folder. It is started for its block with none of their
    files in the page cache, and every side is sent the same requests at the same times. An engine reads all files as it
    starts. With --tier page-cache they stay in the page cache from then on, so loads read memory. The tables say what
    was read from where.

    Nothing is refused or dropped for being late, learned caches are off, and rows are made up. A block ends when every
    request is answered, which takes long for a side that cannot keep up. An open trace has no steady latency then, so
    try a lower --speed.

    Example: `python -m research residency-live out/zoo --part crowd --share 0.4 --patience 10 --side late`
    """
    with reporting():
        if tier not in TIERS:
            raise ConfigError(f"--tier {tier!r}: choose {' or '.join(TIERS)}")
        setting, wanted = live.Setting(tier, workers, patience), tuple(chosen(sides(patience), side or ()))
        services, some = services_of(trace), _shares(share)
        plan = live.Plan(services, wanted, some, speed, seconds, warm_up, rounds, clients, seed)
        with progress("weighing") as on_progress:
            zoo = live.weigh(models, on_progress)
        show("models, loaded from disk", zoo.rows())

        def on_engines(run: Callable[..., Any], on_progress: Progress) -> Found:
            found: Found = asyncio.run(run(zoo, plan, setting, on_progress))
            return found

        every = {"trace": live.trace, "crowd": live.crowd, "cold": live.cold}
        evaluate({name: partial(on_engines, run) for name, run in every.items()}, output)


def _shares(share: list[float] | None) -> tuple[float, ...]:
    """Return the shares of memory in ascending order. Raises `ConfigError`."""
    for one in share or ():
        if not 0 < one <= 1:
            raise ConfigError(f"--share {one:g} is no share of the models' memory: give more than 0 and at most 1")
    return tuple(sorted(share or ()))
