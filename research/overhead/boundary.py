"""Measures what a stage boundary costs while serving, and so how long a stage must be to be worth one.

The same network runs in two engines on one core: as a single stage, and cut wherever it can be. They are asked in turn,
one request after another, so no request joins or leaves a batch. The difference is what boundaries cost: the scheduler,
the driver, and one more call of the backend each.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from latebind.bench.server import cpu_seconds, pinned
from latebind.bench.statistics import median_interval
from latebind.bench.subject import Setting
from latebind.cli.console import Row, Rows
from latebind.domain.config import PolicyConfig
from latebind.program.build import MAX_OVERHEAD, build_program
from research.live import started
from research.sides import SLOTS, Side

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


def run(*, policies: tuple[str, ...], backend: str, setting: Setting, requests: int) -> Rows:
    """Measure the boundary under each policy."""
    images = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    with TemporaryDirectory() as root, pinned(setting.frontend_cores):
        for side, seconds in ((WHOLE, float("inf")), (CUT, 0.0)):
            build_program(
                Layers().eval(),
                {"image": images},
                directory=Path(root) / side / "1",
                name=side,
                backends=[backend],
                min_stage_seconds=seconds,
                max_overhead=None,
            )
        return [asyncio.run(_measure(Path(root), policy, setting, requests)) for policy in policies]


async def _measure(root: Path, policy: str, setting: Setting, requests: int) -> Row:
    """Return what a boundary takes in microseconds, by the clock and of all cores that the engine's process uses."""
    image = np.zeros((1, 8, 8, 8), np.float32)
    ran: dict[str, list[float]] = {WHOLE: [], CUT: []}
    used: dict[str, list[float]] = {WHOLE: [], CUT: []}
    async with AsyncExitStack() as stack:
        side = Side(policy, PolicyConfig(policy))
        own = replace(setting, backend=None)
        engines = {name: await started(stack, (root / name / "1",), side, own, slots=SLOTS) for name in ran}
        for _ in range((WARM_UP + requests) // BLOCK):
            for name, engine in engines.items():
                answers = [
                    await engine.infer(name, {"image": image}, deadline=time.monotonic() + 10.0) for _ in range(BLOCK)
                ]
                ran[name].append(median(answer.ran[0] for answer in answers))
                used[name].append(cpu_seconds(engine.process_id))
        stages = engines[CUT].models[CUT].stages
        more = stages - engines[WHOLE].models[WHOLE].stages
    skipped = WARM_UP // BLOCK
    differences = [(a - b) / more for a, b in zip(ran[CUT][skipped:], ran[WHOLE][skipped:], strict=True)]
    blocks = len(differences)
    cpu = [(some[-1] - some[-1 - blocks]) / (blocks * BLOCK * more) for some in (used[CUT], used[WHOLE])]
    seconds = median_interval(differences, seed=setting.seed)
    return {
        "policy": policy,
        "stages": f"{stages} against 1",
        "a boundary us": seconds.scaled(1e6).written(".1f"),
        "CPU us": f"{1e6 * (cpu[0] - cpu[1]):.1f}",
        f"{MAX_OVERHEAD:.0%} of a stage of ms": f"{seconds.value / MAX_OVERHEAD * 1e3:.2f}",
    }
