"""`python -m research validate`: the same requests live and simulated."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import repeat, takewhile
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
from typer import Option

from latebind.bench.client import poisson
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.bench.statistics import median_interval
from latebind.bench.subject import Setting
from latebind.cli.bench.options import Data, Repository
from latebind.cli.console import Row, reporting
from latebind.cli.options import DataOption
from latebind.cli.sources import load_rows
from latebind.domain.config import PolicyConfig
from latebind.domain.model import ModelSpec
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.lengths import HOW, read_sizes
from research import live
from research.evaluation import Conditions, Found, Output, Rounds, Words, evaluate
from research.live import WAITING, Asked, Call, started
from research.sides import Figures, Side, chosen, graph
from research.validate.simulated import Log, simulated

MOST_ROWS = 2_000
WARM_UP, SATURATED = 0.3, 0.25  # seconds
BLOCK, CALIBRATION = 0.6, 0.4  # seconds of a block, and of the stretches around it
LOWEST, HIGHEST = 0.7, 1.3  # times a load: the rates between which calibrations rise
POLICIES = {name: Side(name, PolicyConfig(name), exits=True) for name in ("late", "lazy+", "graph")}
POLICIES["serial"] = Side("serial", graph(1, shed=True), exits=True)
FIGURES: dict[str, Callable[[Figures], float]] = {
    "mean": lambda seconds: float(seconds.mean()),
    "p50": lambda seconds: float(np.percentile(seconds, 50)),
    "p99": lambda seconds: float(np.percentile(seconds, 99)),
}


def validate(
    repository: Repository,
    *,
    model: Annotated[Words, Option(help="Take only this model of the folder; may be repeated.")] = None,
    data: Data = None,
    data_option: DataOption = None,
    lengths: Annotated[str, Option(help=f"The lengths of rows, where they differ in size: {HOW}.")] = "",
    policy: Annotated[Words, Option(help=f"Only this: {', '.join(POLICIES)}; may be repeated.")] = None,
    load: Annotated[float, Option(min=0.01, help="A multiple of each policy's highest throughput.")] = 0.7,
    deadline: Annotated[float, Option(min=1.0, help="A multiple of the time that one request takes alone.")] = 10.0,
    rounds: Rounds = 5,
    blocks: Annotated[int, Option(min=1, help="Blocks of requests of a visit.")] = 5,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare simulated latencies with those of live engines: the same requests, times and deadlines.

    Every model has an engine for each policy, all on the same core. Rounds visit them in turn. A visit plays blocks of
    requests at random times, and before and after each block a stretch at rising rates, from which it learns what
    launches and messages take. Of the blocks, the simulator is told only when clients sent requests and where these
    left the network. A ratio is the median over the rounds, simulated over live. Latencies are those of clients of the
    engine, without HTTP. Sequence models need --data.

    Examples:

    * `python -m research validate models --model resnet56 --data images.npz`
    * `python -m research validate models --model text --lengths lengths.txt --load 1.4`
    """
    with reporting():
        policies, seed = tuple(chosen(POLICIES, policy or ())), conditions.seed

        def loads(on_progress: Progress) -> Found:
            paths = {path.parent.name: path for path in find_models(repository, tuple(model or ()))}
            specs = {name: read_spec_and_costs(ModelDirectory.open(path))[0] for name, path in paths.items()}
            if data is None:
                sent = {name: made_up(spec, lengths, Random(seed)) for name, spec in specs.items()}
            else:
                inputs = load_rows(data, data_option)[0]
                given = live.Rows({name: array[:MOST_ROWS] for name, array in inputs.items()})
                sent = dict.fromkeys(specs, given)
            plan = Plan(load, deadline, rounds, blocks)
            found = visited(paths, policies, sent, plan, conditions.setting(), on_progress)
            title = f"live / simulated, {load:.0%} of what each answers, due after {deadline:g} x alone"
            return Found({title: [row(one, seed) for one in found]})

        evaluate({"loads": loads}, output)


def made_up(spec: ModelSpec, lengths: str, random: Random) -> live.Rows:
    """Return made-up rows of a model; of one whose rows differ in size, rows of such lengths."""
    if not spec.dims:
        return live.Rows.made_up(spec, random)
    sizes = read_sizes(lengths, spec.dims, spec.name)
    return live.Rows.of_sizes(spec, random.sample(sizes, min(len(sizes), MOST_ROWS)), random)


@dataclass(frozen=True, slots=True)
class Plan:
    """`load` is a multiple of what a policy answers at most, `deadline` of what a request takes alone."""

    load: float = 0.7
    deadline: float = 10.0
    rounds: int = 5
    blocks: int = 5


@dataclass(slots=True)
class Engine:
    """One running engine, and what its clients saw: stretches by visit, every other one of them a block."""

    model: str
    policy: str
    asked: Asked
    waiting: int
    log: Path
    visits: list[list[list[Call]]] = field(default_factory=list)

    async def visit(self, plan: Plan, random: Random) -> None:
        """Calibrate, play and calibrate again, at what it answers now."""
        alone, most = 1.0 / await self.rate(SATURATED, 1), await self.rate(SATURATED, self.waiting)
        rate, allowed = plan.load * most, plan.deadline * alone
        low, high = LOWEST * rate, HIGHEST * rate
        times = [between(CALIBRATION, low, high, random)]
        for _ in range(plan.blocks):
            times += [between(BLOCK, rate, rate, random), between(CALIBRATION, low, high, random)]
        calls = [await self.asked.play([(at, self.model) for at in some], allowed=allowed) for some in times]
        self.visits.append(calls)

    async def rate(self, seconds: float, waiting: int) -> float:
        """Return the answers a second while so many requests are always under way."""
        begun = time.monotonic()
        calls = await self.asked.crowd([repeat(self.model)] * waiting, seconds)
        return len(calls) / (time.monotonic() - begun)


def between(seconds: float, low: float, high: float, random: Random) -> list[float]:
    """Return random times within `seconds`, the first at 0, at a rate that goes from `low` to `high`."""
    times = takewhile(lambda at: at < seconds, poisson(high, random))
    return [0.0, *(at for at in times if random.random() * high < low + (high - low) * at / seconds)]


@dataclass(frozen=True, slots=True)
class Compared:
    """One model under one policy: seconds of the requests of each round, inf where one was not answered."""

    model: str
    policy: str
    live: Sequence[Figures]
    simulated: Sequence[Figures]


def visited(
    paths: Mapping[str, Path],
    policies: Sequence[str],
    rows: Mapping[str, live.Rows],
    plan: Plan,
    setting: Setting,
    on_progress: Progress,
) -> list[Compared]:
    """Play to an engine of each model and policy, in rounds that go in another order each; then simulate."""
    every, random = list[Engine](), Random(setting.seed)

    async def played(folder: Path) -> None:
        async with AsyncExitStack() as stack:
            for model, policy in ((model, policy) for model in paths for policy in policies):
                side, log = POLICIES[policy], folder / f"{model}-{policy}.jsonl"
                client = await started(stack, (paths[model],), side, setting, log=log)
                waiting = 1 if policy == "serial" else WAITING * side.largest_batch(client.models[model])
                every.append(Engine(model, policy, Asked(client, rows), waiting, log))
                await every[-1].rate(WARM_UP, waiting)
            for number in range(plan.rounds):
                for at, engine in enumerate(random.sample(every, len(every))):
                    on_progress(f"{engine.model}, {engine.policy}", (number + at / len(every)) / plan.rounds)
                    await engine.visit(plan, random)

    with tempfile.TemporaryDirectory(prefix="latebind-validate-") as folder:
        with pinned(setting.frontend_cores):
            asyncio.run(played(Path(folder)))
        return [compared(one, setting.seed) for one in every]


def compared(engine: Engine, seed: int) -> Compared:
    """Return the blocks of an engine beside the same, simulated."""
    log, did, would = Log.read(engine.log), list[Figures](), list[Figures]()
    for number, stretches in enumerate(engine.visits):
        did.append(np.array([_seconds(call) for calls in stretches[1::2] for call in calls]))
        would.append(np.concatenate(simulated(log, stretches, seed + number)[1::2]))
    return Compared(engine.model, engine.policy, did, would)


def _seconds(call: Call) -> float:
    return call.ended - call.sent if call.answered else np.inf


def row(one: Compared, seed: int) -> Row:
    """Return live / simulated milliseconds of all rounds together, then ratios round by round."""
    every = [np.concatenate(some) for some in (one.live, one.simulated)]
    found: Row = {"model": one.model, "policy": one.policy, "requests": len(every[0])}
    found["not answered"] = " / ".join(f"{np.isinf(some).mean():.1%}" for some in every)
    shares = [[float(np.isfinite(one).mean()) for one in some] for some in (one.simulated, one.live)]
    found["answered, times"] = str(median_interval([a / b for a, b in zip(*shares, strict=True) if b], seed=seed))
    for name, figure in FIGURES.items():
        told = [f"{figure(some) * 1e3:.2f}" if len(some := answered(each)) else "-" for each in every]
        found[f"{name} ms"] = " / ".join(told)
    for name, figure in FIGURES.items():
        pairs = [(answered(a), answered(b)) for a, b in zip(one.simulated, one.live, strict=True)]
        ratios = [figure(a) / figure(b) for a, b in pairs if len(a) and len(b)]
        found[f"{name}, times"] = str(median_interval(ratios, seed=seed)) if ratios else ""
    return found


def answered(seconds: Figures) -> Figures:
    """Return the seconds of those that have an answer."""
    found: Figures = seconds[np.isfinite(seconds)]
    return found
