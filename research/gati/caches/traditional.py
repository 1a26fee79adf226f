"""Compares learned caches with caches that store activations and compare them (GATI, section 2.2 and table 1).

Each stores the activations behind one boundary for some thousand rows, with the base model's answers to them. All are
given the same promise as learned caches: their confidence is a score, and thresholds are set by `contest.promised`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.bench.rounds import Progress
from latebind.domain.errors import ConfigError
from latebind.learned.activations import record_activations
from latebind.learned.compose import Costs, send
from latebind.learned.samples import Samples
from research.gati.caches.contest import Figures, Plan, promised
from research.gati.caches.models import CachedModel
from research.gati.caches.route import Answers, Exit, Route, Scored, Stage, answers_of, costs_of, selected

NEIGHBOURS = (10, 50)
CLUSTERS = (100, 1_000)
TABLES, BITS, COMPARED = 8, 14, 256  # of locality-sensitive hashing; how many candidates are compared at most

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of rows: activations `(N, features) float32`, the base model's classes `(N,)` and how many."""

    rows: Tensor
    answers: Tensor
    classes: int


class Nearest:
    """k-NN, exact: the share of the `k` nearest rows that agree, ties broken by how near the nearest is."""

    def __init__(self, kept: Kept, k: int) -> None:
        self._kept, self._k = kept, min(k, len(kept.rows))
        self._squares = kept.rows.square().sum(dim=1)
        self.bytes = kept.rows.nbytes + self._squares.nbytes + kept.answers.nbytes

    def __call__(self, activation: Tensor) -> Scored:
        """Look up `(B, ...)`."""
        asked = activation.flatten(1).float()
        apart = self._squares - 2.0 * (asked @ self._kept.rows.T) + asked.square().sum(dim=1, keepdim=True)
        near, places = apart.topk(self._k, dim=1, largest=False)
        return _votes(self._kept, places, near)


class Clusters:
    """k-means (scikit-learn): the nearest centre answers as most of its rows; its score is how many do."""

    def __init__(self, kept: Kept, k: int, seed: int) -> None:
        try:
            from sklearn.cluster import MiniBatchKMeans  # noqa: PLC0415  (an optional dependency)
        except ImportError as error:
            raise ConfigError("k-means needs scikit-learn: pip install 'latebind[demo]'") from error
        # k-means++ takes minutes for 1,000 centres in 8,192 dimensions
        cluster = MiniBatchKMeans(min(k, len(kept.rows)), init="random", n_init=1, max_iter=20, random_state=seed)
        found = cluster.fit(kept.rows.numpy())
        self._centres = torch.from_numpy(np.ascontiguousarray(found.cluster_centers_, dtype=np.float32))
        self._squares = self._centres.square().sum(dim=1)
        votes = torch.zeros(len(self._centres), kept.classes)
        votes.index_put_((torch.from_numpy(found.labels_).long(), kept.answers), torch.tensor(1.0), accumulate=True)
        self._shares = votes / votes.sum(dim=1, keepdim=True).clamp(min=1.0)
        self.bytes = self._centres.nbytes + self._squares.nbytes + self._shares.nbytes

    def __call__(self, activation: Tensor) -> Scored:
        """Look up `(B, ...)`."""
        asked = activation.flatten(1).float()
        apart, places = (self._squares - 2.0 * (asked @ self._centres.T)).min(dim=1)
        shares = self._shares[places]
        apart = apart + asked.square().sum(dim=1)
        return shares.numpy(), (shares.amax(dim=1) + 1e-3 * _nearness(apart)).numpy()


class Hashed:
    """LSH by random planes through the mean: rows that share a key in some table are compared, most keys first."""

    def __init__(self, kept: Kept, k: int, seed: int) -> None:
        self._kept, self._k = kept, k
        features = kept.rows.shape[1]
        self._planes = torch.randn((TABLES * BITS, features), generator=torch.Generator().manual_seed(seed))
        self._offsets = self._planes @ kept.rows.mean(dim=0)
        self._powers = 1 << np.arange(BITS)
        keys = self._keys(kept.rows)
        order = [np.argsort(keys[:, table], kind="stable") for table in range(TABLES)]
        self._sorted = [(keys[rows, table], rows) for table, rows in enumerate(order)]
        tables = sum(key.nbytes + rows.nbytes for key, rows in self._sorted)
        self.bytes = kept.rows.nbytes + kept.answers.nbytes + self._planes.nbytes + self._offsets.nbytes + tables

    def __call__(self, activation: Tensor) -> Scored:
        """Look up `(B, ...)`."""
        asked = activation.flatten(1).float()
        keys = self._keys(asked)
        each = [self._one(row, key) for row, key in zip(asked, keys, strict=True)]
        return np.concatenate([answers for answers, _ in each]), np.concatenate([scores for _, scores in each])

    def _one(self, row: Tensor, keys: NDArray[np.int64]) -> Scored:
        found = np.concatenate([_equal(*table, key) for table, key in zip(self._sorted, keys, strict=True)])
        if not len(found):
            return np.zeros((1, self._kept.classes), np.float32), np.full(1, -np.inf, np.float32)
        rows, times = np.unique(found, return_counts=True)
        rows = rows[np.argsort(-times, kind="stable")[:COMPARED]]
        apart = (self._kept.rows[rows] - row).square().sum(dim=1)
        near, places = apart.topk(min(self._k, len(rows)), largest=False)
        answers, scores = _votes(self._kept, torch.from_numpy(rows)[places][None], near[None])
        return answers, scores * np.float32(len(places) / self._k)  # few neighbours say little

    def _keys(self, rows: Tensor) -> NDArray[np.int64]:
        above = (rows @ self._planes.T > self._offsets).numpy().reshape(len(rows), TABLES, BITS)
        keys: NDArray[np.int64] = above @ self._powers
        return keys


Cache = Nearest | Clusters | Hashed


@dataclass(frozen=True, slots=True)
class Row:
    """One cache: seconds of a lookup in its place, bytes, how often it alone is right, and what it gives at the target.

    `fidelity` is that of all answers, of rows that its thresholds have not seen.
    """

    cache: str
    seconds: float
    bytes: int
    alone: float
    hit_rate: float
    fidelity: float
    accuracy: float | None


def compare(
    base: CachedModel, stage: int, stored: Samples, samples: Samples, plan: Plan, *, tell: Progress
) -> list[Row]:
    """Return what each cache behind `stage` is worth; those that keep rows keep `stored`."""
    tell("keeping activations", 0.0)
    behind = torch.empty(len(stored), *base.program.activations[stage])
    answers = record_activations(base.program, stored, torch.arange(len(stored)), {stage: behind})
    kept = Kept(behind.flatten(1), answers.argmax(dim=1), answers.shape[1])
    caches: dict[str, Cache] = {f"k-NN, k = {k}": Nearest(kept, k) for k in NEIGHBOURS}
    for number, k in enumerate(CLUSTERS):
        tell(f"finding {k} clusters", 0.1 + 0.1 * number)
        caches[f"k-means, k = {k}"] = Clusters(kept, k, plan.seed)
    caches |= {f"LSH, {TABLES} tables of {BITS} bits, k = {k}": Hashed(kept, k, plan.seed) for k in NEIGHBOURS}
    exits = [Exit(name, cache, cache.bytes) for name, cache in caches.items()]
    exits += [
        Exit(f"learned cache, {one.kind}", selected(function), one.bytes)
        for one, function in base.caches
        if one.stage == stage
    ]
    rows = []
    for number, exit_ in enumerate(exits):
        tell(f"asking {exit_.name}", 0.3 + 0.7 * number / len(exits))
        route = single(base, stage, exit_)
        rows.append(figures(exit_, answers_of(route, samples), costs_of(route, samples), samples, plan))
    return rows


def single(base: CachedModel, stage: int, exit_: Exit) -> Route:
    """Return the model with this one exit behind `stage`."""
    before, after = base.program.stages[: stage + 1], base.program.stages[stage + 1 :]
    return Route((*map(Stage, before), exit_, *map(Stage, after)))


def figures(exit_: Exit, said: Answers, costs: Costs, samples: Samples, plan: Plan) -> Row:
    """Return what one lookup gives where it is the only one on its route, each row by thresholds new to it.

    Its hit rate is what the target allows, whether its time is worth it or not.
    """
    seen, left = said.against(said.ends), np.zeros(len(samples), dtype=np.bool_)
    thresholds = promised(seen, Costs(costs.segments, (0.0,)), plan.promise)
    for choose, show, measured in plan.parts(len(samples)):
        left[measured] = send(thresholds(choose, show), seen.take(measured), costs).left_at == 0
    classes = np.where(left, said.classes[0], said.ends)
    return Row(
        cache=exit_.name,
        seconds=costs.lookups[0],
        bytes=exit_.bytes,
        alone=float(seen.right[0].mean()),
        hit_rate=float(left.mean()),
        fidelity=float((classes == said.ends).mean()),
        accuracy=None if samples.labels is None else float((classes == samples.labels.numpy()).mean()),
    )


def table(rows: Sequence[Row]) -> list[Figures]:
    """Return figures by what they are called in a table."""
    return [
        {
            "cache": row.cache,
            "lookup ms": row.seconds * 1e3,
            "MB": row.bytes / 1e6,
            "alone equal": row.alone,
            "hit rate": row.hit_rate,
            "fidelity": row.fidelity,
            **({} if row.accuracy is None else {"accuracy": row.accuracy}),
        }
        for row in rows
    ]


def _votes(kept: Kept, places: Tensor, apart: Tensor) -> Scored:
    """Let rows at `places` `(B, k)`, nearest first and `apart` so much, vote."""
    votes = torch.zeros(len(places), kept.classes)
    votes.scatter_add_(1, kept.answers[places], torch.ones(places.shape))
    shares = votes / places.shape[1]
    return shares.numpy(), (shares.amax(dim=1) + _nearness(apart[:, 0]) / (2 * places.shape[1])).numpy()


def _nearness(apart: Tensor) -> Tensor:
    """Return a nearness from 0 (far) to 1 (the same), to break ties between equal shares."""
    return 1.0 / (1.0 + apart.clamp(min=0.0).sqrt())


def _equal(keys: NDArray[np.int64], rows: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    first, last = np.searchsorted(keys, [key, key + 1])
    return rows[first:last]
