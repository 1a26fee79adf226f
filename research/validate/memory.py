"""Validates the load of `python -m research residency-live`: more models than memory holds, live and simulated."""

import asyncio
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np

from latebind.bench.rounds import Progress
from latebind.engine.client import EngineClient
from latebind.simulation.traces import drawn
from research.live.requests import Visit
from research.mcache.live import trace
from research.mcache.live.sides import LATE, LRU, SIDES, Setting, order
from research.mcache.live.zoo import Zoo, made_up
from research.validate.client import Clients
from research.validate.counts import average
from research.validate.live import Played
from research.validate.loads import round_of
from research.validate.logged import Logged, check_can_replay
from research.validate.report import Load
from research.validate.simulated import simulated

RUNS = 5  # on the virtual clock


@dataclass(frozen=True, slots=True)
class Plan:
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

    @property
    def stretches(self) -> list[tuple[float, float]]:
        """When calibrations and blocks, in turn, begin and end."""
        lengths = [self.calibration, *(self.seconds, self.calibration) * self.rounds * self.blocks]
        return list(pairwise(np.cumsum([0.0, *lengths]).tolist()))


def run(zoo: Zoo, plan: Plan, setting: Setting, tell: Progress) -> list[Load]:
    """Play the same requests to an engine for each side, then on the virtual clock."""
    check_can_replay()
    found = []
    for number, side in enumerate(plan.sides):
        tell(f"{side}, {plan.stretches[-1][1]:g} s", number / len(plan.sides))
        played = asyncio.run(_play(zoo, side, plan, setting))
        ((visit,),) = (played.visits,)
        (runs,) = simulated(played, plan.seed, times=RUNS)
        firsts = range(0, len(visit.blocks), plan.blocks)
        rounds = [round_of(visit, runs, slice(first, first + plan.blocks)) for first in firsts]
        did, would = played.log.counts(visit.sent), average([run.counts for run in runs])
        found.append(Load(f"{len(zoo.models)} models", f"memory by {side}", rounds, did, would))
    return found


async def _play(zoo: Zoo, side: str, plan: Plan, setting: Setting) -> Played:
    """Start an engine with none of the models' files in the page cache, and play all stretches to it."""
    zoo.drop_cached()
    names = list(zoo.models)
    with tempfile.TemporaryDirectory(prefix="latebind-validate-") as folder:
        log = Path(folder) / "log.jsonl"
        told = order(zoo, names, SIDES[side], round(plan.share * zoo.size), setting)
        engine = await EngineClient.start(replace(told, event_log=str(log)))
        try:
            clients = Clients(engine, {name: made_up(zoo.models[name].spec, Random(plan.seed)) for name in names})
            sent = [await clients.play(calls) for calls in stretches(zoo, plan)]
        finally:
            await engine.close()
        return Played("", side, [Visit(sent[::2], sent[1::2])], Logged.read(log))


def stretches(zoo: Zoo, plan: Plan) -> list[list[tuple[float, str]]]:
    """Return the calls of calibrations and blocks in turn, each with its seconds since its stretch began."""
    whole = trace.Plan(
        tuple(drawn(Random(0))), speed=plan.speed, seconds=plan.stretches[-1][1], warm_up=0.0, seed=plan.seed
    )
    requests = trace.requests_of(whole, zoo.slowest_first, 0)
    return [
        [(one.time - begun, one.model) for one in requests if begun <= one.time < ended]
        for begun, ended in plan.stretches
    ]
