"""What the door costs for tensors of several sizes: models that do next to nothing, behind the real port.

Checkouts of latebind can be compared. Each has a server of its own, and calls to all take turns, so that whatever slows
the machine slows them alike.
"""

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor, nn

from latebind.bench.client import Body, Caller, encode
from latebind.bench.server import serving
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.program.build import build_program

SIZES = {"small": 3 * 1024, "large": 150 * 1024}  # float32 values of a row: 12 and 600 kB
WARM_UP = 2  # rounds
ALONE = 30  # calls one after another on one connection, each round
CLIENTS = 4
SECONDS = 0.25  # in which all clients call as often as they can, each round


class Sum(nn.Module):
    """Reads its input once."""

    def forward(self, values: Tensor) -> Tensor:
        """Map `(B, N) float32` to `(B, 1) float32`."""
        return values.sum(dim=1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds a call of every round, for each checkout in the order given; `ratio` is the last over the first."""

    title: str
    seconds: list[list[float]]
    ratio: Interval

    def row(self) -> dict[str, object]:
        """Return the figure as a row of a table."""
        sides = [float(np.median(side)) for side in self.seconds]
        return {
            "call": self.title,
            "ms": ", ".join(f"{side * 1e3:.3f}" for side in sides),
            "per s": ", ".join(f"{1 / side:,.0f}" for side in sides),
            "last / first": str(self.ratio),
        }


def run(checkouts: Sequence[Path], *, rounds: int = 40, seed: int = 0) -> list[Figure]:
    """Return figures of each size, alone and among many, with the server of each of these folders."""
    figures = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for name, values in SIZES.items():
            example = {"values": torch.zeros(2, values)}
            build_program(Sum(), example, directory=Path(folder) / name / "1", name=name, backends=["eager"])
        urls = [_served(stack, checkout, Path(folder)) for checkout in checkouts]
        for name, values in SIZES.items():
            row = np.random.default_rng(seed).standard_normal((1, values)).astype(np.float32)
            figures += _compared(urls, name, encode({"values": row}), rounds, seed)
    return figures


def _compared(urls: Sequence[str], model: str, body: Body, rounds: int, seed: int) -> list[Figure]:
    """Take turns between the servers: what a call takes alone, and among many."""
    alone: list[list[float]] = [[] for _ in urls]
    crowd: list[list[float]] = [[] for _ in urls]
    for number in range(-WARM_UP, rounds):
        for side in Random(seed + number).sample(range(len(urls)), len(urls)):
            one, many = _alone(urls[side], model, body), _crowded(urls[side], model, body)
            if number >= 0:
                alone[side].append(one)
                crowd[side].append(many)
    size = f"{len(body.data):,} bytes"
    return [
        Figure(
            f"{size}, {title}", seconds, ratio_of_means(np.array(seconds[-1]), np.array(seconds[0]), block=1, seed=seed)
        )
        for title, seconds in (("one by one", alone), (f"{CLIENTS} clients", crowd))
    ]


def _alone(url: str, model: str, body: Body) -> float:
    """Return the median seconds of calls one after another."""
    caller = Caller(url, model)
    seconds = [caller(body).seconds for _ in range(ALONE)]
    caller.close()
    return float(np.median(seconds))


def _crowded(url: str, model: str, body: Body) -> float:
    """Return seconds over calls while several clients call as often as they can."""
    end, calls = time.perf_counter() + SECONDS, [0] * CLIENTS

    def client(number: int) -> None:
        caller = Caller(url, model)
        while time.perf_counter() < end:
            assert caller(body).status == 200
            calls[number] += 1
        caller.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begun) / sum(calls)


def _served(stack: ExitStack, checkout: Path, repository: Path) -> str:
    """Start a server with the code of a checkout, wherever we run, and return its URL."""
    before = dict(os.environ)
    os.environ |= {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    try:
        return stack.enter_context(serving(repository, "--deadline-ms", "20000"))
    finally:
        os.environ.clear()
        os.environ.update(before)
