"""Training one network, from what is recorded on disk to what is kept there; resumed where a kill broke it off.

Also a process of its own, which `training` has forked.
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
from latebind.learned.explored import Exploration
from latebind.learned.head import Selector
from latebind.learned.networks import Predictor, make_predictor
from latebind.learned.recorded import Recorded, recorded
from latebind.learned.train import DISTILLATION, PredictorTraining, predict, selector_steps, train_selector
from latebind.repository.directory import write_bytes
from latebind.repository.tensors import tensor_bytes

MOST_PASSES = 40
LESSON_ROWS = 5_000  # that are kept for adaptation
CHECKPOINT_SECONDS = 30.0
PREDICTOR, SELECTOR = "predictor.", "selector."
FEATURES, ANSWERS, CLASSES = "features", "answers", "classes"

Tell = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Order:
    """One network to train: what it reads lies in `folder`. `stage` only tells people where the boundary is now."""

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
    """A trained predictor and selector, and what later work needs of rows that the predictor has not seen.

    `features` are `(N, width) bfloat16`, `answers` of the base model `(N, classes) bfloat16`, `classes` `(N,) int64`.
    Rows are the same for each network, or the first of them.
    """

    predictor: Predictor
    selector: Selector
    features: Tensor
    answers: Tensor
    classes: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return everything by name, to be kept."""
        found = {PREDICTOR + name: tensor for name, tensor in self.predictor.state_dict().items()}
        found |= {SELECTOR + name: tensor for name, tensor in self.selector.state_dict().items()}
        return {**found, FEATURES: self.features, ANSWERS: self.answers, CLASSES: self.classes}


def kept_network(order: Order) -> Network | None:
    """Return the network that an order asks for if it is trained."""
    tensors = Exploration(Path(order.folder)).network(order.boundary, order.kind)
    if tensors is None:
        return None
    predictor, selector = _untrained(order)
    predictor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module, start in ((predictor, PREDICTOR), (selector, SELECTOR)):
        module.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
        module.eval()
    return Network(predictor, selector, *(tensors[name] for name in (FEATURES, ANSWERS, CLASSES)))


def train_network(order: Order, tell: Tell) -> None:
    """Train what an order asks for and keep it; `tell` hears what share is done, in this process or before.

    Bit for bit the same for the same order, however often it was broken off and in whatever process.
    """
    exploration = Exploration(Path(order.folder))
    rows = recorded(exploration.activations(order.boundary), order.shape)
    if rows is None:
        raise ConfigError(f"{order.folder} has no activations of {order.boundary!r}: run the build again")
    predictor, selector = _untrained(order)
    drawn = _seed_of(order)
    passes = passes_over(rows.learn, order.presentations)
    training = PredictorTraining(predictor, rows.seen(), passes=passes, seed=drawn, distillation=order.distillation)
    saver = _Saver(training, exploration.checkpoint(order.boundary, order.kind), order.checkpoint_seconds, tell)
    saver.restore()
    with on_threads(order.threads):
        training.learn(saver)
        network = _with_selector(predictor, selector, rows, seed=drawn, steps=selector_steps(order.presentations))
    exploration.keep_network(order.boundary, order.kind, network.tensors())


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Let torch have so many threads for a while: sums in another order are other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def passes_over(rows: int, presentations: int) -> int:
    """Return how often a predictor sees each row, so that it sees about `presentations` in all."""
    return max(1, min(MOST_PASSES, round(presentations / rows)))


@dataclass(slots=True)
class _Saver:
    """Hears how far a training is, and saves it from time to time: a kill leaves the last state or the one before."""

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
        """Go on from what was saved; what cannot be read, or is of other rows, is left aside."""
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


def _untrained(order: Order) -> tuple[Predictor, Selector]:
    with torch.random.fork_rng():
        torch.manual_seed(order.seed)
        predictor = make_predictor(order.shape, order.classes, order.kind)
        torch.manual_seed(order.seed)
        return predictor, Selector(order.classes)


def _seed_of(order: Order) -> int:
    """Each boundary draws for itself, so that it trains alike whatever else is trained and wherever cuts are."""
    digest = hashlib.sha256(f"{order.seed} {order.boundary}".encode()).digest()
    return int.from_bytes(digest[:6], "little")


def main(arguments: list[str]) -> None:
    """Train one network and write its progress as lines; end at once when whoever started it is gone."""
    order = msgspec.json.decode(arguments[0], type=Order)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    written = [0]

    def tell(share: float) -> None:
        if round(1000 * share) > written[0]:
            written[0] = round(1000 * share)
            os.write(sys.stdout.fileno(), f"{share:.4f}\n".encode("ascii"))

    train_network(order, tell)


def _end_with_parent() -> None:
    """Standard input is a pipe that nobody writes to: its end is the end of the process that holds the other side."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
