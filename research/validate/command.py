"""`python -m research validate`."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import torch
from typer import Argument, Option

from latebind.bench.report import SHARES, Plot, lines
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.cli.console import console, reporting
from latebind.cli.options import DataOption
from latebind.cli.sources import load_rows
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.evaluation import Conditions, Data, Found, Output, Rounds, SideName, Words, evaluate
from research.live import Rows
from research.mcache.zoo import LATE, LRU, SIDES, Setting, weigh
from research.sides import chosen
from research.validate import live
from research.validate.networks import NETWORKS, build, build_many
from research.validate.report import Load, rows

MOST_ROWS = 2_000
QUANTILES = np.linspace(0.0, 1.0, 402)[1:-1]
NOTICED = 100e-6  # seconds between two looks at a clock past which the thread was not running


def validate(
    repository: Annotated[Path | None, Argument(help="A folder of models. Default: some are built.")] = None,
    *,
    model: Annotated[Words, Option(help="Take only this model of the folder; may be repeated.")] = None,
    data: Data = None,
    data_option: DataOption = None,
    policy: Annotated[Words, Option(help=f"Only this: {', '.join(live.POLICIES)}; may be repeated.")] = None,
    load: Annotated[float, Option(min=0.01, help="A multiple of each policy's highest throughput.")] = 0.7,
    deadline: Annotated[float, Option(min=1.0, help="A multiple of the time that one request takes alone.")] = 10.0,
    rounds: Rounds = 5,
    blocks: Annotated[int, Option(min=1, help="Blocks of requests of a visit, or for memory of a round.")] = 5,
    share: Annotated[float, Option(min=0.01, max=1.0, help="For memory: the share of what all models take.")] = 0.5,
    side: SideName = None,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare simulated latencies with those of live engines: the same requests, times and deadlines.

    Parts: loads (models and policies; sequence models too, with --data), memory (many models in less memory than they
    take, loaded and evicted as in `python -m research residency-live`, whose sides --side names; late and lru).

    Every model has an engine for each policy, all on the same core. Rounds visit them in turn. A visit plays blocks of
    requests at random times, and before and after each block a stretch at rising rates, from which it calibrates the
    costs of launches and messages and the speed of the machine. Of the blocks, the simulator is told only when clients
    sent requests and where these left the network. A ratio is the median over the rounds, simulated over live.
    Latencies are those of clients of the engine, without HTTP.

    Examples:

    * `python -m research validate --awake --page out/validate.html`
    * `python -m research validate models --part loads --model resnet56 --data images.npz`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        seed, cores = conditions.seed, (conditions.frontend_core, conditions.engine_core)
        plan = live.Plan(load, deadline, rounds, blocks)
        sides = tuple(chosen(SIDES, side or (LATE, LRU)))
        policies = tuple(chosen(live.POLICIES, policy or ()))
        torch.set_num_threads(1)

        def loads(tell: Progress) -> Found:
            folder = repository
            if folder is None:
                names = list(chosen(NETWORKS, model or ()))
                folder = build(Path(scratch) / "loads", names, conditions.backend or "openvino", tell)
            paths = {path.parent.name: path for path in find_models(folder, tuple(model or ()))}
            specs = {name: read_spec_and_costs(ModelDirectory.open(path))[0] for name, path in paths.items()}
            if data is None:
                sent = {name: Rows.made_up(spec, Random(seed)) for name, spec in specs.items()}
            else:
                inputs = load_rows(data, data_option)[0]
                given = Rows({name: array[:MOST_ROWS] for name, array in inputs.items()})
                sent = dict.fromkeys(specs, given)
            found = live.loads(paths, policies, sent, plan, conditions.setting(), tell)
            return _found(
                f"live / simulated, {load:.0%} of what each answers, due after {deadline:g} x alone", found, seed
            )

        def memory(tell: Progress) -> Found:
            zoo = weigh(repository or build_many(Path(scratch) / "memory", tell), tell)
            how = live.MemoryPlan(share=share, rounds=rounds, blocks=blocks, sides=sides, seed=seed)
            found = live.in_memory(zoo, how, Setting(), tell)
            return _found(
                f"live / simulated, {len(zoo.models)} models in {share:.0%} of {zoo.size / 1e6:.0f} MB", found, seed
            )

        evaluate({"loads": loads, "memory": memory}, output, {"away": ", ".join(map(_away, cores))})
        console.print(f"at the end {', '.join(map(_away, cores))}")


def _found(title: str, found: Sequence[Load], seed: int) -> Found:
    raw = {
        f"{one.model}, {one.policy}": [
            {"live": each.live.tolist(), "simulated": [run.tolist() for run in each.simulated]} for each in one.rounds
        ]
        for one in found
    }
    return Found({title: rows(found, seed)}, lambda: [_quantiles(found), *map(_distribution, found)], raw)


def _away(core: int, seconds: float = 1.0) -> str:
    """Keep a core busy by reading the clock; tell how much of it other processes took, and the longest pause."""
    away, longest = 0.0, 0.0
    with pinned((core,)):
        begun = last = time.perf_counter()
        while last < begun + seconds:
            now = time.perf_counter()
            if now - last > NOTICED:
                away, longest = away + now - last, max(longest, now - last)
            last = now
    return f"core {core} away for {away / (last - begun):.1%}, {longest * 1e3:.1f} ms at most"


def _distribution(load: Load) -> Plot:
    """Draw the share of requests that were answered within a time, live and simulated."""
    both = {"live": load.live, "simulated": load.simulated}
    curves = {name: (np.quantile(seconds, QUANTILES) * 1e3, QUANTILES) for name, seconds in both.items()}
    x, y = {"title": "latency, ms", "type": "log"}, {"title": "share of requests", **SHARES}
    return lines(f"{load.model}, {load.policy}", curves, x=x, y=y, mode="lines")


def _quantiles(loads: Sequence[Load]) -> Plot:
    """Draw quantiles of simulated latencies over the same of live ones: on the diagonal they are alike."""
    curves = {
        f"{load.model}, {load.policy}": tuple(np.quantile(one, QUANTILES) * 1e3 for one in (load.live, load.simulated))
        for load in loads
    }
    x, y = ({"title": f"{kind}, ms", "type": "log"} for kind in ("live", "simulated"))
    return lines("Quantile against quantile", {name: (a, b) for name, (a, b) in curves.items()}, x=x, y=y, mode="lines")
