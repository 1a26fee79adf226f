"""What the door costs for tensors of several sizes: models that do next to nothing, behind the real port.

Checkouts of latebind are compared by giving their folders, the one to be compared with first. Each has a server of its
own, and calls to all take turns, so that whatever slows the machine slows them alike:

    python -m latebind.bench.door BEFORE AFTER
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from latebind.bench.client import Body, Caller, encode
from latebind.bench.server import serving
from latebind.bench.statistics import ratio_of_means
from latebind.program.build import build_program

SIZES = {"small": 3 * 1024, "large": 150 * 1024}  # float32 values of a row: 12 and 600 kB
ROUNDS = 40
ALONE = 30  # calls one after another on one connection, each round
CLIENTS = 4
SECONDS = 0.25  # in which all clients call as often as they can, each round

Seconds = NDArray[np.float64]


class Sum(nn.Module):
    """Reads its input once."""

    def forward(self, values: Tensor) -> Tensor:
        """Map `(B, N) float32` to `(B, 1) float32`."""
        return values.sum(dim=1, keepdim=True)


def run(checkouts: Sequence[Path], *, seed: int = 0) -> list[str]:
    """Return a line for each size and figure: the median of each checkout, and the last over the first."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        repository = Path(folder)
        for name, values in SIZES.items():
            build_program(
                Sum(),
                {"values": torch.zeros(2, values)},
                directory=repository / name / "1",
                name=name,
                backends=["eager"],
            )
        urls = [_served(stack, checkout, repository) for checkout in checkouts]
        for name, values in SIZES.items():
            row = np.random.default_rng(seed).standard_normal((1, values)).astype(np.float32)
            lines += _compared(urls, name, encode({"values": row}), seed)
    return lines


def _compared(urls: Sequence[str], model: str, body: Body, seed: int) -> list[str]:
    """Take turns between the servers and describe what a call took alone and among many."""
    alone: list[list[float]] = [[] for _ in urls]
    crowd: list[list[float]] = [[] for _ in urls]
    for number in range(-2, ROUNDS):  # two to warm up
        for side in Random(seed + number).sample(range(len(urls)), len(urls)):
            seconds, a_call = _alone(urls[side], model, body), _crowded(urls[side], model, body)
            if number >= 0:
                alone[side].append(seconds)
                crowd[side].append(a_call)
    return [
        _line(f"{len(body.data):,} bytes, {title}", [np.array(side) for side in figures], seed)
        for title, figures in (("one by one", alone), (f"{CLIENTS} clients", crowd))
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


def _line(title: str, sides: Sequence[Seconds], seed: int) -> str:
    figures = ", ".join(f"{np.median(side) * 1e3:.3f} ms ({1 / np.median(side):,.0f}/s)" for side in sides)
    return f"{title}: {figures}; last / first {ratio_of_means(sides[-1], sides[0], block=1, seed=seed)}"


def _served(stack: ExitStack, checkout: Path, repository: Path) -> str:
    """Start a server with the code of a checkout, wherever we run, and return its URL."""
    before = dict(os.environ)
    os.environ |= {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    try:
        return stack.enter_context(serving(repository, "--deadline-ms", "20000"))
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    print("\n".join(run([Path(argument).resolve() for argument in sys.argv[1:]])))
