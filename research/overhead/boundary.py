"""Measures what a stage boundary costs while serving, and so how long a stage must be to be worth one.

The same network runs in two engines on one core: as a single stage, and cut wherever it can be. They are asked in turn,
one request after another, so no request joins or leaves a batch. The difference is what boundaries cost: the scheduler,
the driver, and one more call of the backend each.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from latebind.bench.server import pinned
from latebind.bench.statistics import Interval, median_interval
from latebind.bench.subject import Setting
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.program.build import build_program
from research.live.sides import begun

LAYERS = 16
BLOCK = 10  # requests of one side before it is the other's turn
WARM_UP = 100
WHOLE, CUT = "whole", "cut"


class Layers(nn.Module):
    """Small convolutions one after another: next to nothing to compute, cut points everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(LAYERS))

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 8, 8, 8)` to `(B, 8)`."""
        for layer in self.layers:
            image = layer(image).relu()
        return image.mean((2, 3))


@dataclass(frozen=True, slots=True)
class Boundary:
    """What one boundary costs, in seconds, under one policy; `stages` of the network that is cut.

    `cpu` are those of all cores that the engine's process has used, which count on a busy machine as well.
    """

    policy: str
    backend: str
    stages: int
    seconds: Interval
    cpu: float

    def microseconds(self) -> str:
        """Return the figure with its interval."""
        return self.seconds.scaled(1e6).written(".1f")

    def worth(self, share: float) -> float:
        """Return the seconds of a stage whose boundary takes this share of it."""
        return self.seconds.value / share


def run(*, policies: tuple[str, ...], backend: str, setting: Setting, requests: int = 2000) -> list[Boundary]:
    """Measure the boundary under each policy."""
    with TemporaryDirectory() as root, pinned(setting.door_cores):
        sides = {WHOLE: float("inf"), CUT: 0.0}
        paths = {side: _built(Path(root) / side, side, seconds, backend) for side, seconds in sides.items()}
        return [asyncio.run(_measure(paths, policy, backend, setting, requests)) for policy in policies]


def _built(folder: Path, name: str, min_stage_seconds: float, backend: str) -> Path:
    images = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    return build_program(
        Layers().eval(),
        {"image": images},
        directory=folder / "1",
        name=name,
        backends=[backend],
        min_stage_seconds=min_stage_seconds,
        max_overhead=None,
    ).directory.path


async def _measure(paths: dict[str, Path], policy: str, backend: str, setting: Setting, requests: int) -> Boundary:
    image = np.zeros((1, 8, 8, 8), np.float32)
    ran: dict[str, list[float]] = {side: [] for side in paths}
    used: dict[str, list[float]] = {side: [] for side in paths}
    async with AsyncExitStack() as stack:
        engines = {}
        for side, path in paths.items():
            config = EngineConfig(cores=(setting.engine_core,), exits=False)
            engines[side] = await begun(stack, EngineOrder((str(path),), config, PolicyConfig(policy)))
        for _ in range((WARM_UP + requests) // BLOCK):
            for side, engine in engines.items():
                answers = [
                    await engine.infer(side, {"image": image}, deadline=time.monotonic() + 10.0) for _ in range(BLOCK)
                ]
                ran[side].append(median(answer.ran[0] for answer in answers))
                used[side].append(_cpu(engine))
        stages = engines[CUT].models[CUT].stages
        more = stages - engines[WHOLE].models[WHOLE].stages
    skipped = WARM_UP // BLOCK
    differences = [(a - b) / more for a, b in zip(ran[CUT][skipped:], ran[WHOLE][skipped:], strict=True)]
    blocks = len(differences)
    cpu = [(some[-1] - some[-1 - blocks]) / (blocks * BLOCK * more) for some in (used[CUT], used[WHOLE])]
    return Boundary(policy, backend, stages, median_interval(differences, seed=setting.seed), cpu[0] - cpu[1])


def _cpu(engine: EngineClient) -> float:
    """Return the seconds of all cores that its process has used."""
    times = psutil.Process(engine.process_id).cpu_times()
    return float(times.user + times.system)
