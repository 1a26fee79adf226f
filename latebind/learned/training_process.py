"""Trains one network from recorded activations and keeps it on disk; goes on from a checkpoint if it was killed.

Also the main function of the processes that `training_pool` forks.
"""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.exploration_folder import ExplorationFolder
from latebind.learned.head import Selector
from latebind.learned.networks import Predictor, make_predictor
from latebind.learned.recorded import Recorded, load_recorded
from latebind.learned.train import DISTILLATION, PredictorTraining, predict, selector_steps, train_selector
from latebind.repository.directory import write_bytes
from latebind.repository.tensors import tensor_bytes

MOST_PASSES = 40
LESSON_ROWS = 5_000  # unseen rows whose features are kept for adaptation
CHECKPOINT_SECONDS = 30.0
PREDICTOR, SELECTOR = "predictor.", "selector."
FEATURES, ANSWERS, CLASSES = "features", "answers", "classes"

Tell = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One network to train, from activations in `folder`. `stage` is only for messages: it may differ the next time."""

    folder: str
    boundary: str
    stage: int
    kind: str
    shape: tuple[int, ...]
    classes: int
    seed: int
    presentations: int
    threads: int
    distillation: float = DISTILLATION
    checkpoint_seconds: float = CHECKPOINT_SECONDS


@dataclass(frozen=True, slots=True)
class Network:
    """A trained predictor and selector, and the features of rows that the predictor has not seen, for adaptation.

    `features` are `(N, width) bfloat16`, `answers` of the base model `(N, classes) bfloat16`, `classes` `(N,) int64`.
    The rows are the same for all networks, except that some may have only the first of them.
    """

    predictor: Predictor
    selector: Selector
    features: Tensor
    answers: Tensor
    classes: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be written."""
        found = {PREDICTOR + name: tensor for name, tensor in self.predictor.state_dict().items()}
        found |= {SELECTOR + name: tensor for name, tensor in self.selector.state_dict().items()}
        return {**found, FEATURES: self.features, ANSWERS: self.answers, CLASSES: self.classes}


def kept_network(job: TrainingJob) -> Network | None:
    """Return the network of a job, or None if it is not trained yet."""
    tensors = ExplorationFolder(Path(job.folder)).network(job.boundary, job.kind)
    if tensors is None:
        return None
    predictor, selector = _untrained(job)
    predictor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module, start in ((predictor, PREDICTOR), (selector, SELECTOR)):
        module.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
        module.eval()
    return Network(predictor, selector, *(tensors[name] for name in (FEATURES, ANSWERS, CLASSES)))


def train_network(job: TrainingJob, tell: Tell) -> None:
    """Train the network of a job and keep it; `tell` is called with the share that is done, earlier runs included.

    The weights are bit for bit the same for the same job, however often it was interrupted and in whatever process.
    Raises `ConfigError` if the activations are not recorded.
    """
    exploration = ExplorationFolder(Path(job.folder))
    rows = load_recorded(exploration.activations(job.boundary), job.shape)
    if rows is None:
        raise ConfigError(f"{job.folder} has no activations of {job.boundary!r}: run the build again")
    predictor, selector = _untrained(job)
    drawn = _seed_of(job)
    passes = passes_over(rows.learn, job.presentations)
    training = PredictorTraining(predictor, rows.seen(), passes=passes, seed=drawn, distillation=job.distillation)
    saver = _Saver(training, exploration.checkpoint(job.boundary, job.kind), job.checkpoint_seconds, tell)
    saver.restore()
    with on_threads(job.threads):
        training.learn(saver)
        network = _with_selector(predictor, selector, rows, seed=drawn, steps=selector_steps(job.presentations))
    exploration.keep_network(job.boundary, job.kind, network.tensors())


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Let torch use this many threads inside the block: with another number, sums round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def passes_over(rows: int, presentations: int) -> int:
    """Return the number of passes over `rows` rows that shows about `presentations` in all."""
    return max(1, min(MOST_PASSES, round(presentations / rows)))


@dataclass(slots=True)
class _Saver:
    """Writes a checkpoint of a training from time to time; a kill leaves the last one or the one before it."""

    training: PredictorTraining
    path: Path
    seconds: float
    tell: Tell
    saved: float = field(default_factory=time.monotonic)

    def __call__(self, share: float) -> None:
        if time.monotonic() - self.saved >= self.seconds:
            write_bytes(self.path, tensor_bytes(self.training.state()), ending=str(os.getpid()))
            self.saved = time.monotonic()
        self.tell(share)

    def restore(self) -> None:
        """Go on from the checkpoint; one that cannot be read, or is of other rows, is ignored."""
        try:
            state = load_file(self.path)
        except (OSError, SafetensorError):
            return
        self.training.restore(state)


def _with_selector(predictor: Predictor, selector: Selector, rows: Recorded, *, seed: int, steps: int) -> Network:
    unseen = rows.unseen()
    predicted = predict(predictor, unseen.activations)
    classes = unseen.answers.argmax(dim=1)
    generator = torch.Generator().manual_seed(seed)
    train_selector(selector, predicted, predicted.argmax(dim=1) == classes, generator=generator, steps=steps)
    kept = slice(0, LESSON_ROWS)
    features = predict(predictor.features, unseen.activations[kept])
    return Network(predictor, selector, features.bfloat16(), unseen.answers[kept].bfloat16(), classes[kept])


def _untrained(job: TrainingJob) -> tuple[Predictor, Selector]:
    with torch.random.fork_rng():
        torch.manual_seed(job.seed)
        predictor = make_predictor(job.shape, job.classes, job.kind)
        torch.manual_seed(job.seed)
        return predictor, Selector(job.classes)


def _seed_of(job: TrainingJob) -> int:
    """Return the seed of a boundary: it depends on no other boundary, and not on where the cuts are."""
    digest = hashlib.sha256(f"{job.seed} {job.boundary}".encode()).digest()
    return int.from_bytes(digest[:6], "little")


def main(arguments: list[str]) -> None:
    """Train one network and write its progress as lines to standard output; end as soon as the parent is gone."""
    job = msgspec.json.decode(arguments[0], type=TrainingJob)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    written = [0]

    def tell(share: float) -> None:
        if round(1000 * share) > written[0]:
            written[0] = round(1000 * share)
            os.write(sys.stdout.fileno(), f"{share:.4f}\n".encode("ascii"))

    train_network(job, tell)


def _end_with_parent() -> None:
    """Wait for the parent's end: standard input is a pipe that it holds open and never writes to."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
