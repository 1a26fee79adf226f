"""Validates the loads of `python -m research joint`: models and policies on engines, then the same simulated."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from latebind.bench.client import Array
from latebind.bench.rounds import Progress, in_parallel
from latebind.bench.server import pinned
from latebind.bench.subject import Setting
from research.live.requests import Visit
from research.validate.counts import average, summed
from research.validate.live import Plan, Played, play
from research.validate.report import Load, Round
from research.validate.simulated import Run, simulated

RUNS = 3  # of each round on the virtual clock

Rows = Mapping[str, Sequence[Mapping[str, Array]]]


def run(
    paths: Mapping[str, Path], policies: Sequence[str], rows: Rows, plan: Plan, setting: Setting, tell: Progress
) -> list[Load]:
    """Play to engines, then on the virtual clock; a round of a load is a visit."""
    with pinned(setting.door_cores):
        played = asyncio.run(play(paths, policies, rows, plan, setting, tell))
    found = in_parallel(
        partial(_simulated, seed=setting.seed), played, name=lambda one: f"simulating {one.policy}", progress=tell
    )
    return [load_of(one, runs) for one, runs in zip(played, found, strict=True)]


def load_of(played: Played, every: Sequence[Sequence[Run]]) -> Load:
    """Return live and simulated visits, each of them a round."""
    rounds = [round_of(visit, runs) for visit, runs in zip(played.visits, every, strict=True)]
    did = summed([played.log.counts(visit.sent) for visit in played.visits])
    would = summed([average([run.counts for run in runs]) for runs in every])
    return Load(played.model, played.policy, rounds, did, would)


def _simulated(played: Played, seed: int) -> list[list[Run]]:
    return simulated(played, seed, times=RUNS)


def round_of(visit: Visit, runs: Sequence[Run], blocks: slice = slice(None)) -> Round:
    """Return some blocks of a visit as one round."""
    live = np.array([one.seconds for block in visit.blocks[blocks] for one in block])
    return Round(live, [np.concatenate(run.blocks[blocks]) for run in runs])
