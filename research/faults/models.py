"""Models that are quick, slow, or raise for some rows, and clients that record what became of each call."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import torch
from torch import Tensor, nn

from latebind.program.build import Progress, build_program, ignore_progress

WIDTH = 16
SLOW_WIDTH = 1024
PICKED = 4
PATIENCE = 20.0  # seconds after which a request counts as hanging
NO_ANSWER = 0


class Scale(nn.Module):
    """A model that multiplies its input by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH,), factor))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16) float32` to `(B, 16) float32`."""
        return x * self.weight


class Slow(nn.Module):
    """So many layers, each of which multiplies `repeats` rows by a square matrix."""

    def __init__(self, layers: int, repeats: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SLOW_WIDTH, SLOW_WIDTH) for _ in range(layers))
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, repeats))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1024) float32` to `(B, 1024) float32`."""
        for layer in self.layers:
            x = torch.tanh(layer(x[:, None, :] * self.factors[:, None]).mean(dim=1))
        return x


class Pick(nn.Module):
    """A model that raises for a row that asks for what is not there."""

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        """Map `(B, 16) float32` and places `(B, 4) int64` of it to the values there, `(B, 4) float32`."""
        return torch.gather(x, 1, i)


def build_mixed(root: Path) -> dict[str, nn.Module]:
    """Make four models, two quick, one slow, one that some rows make raise; return them by name."""
    torch.manual_seed(0)
    found: dict[str, nn.Module] = {"twice": Scale(2.0), "thrice": Scale(3.0), "slow": Slow(4, 64), "pick": Pick()}
    for name, module in found.items():
        width = SLOW_WIDTH if name == "slow" else WIDTH
        rows = {"x": torch.ones(1, width)}
        if name == "pick":
            rows["i"] = torch.zeros(1, PICKED, dtype=torch.int64)
        stage_bytes = 4 * SLOW_WIDTH * SLOW_WIDTH if name == "slow" else 0
        _build(module, rows, root / name / "1", name=name, max_batch=8, min_stage_bytes=stage_bytes)
    return found


def build_slow(root: Path, *, layers: int, repeats: int, progress: Progress = ignore_progress) -> None:
    """Make the model `slow`, which takes one row at a time; it is run some fifty times, to measure its stages.

    Each layer is a stage, so that all stages take about as long.
    """
    torch.manual_seed(0)
    _build(
        Slow(layers, repeats),
        {"x": torch.ones(1, SLOW_WIDTH)},
        root / "slow" / "1",
        name="slow",
        max_batch=1,
        min_stage_bytes=4 * SLOW_WIDTH * SLOW_WIDTH,
        progress=progress,
    )


def _build(
    module: nn.Module,
    rows: dict[str, Tensor],
    directory: Path,
    *,
    name: str,
    max_batch: int,
    min_stage_bytes: int = 0,
    progress: Progress = ignore_progress,
) -> None:
    build_program(
        module.eval(),
        rows,
        directory=directory,
        name=name,
        backends=["eager"],
        max_batch=max_batch,
        max_overhead=None,
        min_stage_bytes=min_stage_bytes,
        progress=progress,
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it was sent and had ended (`time.monotonic()`), and its HTTP status, 0 where none came.

    Of an answer how many stages the model has.
    """

    sent: float
    ended: float
    status: int
    stages: int = 0


class Clients:
    """Send requests for one model, each of one row of ones."""

    def __init__(self, session: aiohttp.ClientSession, model: str, width: int = WIDTH) -> None:
        self._session = session
        self._path = f"/v2/models/{model}/infer"
        tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width}
        self._body = json.dumps({"inputs": [tensor], "parameters": {"timeout": round(PATIENCE * 1e6)}}).encode()

    async def ask(self) -> Asked:
        """Send one request; returns whatever comes of it."""
        sent = time.monotonic()
        try:
            async with self._session.post(self._path, data=self._body) as response:
                reply = await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return Asked(sent, time.monotonic(), NO_ANSWER)
        if response.status != 200:
            return Asked(sent, time.monotonic(), response.status)
        return Asked(sent, time.monotonic(), 200, reply["parameters"]["stages"])


@asynccontextmanager
async def session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to a server, as many as are wanted."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as opened:
        yield opened
