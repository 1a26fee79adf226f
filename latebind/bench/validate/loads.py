"""The loads of `bench joint`, validated: models and policies on engines of their own, then the same simulated."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from latebind.bench.client import Array
from latebind.bench.exits import Setting
from latebind.bench.live.played import Seconds
from latebind.bench.server import pinned
from latebind.bench.spread import Progress, spread
from latebind.bench.validate.live import Plan, Played, Visit, play
from latebind.bench.validate.report import Load, Round
from latebind.bench.validate.simulated import simulated

RUNS = 3  # of each round on the virtual clock

Rows = Mapping[str, Sequence[Mapping[str, Array]]]


def run(
    paths: Mapping[str, Path], policies: Sequence[str], rows: Rows, plan: Plan, setting: Setting, tell: Progress
) -> list[Load]:
    """Play to engines, then on the virtual clock; a round of a load is a visit."""
    with pinned(setting.door_cores):
        played = asyncio.run(play(paths, policies, rows, plan, setting, tell))
    found = spread(
        partial(_simulated, seed=setting.seed), played, name=lambda one: f"simulating {one.policy}", progress=tell
    )
    return [
        Load(one.model, one.policy, [_round(visit, runs) for visit, runs in zip(one.visits, every, strict=True)])
        for one, every in zip(played, found, strict=True)
    ]


def _simulated(played: Played, seed: int) -> list[list[list[Seconds]]]:
    return simulated(played, seed, times=RUNS)


def _round(visit: Visit, runs: Sequence[Sequence[Seconds]]) -> Round:
    live = np.array([one.seconds for block in visit.blocks for one in block])
    return Round(live, [np.concatenate(blocks) for blocks in runs])
