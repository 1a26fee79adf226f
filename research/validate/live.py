"""Plays blocks of requests to live engines, with calibrations around them: models and policies, or a shared memory.

Every model has an engine for each policy, all on the same core, visited in turn. Where models share a memory, an engine
for each side plays a trace that is drawn.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from random import Random

import numpy as np

from latebind.bench.client import during, rising
from latebind.bench.rounds import Progress, in_parallel, in_rounds
from latebind.bench.server import pinned
from latebind.bench.subject import Setting
from latebind.domain.config import PolicyConfig
from latebind.engine.client import EngineClient
from research.live import WAITING, Asked, Rows, started
from research.mcache import live as memory
from research.mcache.traces import drawn
from research.mcache.zoo import LATE, LRU, SIDES, Zoo, order
from research.mcache.zoo import Setting as MemorySetting
from research.requests import PATIENCE, Sent, Visit
from research.sides import Side, graph
from research.validate.logged import NOTHING, Logged, average, check_can_replay
from research.validate.report import Load, Round
from research.validate.simulated import Played, Run, simulated

WARM_UP = 0.3  # seconds
SATURATED = 0.25  # seconds
RUNS, RUNS_IN_MEMORY = 3, 5  # of each round on the virtual clock
POLICIES = {name: Side(name, PolicyConfig(name), exits=True) for name in ("late", "lazy+", "graph")}
POLICIES["serial"] = Side("serial", graph(1, shed=True), exits=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """`load` is a multiple of what a policy answers at most, `deadline` of what a request takes alone.

    Each round visits every engine for so many `blocks` of `seconds`, with `calibration` seconds before and after each:
    a machine that others share changes its pace within seconds.
    """

    load: float = 0.7
    deadline: float = 10.0
    rounds: int = 5
    blocks: int = 5
    seconds: float = 0.6
    calibration: float = 0.4


@dataclass(slots=True)
class Engine:
    """One running engine."""

    model: str
    policy: str
    asked: Asked
    waiting: int
    log: Path
    visits: list[Visit] = field(default_factory=list)

    async def visit(self, plan: Plan, random: Random) -> None:
        """Calibrate, play and calibrate again, at what it answers now."""
        alone, most = 1.0 / await self.rate(SATURATED, 1), await self.rate(SATURATED, self.waiting)
        rate, allowed = plan.load * most, plan.deadline * alone
        calibrations, blocks = [await self._play(rising(plan.calibration, rate, random), allowed)], []
        for _ in range(plan.blocks):
            blocks.append(await self._play(during(plan.seconds, rate, random), allowed))
            calibrations.append(await self._play(rising(plan.calibration, rate, random), allowed))
        self.visits.append(Visit(calibrations, blocks))

    async def rate(self, seconds: float, waiting: int) -> float:
        """Return the answers a second while so many requests are always under way."""
        begun = time.monotonic()
        calls = await self.asked.crowd([repeat(self.model)] * waiting, seconds)
        return len(calls) / (time.monotonic() - begun)

    async def _play(self, times: Sequence[float], allowed: float) -> list[Sent]:
        calls = await self.asked.play([(at, self.model) for at in times], allowed=allowed)
        return [call.sent for call in calls]


def loads(
    paths: Mapping[str, Path],
    policies: Sequence[str],
    rows: Mapping[str, Rows],
    plan: Plan,
    setting: Setting,
    tell: Progress,
) -> list[Load]:
    """Play to an engine of each model and policy, then on the virtual clock; a round of a load is a visit."""
    check_can_replay()
    with pinned(setting.frontend_cores):
        played = asyncio.run(_visited(paths, policies, rows, plan, setting, tell))
    simulate = partial(simulated, seed=setting.seed, times=RUNS)
    found = in_parallel(simulate, played, name="simulating {0.policy}".format, progress=tell)
    return [load_of(one, runs) for one, runs in zip(played, found, strict=True)]


async def _visited(
    paths: Mapping[str, Path],
    policies: Sequence[str],
    rows: Mapping[str, Rows],
    plan: Plan,
    setting: Setting,
    tell: Progress,
) -> list[Played]:
    """Start an engine for each model and policy and visit them in as many rounds as planned, each in another order."""
    random = Random(setting.seed)
    with tempfile.TemporaryDirectory(prefix="latebind-validate-") as folder:
        async with AsyncExitStack() as stack:
            every = []
            for number, (model, policy) in enumerate((model, policy) for model in paths for policy in policies):
                log = Path(folder) / f"{number}.jsonl"
                client = await started(stack, (paths[model],), POLICIES[policy], setting, log=log)
                waiting = WAITING * POLICIES[policy].largest_batch(client.models[model])
                waiting = 1 if policy == "serial" else waiting
                engine = Engine(model, policy, Asked(client, rows), waiting, log)
                await engine.rate(WARM_UP, waiting)
                every.append(engine)
            for number in in_rounds(plan.rounds):
                for at, engine in enumerate(random.sample(every, len(every))):
                    tell(f"{engine.model}, {engine.policy}", (number + at / len(every)) / plan.rounds)
                    await engine.visit(plan, random)
        return [Played(one.model, one.policy, one.visits, Logged.read(one.log)) for one in every]


def load_of(played: Played, every: Sequence[Sequence[Run]]) -> Load:
    """Return live and simulated visits, each of them a round."""
    rounds = [round_of(visit, runs) for visit, runs in zip(played.visits, every, strict=True)]
    did = sum([played.log.counts(visit.sent) for visit in played.visits], start=NOTHING)
    would = sum([average([run.counts for run in runs]) for runs in every], start=NOTHING)
    return Load(played.model, played.policy, rounds, did, would)


def round_of(visit: Visit, runs: Sequence[Run], blocks: slice = slice(None)) -> Round:
    """Return some blocks of a visit as one round."""
    live = np.array([one.seconds for block in visit.blocks[blocks] for one in block])
    return Round(live, [np.concatenate(run.blocks[blocks]) for run in runs])


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Models may take `share` of what all take; `sides` are those of `python -m research residency-live`.

    A trace that is drawn is played at `speed`: in each round so many `blocks` of `seconds`, with `calibration` seconds
    of it before and after each. With blocks of 6 s between calibrations of 3 a busy machine was another one in between.
    """

    share: float = 0.5
    speed: float = 45.0
    rounds: int = 5
    blocks: int = 3
    seconds: float = 2.0
    calibration: float = 1.0
    sides: tuple[str, ...] = (LATE, LRU)
    seed: int = 0

    def stretches(self, zoo: Zoo) -> list[list[tuple[float, str]]]:
        """Return the calls of calibrations and blocks in turn, each with its seconds since its stretch began."""
        lengths = [self.calibration, *(self.seconds, self.calibration) * self.rounds * self.blocks]
        bounds = np.cumsum([0.0, *lengths]).tolist()
        services = tuple(drawn(Random(0)))
        plan = memory.Plan(services, speed=self.speed, seconds=bounds[-1], warm_up=0.0, seed=self.seed)
        requests = plan.requests(zoo.slowest_first, 0)
        return [
            [(one.time - begun, one.model) for one in requests if begun <= one.time < ended]
            for begun, ended in pairwise(bounds)
        ]


def in_memory(zoo: Zoo, plan: MemoryPlan, setting: MemorySetting, tell: Progress) -> list[Load]:
    """Play the same requests to an engine for each side, then on the virtual clock."""
    check_can_replay()
    found = []
    for number, side in enumerate(plan.sides):
        tell(side, number / len(plan.sides))
        played = asyncio.run(_played(zoo, side, plan, setting))
        ((visit,),) = (played.visits,)
        (runs,) = simulated(played, plan.seed, times=RUNS_IN_MEMORY)
        firsts = range(0, len(visit.blocks), plan.blocks)
        rounds = [round_of(visit, runs, slice(first, first + plan.blocks)) for first in firsts]
        did, would = played.log.counts(visit.sent), average([run.counts for run in runs])
        found.append(Load(f"{len(zoo.models)} models", f"memory by {side}", rounds, did, would))
    return found


async def _played(zoo: Zoo, side: str, plan: MemoryPlan, setting: MemorySetting) -> Played:
    """Start an engine with none of the models' files in the page cache, and play all stretches to it."""
    zoo.drop_cached()
    names = list(zoo.models)
    with tempfile.TemporaryDirectory(prefix="latebind-validate-") as folder:
        log = Path(folder) / "log.jsonl"
        told = order(zoo, names, SIDES[side], round(plan.share * zoo.size), setting)
        engine = await EngineClient.start(replace(told, event_log=str(log)))
        try:
            asked = Asked(engine, {name: Rows.made_up(zoo.models[name].spec, Random(plan.seed)) for name in names})
            calls = [await asked.play(some, allowed=PATIENCE) for some in plan.stretches(zoo)]
            sent = [[call.sent for call in some] for some in calls]
        finally:
            await engine.close()
        return Played("", side, [Visit(sent[::2], sent[1::2])], Logged.read(log))
