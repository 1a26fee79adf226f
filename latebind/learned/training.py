"""Training several networks: side by side in processes of their own where that is faster, else one after another here.

A process imports torch before it can learn, and pays that only where there is much to learn: the pace of each network
is measured first. The threads of each training do not depend on where it runs, and so neither do its weights.
"""

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

import msgspec
import torch

from latebind.domain.errors import TrainingStopped
from latebind.learned.networks import make_predictor
from latebind.learned.train import BATCH, Lesson, PredictorTraining
from latebind.learned.trainer import Order, on_threads, train_network
from latebind.program.measure import time_call

STARTING_SECONDS = 6.0  # to have a process ready to learn while its siblings get ready too
READ_BYTES = 1 << 16

Tell = Callable[[dict[int, float]], None]  # what share of each order is done, by its place in the list


def side_by_side(networks: int) -> tuple[int, int]:
    """Return how many of so many trainings run at once on this machine, and the threads of each."""
    cores = len(os.sched_getaffinity(0))
    processes = max(1, min(networks, cores))
    return processes, cores // processes


def train_all(orders: Sequence[Order], seconds: Sequence[float], *, processes: int, tell: Tell) -> None:
    """Train what the orders ask for; `seconds` is what each is expected to take.

    Raises `TrainingStopped` if a process dies. What is trained is kept, whatever happens to the others.
    """
    saved = sum(seconds) - max(max(seconds, default=0.0), sum(seconds) / processes)
    if saved > STARTING_SECONDS:
        in_processes(orders, seconds, processes=processes, tell=tell)
    else:
        _here(orders, tell)


def seconds_a_batch(order: Order) -> float:
    """Measure what one step of this training takes, on noise."""
    rows = torch.randn(2 * BATCH, *order.shape).bfloat16()
    lesson = Lesson(rows, torch.randn(2 * BATCH, order.classes), None)
    with torch.random.fork_rng():
        predictor = make_predictor(order.shape, order.classes, order.kind)
    with on_threads(order.threads):
        time_call(PredictorTraining(predictor, lesson, passes=1, seed=0).learn)  # the first steps make room
        return time_call(PredictorTraining(predictor, lesson, passes=1, seed=0).learn) / 2


def _here(orders: Sequence[Order], tell: Tell) -> None:
    shares: dict[int, float] = {}

    def told(place: int) -> Callable[[float], None]:
        return lambda share: tell(shares | {place: share})

    for place, order in enumerate(orders):
        train_network(order, told(place))
        shares[place] = 1.0


def in_processes(orders: Sequence[Order], seconds: Sequence[float], *, processes: int, tell: Tell) -> None:
    """Train each in a process of its own, so many at once, the longest first; none outlives this one."""
    waiting = sorted(range(len(orders)), key=lambda place: seconds[place])
    shares: dict[int, float] = {}
    with ExitStack() as exit_, selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < processes:
                place = waiting.pop()
                trainer = _Trainer(place, orders[place])
                exit_.callback(trainer.end)
                selector.register(trainer.output, selectors.EVENT_READ, trainer)
            for key, _ in selector.select():
                trainer = key.data
                shares[trainer.place] = trainer.read()
                if trainer.closed:
                    selector.unregister(trainer.output)
                    trainer.check()
            tell(dict(shares))


@dataclass(slots=True)
class _Trainer:
    """One process that trains."""

    place: int
    order: Order
    share: float = 0.0
    closed: bool = False
    _errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _process: subprocess.Popen[bytes] = field(init=False)
    _rest: bytes = b""

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "latebind.learned.trainer", msgspec.json.encode(self.order).decode()],
            stdin=subprocess.PIPE,  # nothing is written: it tells the process that this one is still there
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for this process, which ends the others
        )

    @property
    def output(self) -> IO[bytes]:
        """What it writes."""
        assert self._process.stdout is not None
        return self._process.stdout

    def read(self) -> float:
        """Read what it has written and return what share is done."""
        data = os.read(self.output.fileno(), READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.closed = not data
        if lines:
            self.share = float(lines[-1])
        return self.share

    def check(self) -> None:
        """Wait for the end and raise `TrainingStopped` unless the network is trained."""
        code = self._process.wait()
        if code == 0:
            return
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        why = f"signal {-code}, perhaps for want of memory" if code < 0 else (said[-1] if said else f"exit code {code}")
        raise TrainingStopped(
            f"training {self.order.kind} behind stage {self.order.stage} ended early ({why}): "
            "what is trained is kept, run the same build again to go on"
        )

    def end(self) -> None:
        """Kill it if it still runs; what it has saved is whole."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                file.close()
