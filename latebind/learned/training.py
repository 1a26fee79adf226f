"""Training several networks: side by side in processes of their own where that is faster, else one after another here.

Processes are forked, with torch in them; what that and the way back take is only worth it where there is something to
learn, so the pace of each network is measured first. The threads of each training do not depend on where it runs, and
so neither do its weights.
"""

import os
import selectors
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import InitVar, dataclass, field
from typing import IO

import msgspec
import torch

from latebind.domain.errors import TrainingStopped
from latebind.forks.client import Forked, ForkServer
from latebind.learned.networks import make_predictor
from latebind.learned.train import BATCH, Lesson, PredictorTraining
from latebind.learned.trainer import Order, on_threads, train_network
from latebind.program.measure import time_call

STARTING_SECONDS = 1.0  # that a process takes until it learns, and its siblings with it
PROCESS, NAME = "latebind.learned.trainer", "latebind-train"  # its module, and what `top` calls it
READ_BYTES = 1 << 16

Tell = Callable[[dict[int, float]], None]  # what share of each order is done, by its place in the list


def side_by_side(networks: int) -> tuple[int, int]:
    """Return how many of so many trainings run at once on this machine, and the threads of each."""
    cores = len(os.sched_getaffinity(0))
    processes = max(1, min(networks, cores))
    return processes, cores // processes


def train_all(
    orders: Sequence[Order], seconds: Sequence[float], *, forks: ForkServer, processes: int, tell: Tell
) -> None:
    """Train what the orders ask for; `seconds` is what each is expected to take.

    Raises `TrainingStopped` if a process dies. What is trained is kept, whatever happens to the others.
    """
    saved = sum(seconds) - max(max(seconds, default=0.0), sum(seconds) / processes)
    if saved > STARTING_SECONDS:
        in_processes(orders, seconds, forks=forks, processes=processes, tell=tell)
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


def in_processes(
    orders: Sequence[Order], seconds: Sequence[float], *, forks: ForkServer, processes: int, tell: Tell
) -> None:
    """Train each in a process of its own, so many at once, the longest first; none outlives this one."""
    waiting = sorted(range(len(orders)), key=lambda place: seconds[place])
    shares: dict[int, float] = {}
    with ExitStack() as exit_, selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < processes:
                place = waiting.pop()
                trainer = _Trainer(place, orders[place], forks)
                exit_.callback(trainer.end)
                selector.register(trainer.output, selectors.EVENT_READ, trainer)
                shares[place] = 0.0
                tell(dict(shares))  # until it says something itself, a process that begins looks like one that waits
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
    forks: InitVar[ForkServer]
    share: float = 0.0
    closed: bool = False
    output: int = field(init=False)  # what it writes, a descriptor
    _here: int = field(init=False)  # nothing is written: it tells the process that this one is still there
    _errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _process: Forked = field(init=False)
    _rest: bytes = b""

    def __post_init__(self, forks: ForkServer) -> None:
        theirs, self._here = os.pipe()
        self.output, written = os.pipe()
        words = [msgspec.json.encode(self.order).decode()]
        try:
            standard = (theirs, written, self._errors.fileno())
            self._process = forks.fork(PROCESS, words, name=NAME, standard=standard)
        finally:
            os.close(theirs)
            os.close(written)

    def read(self) -> float:
        """Read what it has written and return what share is done."""
        data = os.read(self.output, READ_BYTES)
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
        self._errors.close()
        os.close(self.output)
        os.close(self._here)
