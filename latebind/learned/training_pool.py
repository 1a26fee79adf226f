"""Trains several networks: in parallel processes where that is faster, else one after another in this process.

Processes are forked with torch already imported. Starting them only pays for long trainings, so the pace of each
network is measured first. Each training has the same number of threads wherever it runs, and so the same weights.
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
from latebind.learned.training_process import TrainingJob, on_threads, train_network
from latebind.program.measure import time_call

STARTING_SECONDS = 1.0  # until training processes that start together have begun to learn
PROCESS, NAME = "latebind.learned.training_process", "latebind-train"  # its module, and what `top` calls it
READ_BYTES = 1 << 16

Tell = Callable[[dict[int, float]], None]  # takes the share of each job that is done, by its index in the list


def side_by_side(networks: int) -> tuple[int, int]:
    """Return how many of this many trainings run at once on this machine, and the threads of each."""
    cores = len(os.sched_getaffinity(0))
    processes = max(1, min(networks, cores))
    return processes, cores // processes


def train_all(
    jobs: Sequence[TrainingJob], seconds: Sequence[float], *, forks: ForkServer, processes: int, tell: Tell
) -> None:
    """Train the networks of all jobs; `seconds` has the expected duration of each.

    Raises `TrainingStopped` if a process dies. Networks that are trained are kept, whatever happens to the others.
    """
    saved = sum(seconds) - max(max(seconds, default=0.0), sum(seconds) / processes)
    if saved > STARTING_SECONDS:
        in_processes(jobs, seconds, forks=forks, processes=processes, tell=tell)
    else:
        _in_this_process(jobs, tell)


def seconds_a_batch(job: TrainingJob) -> float:
    """Measure the seconds of one training step, on noise."""
    rows = torch.randn(2 * BATCH, *job.shape).bfloat16()
    lesson = Lesson(rows, torch.randn(2 * BATCH, job.classes), None)
    with torch.random.fork_rng():
        predictor = make_predictor(job.shape, job.classes, job.kind)
    with on_threads(job.threads):
        time_call(PredictorTraining(predictor, lesson, passes=1, seed=0).learn)  # the first steps allocate memory
        return time_call(PredictorTraining(predictor, lesson, passes=1, seed=0).learn) / 2


def _in_this_process(jobs: Sequence[TrainingJob], tell: Tell) -> None:
    shares: dict[int, float] = {}

    def tell_of(place: int) -> Callable[[float], None]:
        return lambda share: tell(shares | {place: share})

    for place, job in enumerate(jobs):
        train_network(job, tell_of(place))
        shares[place] = 1.0


def in_processes(
    jobs: Sequence[TrainingJob], seconds: Sequence[float], *, forks: ForkServer, processes: int, tell: Tell
) -> None:
    """Train each job in a process of its own, `processes` at a time, the longest first; none outlives this process."""
    waiting = sorted(range(len(jobs)), key=lambda place: seconds[place])
    shares: dict[int, float] = {}
    with ExitStack() as exit_, selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < processes:
                place = waiting.pop()
                trainer = _TrainingProcess(place, jobs[place], forks)
                exit_.callback(trainer.end)
                selector.register(trainer.output, selectors.EVENT_READ, trainer)
                shares[place] = 0.0
                tell(dict(shares))  # a process that has begun is told of at once, before it reports itself
            for key, _ in selector.select():
                trainer = key.data
                shares[trainer.place] = trainer.read()
                if trainer.closed:
                    selector.unregister(trainer.output)
                    trainer.check()
            tell(dict(shares))


@dataclass(slots=True)
class _TrainingProcess:
    """One training process, as its parent sees it."""

    place: int
    job: TrainingJob
    forks: InitVar[ForkServer]
    share: float = 0.0
    closed: bool = False
    output: int = field(init=False)  # descriptor of the pipe that it writes its progress to
    _alive: int = field(init=False)  # a pipe's end that is only held open: when it closes, the process ends itself
    _errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _process: Forked = field(init=False)
    _rest: bytes = b""

    def __post_init__(self, forks: ForkServer) -> None:
        theirs, self._alive = os.pipe()
        self.output, written = os.pipe()
        words = [msgspec.json.encode(self.job).decode()]
        try:
            standard = (theirs, written, self._errors.fileno())
            self._process = forks.fork(PROCESS, words, name=NAME, standard=standard)
        finally:
            os.close(theirs)
            os.close(written)

    def read(self) -> float:
        """Read what it has written and return the share that is done."""
        data = os.read(self.output, READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.closed = not data
        if lines:
            self.share = float(lines[-1])
        return self.share

    def check(self) -> None:
        """Wait for its end; raise `TrainingStopped` unless the network is trained."""
        code = self._process.wait()
        if code == 0:
            return
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        why = f"signal {-code}, perhaps for want of memory" if code < 0 else (said[-1] if said else f"exit code {code}")
        raise TrainingStopped(
            f"training {self.job.kind} behind stage {self.job.stage} ended early ({why}): "
            "what is trained is kept, run the same build again to go on"
        )

    def end(self) -> None:
        """Kill it if it still runs; files are written atomically, so what it has saved is complete."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
        os.close(self.output)
        os.close(self._alive)
