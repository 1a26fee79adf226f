"""The baselines of learned caches, all given the same promise (GATI, section 2.2, tables 1 and 6, figures 6 and 8a).

Fewer bits, a smaller model and a cascade of both: every method that has exits is given the same promise, by the same
search and test, at each precision alike. Methods without exits promise nothing; their fidelity is reported. Traditional
caches store the activations behind one boundary for some thousand rows, with the base model's answers to them, and
compare; their confidence is a score.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.bench.rounds import Progress
from latebind.cli.console import Row
from latebind.cli.console import Rows as TableRows
from latebind.domain.errors import ConfigError
from latebind.learned.activations import record_activations
from latebind.learned.compose import Costs, send
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples
from research.gati.distilled import distil
from research.gati.models import CachedModel
from research.gati.ramps import by_entropy, by_patience, in_common, ramps, word_stages
from research.gati.routes import (
    Answers,
    Classes,
    Contender,
    Exit,
    Plan,
    Route,
    Scored,
    Stage,
    Standings,
    answers_of,
    confident,
    costs_of,
    no_exits,
    promised,
    standings,
)

RANGE_ROWS = 128  # that show a network in eight bits how large its numbers get; they are used for nothing else
NEIGHBORS = (10, 50)
CLUSTERS = (100, 1_000)
TABLES, BITS, COMPARED = 8, 14, 256  # of locality-sensitive hashing; how many candidates are compared at most

Method = tuple[str, Route, int]
Floats = NDArray[np.float32]


def set_aside(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """Return a few rows for ranges of eight bits, and the others; raises `ConfigError` where few would be left."""
    if len(samples) < 2 * RANGE_ROWS:
        raise ConfigError(f"{len(samples)} rows are too few to compare on: give {2 * RANGE_ROWS} or more")
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    return samples.take(order[:RANGE_ROWS]), samples.take(order[RANGE_ROWS:].sort().values)


def compare(
    base: CachedModel,
    smaller: CachedModel | None,
    ranges: Samples,
    samples: Samples,
    plan: Plan,
    *,
    fit: Samples | None = None,
    on_progress: Progress,
) -> Standings:
    """Measure the base model and every method on the same rows. `ranges` are rows for eight bits alone.

    Rows to `fit` also teach a network of half of the blocks, if the model has blocks, and with labels the exits of
    DeeBERT and PABEE, if it passes words on between stages.
    """
    if smaller is not None and smaller.program.spec.inputs != base.program.spec.inputs:
        raise ConfigError(f"{smaller.name} takes other inputs than {base.name}: name a model of the same")
    methods = _methods(base, smaller, ranges.typical())
    on_progress("what the base model says", 0.0)
    says = answers_of(base.whole(), samples).ends
    contenders = [Contender(f"{base.name} alone", base.whole(), base.bytes, no_exits)]
    if fit is not None:
        methods += _fewer(base, fit, seed=plan.seed, on_progress=lambda text, share: on_progress(text, 0.3 * share))
    for number, (name, route, size) in enumerate(methods):
        on_progress(f"what {name} says", 0.3 + 0.1 * number / len(methods))
        contenders.append(contender(name, route, size, samples, says, plan.promise))
    if fit is not None and fit.labels is not None and word_stages(base):
        taught = ramps(base, fit, seed=plan.seed, on_progress=lambda text, share: on_progress(text, 0.4 + 0.2 * share))
        for name, route in (("DeeBERT", by_entropy(base, taught)), ("PABEE", by_patience(base, taught))):
            seen, costs = answers_of(route, samples).against(says), costs_of(route, samples)
            contenders.append(Contender(name, route, base.bytes, in_common(seen, costs, plan.promise)))
    return standings(contenders, samples, plan, on_progress=lambda text, share: on_progress(text, 0.6 + 0.4 * share))


def contender(name: str, route: Route, size: int, samples: Samples, says: Classes, promise: Promise) -> Contender:
    """Return a method with thresholds that promise to answer as the base model `says`, class by row."""
    if not route.exits:
        return Contender(name, route, size, no_exits)
    seen = answers_of(route, samples).against(says)
    return Contender(name, route, size, promised(seen, costs_of(route, samples), promise))


@dataclass(frozen=True, slots=True)
class Form:
    """A model in one precision: whole, and in stages with its learned caches; `bytes` without those."""

    whole: Stage
    cached: Route
    bytes: int

    @property
    def again(self) -> Stage:
        """Return the whole model as the second network of a cascade."""
        return Stage(self.whole.run, again=True)

    @property
    def cached_again(self) -> tuple[Stage | Exit, ...]:
        """Return the cached model as the second network of a cascade."""
        first, *others = self.cached.pieces
        assert isinstance(first, Stage)
        return (Stage(first.run, again=True), *others)


def _exact(model: CachedModel) -> Form:
    return Form(Stage(model.uncut), model.cached(), model.bytes)


def _in_bytes(model: CachedModel, rows: tuple[Tensor, ...]) -> Form:
    cached = model.cached_in_bytes(rows)
    return Form(model.in_bytes(rows), cached, model.quantised_bytes())


def _methods(base: CachedModel, smaller: CachedModel | None, rows: tuple[Tensor, ...]) -> list[Method]:
    large = _exact(base)
    found: list[Method] = [("learned caches", large.cached, large.bytes)]
    if smaller is not None:
        found += _cascades(smaller.name, _exact(smaller), large, "")
    if base.program.backend == "openvino":
        found.append((f"{base.name}, bfloat16", base.in_bfloat16(), base.bytes // 2))
    if base.has_bytes:
        narrow = _in_bytes(base, rows)
        found.append((f"{base.name}, eight bits", Route((narrow.whole,)), narrow.bytes))
        found.append(("learned caches, eight bits", narrow.cached, narrow.bytes))
        if smaller is not None:
            found += _cascades(smaller.name, _in_bytes(smaller, rows), narrow, ", eight bits")
    return found


def _fewer(base: CachedModel, fit: Samples, *, seed: int, on_progress: Progress) -> list[Method]:
    """Return a distilled network of fewer blocks alone and before the base model; nothing where none are found."""
    found = distil(base, fit, seed=seed, on_progress=on_progress)
    if found is None:
        return []
    name, run, size = found
    small, asks = Stage(run), Exit(name, confident)
    return [
        (name, Route((small,)), size),
        (f"cascade of {name}", Route((small, asks, Stage(base.uncut, again=True))), size + base.bytes),
    ]


def _cascades(name: str, small: Form, large: Form, precision: str) -> list[Method]:
    """Return a smaller model alone and before the base model: bare, and as the paper caches both."""
    asks, size = Exit(name, confident), small.bytes + large.bytes
    return [
        (f"smaller {name}{precision}", Route((small.whole,)), small.bytes),
        (f"cascade{precision}", Route((small.whole, asks, large.again)), size),
        (f"cascade of cached models{precision}", Route((*small.cached.pieces, asks, *large.cached_again)), size),
    ]


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
    """k-means (scikit-learn): the nearest center answers as most of its rows; its score is how many do."""

    def __init__(self, kept: Kept, k: int, seed: int) -> None:
        try:
            from sklearn.cluster import MiniBatchKMeans  # noqa: PLC0415  (an optional dependency)
        except ImportError as error:
            raise ConfigError("k-means needs scikit-learn: pip install 'latebind[demo]'") from error
        # k-means++ takes minutes for 1,000 centers in 8,192 dimensions
        cluster = MiniBatchKMeans(min(k, len(kept.rows)), init="random", n_init=1, max_iter=20, random_state=seed)
        found = cluster.fit(kept.rows.numpy())
        self._centers = torch.from_numpy(np.ascontiguousarray(found.cluster_centers_, dtype=np.float32))
        self._squares = self._centers.square().sum(dim=1)
        votes = torch.zeros(len(self._centers), kept.classes)
        votes.index_put_((torch.from_numpy(found.labels_).long(), kept.answers), torch.tensor(1.0), accumulate=True)
        self._shares = votes / votes.sum(dim=1, keepdim=True).clamp(min=1.0)
        self.bytes = self._centers.nbytes + self._squares.nbytes + self._shares.nbytes

    def __call__(self, activation: Tensor) -> Scored:
        """Look up `(B, ...)`."""
        asked = activation.flatten(1).float()
        apart, places = (self._squares - 2.0 * (asked @ self._centers.T)).min(dim=1)
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
        return answers, scores * np.float32(len(places) / self._k)  # few neighbors say little

    def _keys(self, rows: Tensor) -> NDArray[np.int64]:
        above = (rows @ self._planes.T > self._offsets).numpy().reshape(len(rows), TABLES, BITS)
        keys: NDArray[np.int64] = above @ self._powers
        return keys


Cache = Nearest | Clusters | Hashed


def traditional(
    base: CachedModel, stage: int, stored: Samples, samples: Samples, plan: Plan, *, on_progress: Progress
) -> TableRows:
    """Return what each cache behind `stage` is worth; those that keep rows keep `stored`."""
    on_progress("keeping activations", 0.0)
    behind = torch.empty(len(stored), *base.program.activations[stage])
    answers = record_activations(base.program, stored, torch.arange(len(stored)), {stage: behind})
    kept = Kept(behind.flatten(1), answers.argmax(dim=1), answers.shape[1])
    caches: dict[str, Cache] = {f"k-NN, k = {k}": Nearest(kept, k) for k in NEIGHBORS}
    for number, k in enumerate(CLUSTERS):
        on_progress(f"finding {k} clusters", 0.1 + 0.1 * number)
        caches[f"k-means, k = {k}"] = Clusters(kept, k, plan.seed)
    caches |= {f"LSH, {TABLES} tables of {BITS} bits, k = {k}": Hashed(kept, k, plan.seed) for k in NEIGHBORS}
    exits = [Exit(name, cache, cache.bytes) for name, cache in caches.items()]
    exits += [
        Exit(f"learned cache, {one.kind}", function, one.bytes) for one, function in base.caches if one.stage == stage
    ]
    rows = []
    for number, exit_ in enumerate(exits):
        on_progress(f"asking {exit_.name}", 0.3 + 0.7 * number / len(exits))
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
    labels = None if samples.labels is None else samples.labels.numpy()
    return {
        "cache": exit_.name,
        "lookup ms": costs.lookups[0] * 1e3,
        "MB": exit_.bytes / 1e6,
        "alone equal": float(seen.right[0].mean()),
        "hit rate": float(left.mean()),
        "fidelity": float((classes == said.ends).mean()),
        **({} if labels is None else {"accuracy": float((classes == labels).mean())}),
    }


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
