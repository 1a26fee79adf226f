"""Exits that others put behind the blocks of an encoder: DeeBERT's entropy and PABEE's patience.

Both have a classifier of their own behind every stage: a pooler over the first word and a linear layer, which learns
the true classes. DeeBERT (Xin et al. 2020) teaches them while the network stays as it is, and a text leaves where the
entropy of an answer is at most one threshold, the same everywhere. PABEE (Zhou et al. 2020) lets a text leave as soon
as so many classifiers in a row agree. Its authors train the network along with them; here both ask DeeBERT's, for a
network that was trained otherwise gives other answers to compare with. Both get the promise that learned caches get.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from latebind.bench.rounds import Progress
from latebind.learned.activations import batches
from latebind.learned.compose import Costs, Floats, Seen, calibrate
from latebind.learned.promise import Promise
from latebind.learned.reading import readings
from latebind.learned.samples import Samples
from research.gati.models import CachedModel
from research.gati.routes import Exit, Route, Rows, Scored, Stage, Thresholds

BATCH, RATE = 64, 2e-3
PASSES, FEWEST_STEPS = 20, 2_000  # over few texts there are more passes
CANDIDATES = 200  # thresholds that are tested, from the strictest to the laxest

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A classifier behind a stage: tanh of a linear layer of the first word's `width` numbers, and a linear layer."""

    width: int
    pool: Logits
    pool_bias: Logits
    answer: Logits
    answer_bias: Logits

    @classmethod
    def taught(cls, words: Tensor, labels: Tensor, *, classes: int, seed: int) -> "Ramp":
        """Return a classifier that learned the classes `labels` `(N,)` of texts from their first words `(N, width)`."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            pool, answer = nn.Linear(words.shape[1], words.shape[1]), nn.Linear(words.shape[1], classes)
            optimizer = torch.optim.AdamW([*pool.parameters(), *answer.parameters()], lr=RATE)
            each = -(-len(words) // BATCH)
            passes = max(PASSES, -(-FEWEST_STEPS // each))
            slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=passes * each)
            for _ in range(passes):
                for rows in torch.split(torch.randperm(len(words)), BATCH):
                    loss = functional.cross_entropy(answer(torch.tanh(pool(words[rows]))), labels[rows])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    slower.step()
        weights = (pool.weight.T, pool.bias, answer.weight.T, answer.bias)
        return cls(words.shape[1], *(np.ascontiguousarray(one.detach().numpy()) for one in weights))

    @property
    def bytes(self) -> int:
        """The size of its weights."""
        return self.pool.nbytes + self.pool_bias.nbytes + self.answer.nbytes + self.answer_bias.nbytes

    def __call__(self, activation: Tensor) -> Logits:
        """Return answers `(B, classes)` for an activation `(B, L, numbers)`."""
        first = activation.numpy()[:, 0, : self.width]
        found: Logits = np.tanh(first @ self.pool + self.pool_bias) @ self.answer + self.answer_bias
        return found


def unsure(ramp: Ramp, activation: Tensor) -> Scored:
    """Answer, and score by how low the entropy is (DeeBERT)."""
    answers = ramp(activation)
    logs = answers - answers.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    return answers, (np.exp(logs) * logs).sum(axis=1)


@dataclass(slots=True)
class Patience:
    """Scores an answer by how many classifiers in a row gave it (PABEE). Exits are asked in order for the same rows."""

    classes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    agree: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def look(self, ramp: Ramp, activation: Tensor, *, first: bool) -> Scored:
        """Answer behind the next stage; the `first` exit of a route begins anew."""
        answers = ramp(activation)
        classes = answers.argmax(axis=1)
        same = np.zeros(len(classes), np.bool_) if first else classes == self.classes
        self.agree = np.where(same, 1.0 + (0.0 if first else self.agree), 1.0).astype(np.float32)
        self.classes = classes
        return answers, self.agree


def word_stages(base: CachedModel) -> dict[int, int]:
    """Return the stages behind which words are handed on, and how many numbers each has; none of other networks.

    Where they differ, the fewest count: what is wider lies within a block.
    """
    found = dict[int, int]()
    for stage, (read, graph) in enumerate(zip(readings(base.program), base.program.graphs[1:], strict=True)):
        if read.axes == (1,) and len(graph.inputs[0].shape) == 2:
            found[stage] = graph.inputs[0].shape[1] if read.width is None else read.width
    return {stage: width for stage, width in found.items() if width == min(found.values())}


def ramps(base: CachedModel, fit: Samples, *, seed: int, on_progress: Progress) -> dict[int, Ramp]:
    """Return a classifier behind each stage that yields words, taught the labels of `fit`, by stage."""
    assert fit.labels is not None
    stages, classes = word_stages(base), base.program.spec.outputs[0].shape[0]
    rows, words = list[Tensor](), {stage: list[Tensor]() for stage in stages}
    for number, (places, batch) in enumerate(batches(fit)):
        rows.append(places if isinstance(places, Tensor) else torch.arange(places.start, places.stop))
        passed = batch
        for stage, run in enumerate(base.program.stages[:-1]):
            passed = run(*passed)
            if stage in stages:
                words[stage].append(passed[0][:, 0, : stages[stage]].clone())
        on_progress("recording first words", min(0.5, number / (number + 500)))
    labels, found = fit.labels[torch.cat(rows)], {}
    for done, stage in enumerate(stages):
        on_progress(f"teaching a classifier behind stage {stage}", 0.5 + 0.5 * done / len(stages))
        found[stage] = Ramp.taught(torch.cat(words[stage]), labels, classes=classes, seed=seed)
    return found


def by_entropy(base: CachedModel, taught: dict[int, Ramp]) -> Route:
    """Return the network with DeeBERT's exits."""
    return _route(
        base, {stage: Exit(f"entropy {stage}", partial(unsure, ramp), ramp.bytes) for stage, ramp in taught.items()}
    )


def by_patience(base: CachedModel, taught: dict[int, Ramp]) -> Route:
    """Return the network with PABEE's exits."""
    patience, first = Patience(), min(taught)
    looks = {stage: partial(patience.look, ramp, first=stage == first) for stage, ramp in taught.items()}
    return _route(base, {stage: Exit(f"patience {stage}", look, taught[stage].bytes) for stage, look in looks.items()})


def _route(base: CachedModel, exits: dict[int, Exit]) -> Route:
    pieces: list[Stage | Exit] = []
    for number, stage in enumerate(base.program.stages):
        pieces += [Stage(stage), *([exits[number]] if number in exits else [])]
    return Route(tuple(pieces))


def in_common(seen: Seen, costs: Costs, promise: Promise) -> Thresholds:
    """Return how one threshold for all exits is set: the laxest that the test of `learned.calibrate` shows to hold."""

    def thresholds(choose: Rows, show: Rows) -> Floats:
        exits = len(costs.lookups)
        known: Sequence[float] = np.unique(seen.scores[:, choose])[::-1].tolist()
        steps = np.unique(np.linspace(0, len(known) - 1, min(CANDIDATES, len(known))).round().astype(np.int64))
        candidates = [np.full(exits, known[step]) for step in steps]
        found = calibrate(candidates, [seen.take(show)], costs, promise=promise)
        return np.full(exits, np.inf) if found is None else found.thresholds

    return thresholds
