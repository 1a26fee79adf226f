"""Learned caches in a model directory: `caches/caches.json`, and for each cache a graph, its weights and a head.

Beside them `accuracy.json`: how often the whole network is right, by which queries choose among models. A directory
without the file is of a model that was built without labels.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from latebind.domain.costs import MOST_SECONDS, Curve, Level, ModelCosts, in_turn
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.domain.model import ModelSpec
from latebind.learned.head import Head
from latebind.program.graph import Graph, graph_to_json, read_graph_file
from latebind.program.stored import MOST_WEIGHT_BYTES, files_with_entry, read_model
from latebind.repository.directory import CACHES, ModelDirectory, json_bytes
from latebind.repository.tensors import check_weights, read_tensors, tensor_bytes

FORMAT = 4
LIST = f"{CACHES}/caches.json"
FEATURES = "features"
ACCURACY = "accuracy.json"
HELD_OUT, LESSONS = f"{CACHES}/held-out.safetensors", f"{CACHES}/lessons.safetensors"


@dataclass(frozen=True, slots=True)
class SpareLookup:
    """A learned cache behind `stage` that is not in use.

    `kind` says what its network is. `seconds` is its latency over batch sizes with the model's backend, and `slower` by
    how many seconds it slows the network down if lookups run aside.
    """

    stage: int
    kind: str
    bytes: int
    seconds: Curve
    slower: float = field(default=0.0, kw_only=True)

    @property
    def name(self) -> str:
        """Its name among the learned caches of its model."""
        return lookup_name(self.stage, self.kind)


@dataclass(frozen=True, slots=True)
class StoredLookup(SpareLookup):
    """One learned cache in use: it hits if its score is at least `threshold`.

    `hit_rate` is the share of all requests that leave here, and `fidelity` the share of those that are answered as the
    base model would, both on held-out samples.
    """

    threshold: float
    hit_rate: float
    fidelity: float


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """A point of the operating curve: other thresholds for the caches in use, by name, with another `target`.

    `fidelity` was measured on held-out samples and `lower` bounds it, for all levels together with the confidence of
    the caches. `hit_rates` are the shares of requests that leave, by stage, and `seconds` the mean at batch 1.
    """

    target: float
    fidelity: float
    lower: float
    thresholds: dict[str, float]
    hit_rates: dict[int, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class StoredCaches:
    """All learned caches of a model and the promise that they were calibrated for.

    `lookups` are in use, `spare` are not: a later calibration may use them, and adaptation those at a boundary in use.
    `tail` is None if the promise has none. `answers` is the number of next answers that the promise is about; None: all
    that there could be, as in earlier builds. `aside` says that all lookups run while their network goes on. `levels`
    are the operating curve, the surest first; empty in earlier builds. `whole` is the fidelity of the network's own
    answers, which holds together with that of the levels: below 1 where it computes in less than full precision.
    """

    format: int
    target: float
    confidence: float
    fidelity: float
    lower: float
    calibrated_on: int
    lookups: tuple[StoredLookup, ...]
    spare: tuple[SpareLookup, ...] = ()
    tail: float | None = None
    aside: bool = False
    answers: int | None = None
    levels: tuple[StoredLevel, ...] = ()
    whole: float = 1.0

    @property
    def every(self) -> tuple[SpareLookup, ...]:
        """All caches, used or spare, in the order in which a request meets them: at one boundary the quickest first."""
        return tuple(sorted((*self.lookups, *self.spare), key=lambda one: (one.stage, one.seconds.at(1))))

    @property
    def at_hand(self) -> tuple[SpareLookup, ...]:
        """The caches in use and, if they run in line, the spare ones at the same boundaries, in the same order."""
        if self.aside:
            return self.lookups
        stages = {lookup.stage for lookup in self.lookups}
        return tuple(one for one in self.every if one.stage in stages)


@dataclass(frozen=True, slots=True)
class LookupFiles:
    """A lookup as data: `graph` and `weights` compute features, and `head` turns them into answers and scores."""

    graph: Graph
    weights: Mapping[str, Tensor]
    head: Head

    @property
    def bytes(self) -> int:
        """The size of all weights."""
        return sum(tensor.nbytes for tensor in (*self.weights.values(), *self.head.tensors().values()))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that no predictor was fitted to, as features: new heads are trained on them, or verified on them.

    `features[name]` are `(N, width) bfloat16` of the lookup of that name, `answers` `(N, classes) bfloat16` of the base
    model, `classes` `(N,) int64` its classes, and `lengths` `(N,) int64` those of the rows; None where all are alike.
    """

    features: Mapping[str, Tensor]
    answers: Tensor
    classes: Tensor
    lengths: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be written."""
        features = {f"{FEATURES}-{name}": rows for name, rows in self.features.items()}
        lengths = {} if self.lengths is None else {"lengths": self.lengths}
        return {**features, "answers": self.answers, "classes": self.classes, **lengths}

    def seen_by(self, lookups: Iterable[str]) -> "Rows":
        """Return the same rows with the features of these lookups only."""
        return replace(self, features={name: self.features[name] for name in lookups})

    def take(self, numbers: Tensor) -> "Rows":
        """Return some of the rows, by number."""
        features = {name: found[numbers] for name, found in self.features.items()}
        lengths = None if self.lengths is None else self.lengths[numbers]
        return Rows(features, self.answers[numbers], self.classes[numbers], lengths)

    def joined(self, other: "Rows") -> "Rows":
        """Return these rows, and behind them others with features of the same lookups."""
        features = {name: torch.cat([rows, other.features[name]]) for name, rows in self.features.items()}
        answers = torch.cat([self.answers, other.answers])
        each = [part for part in (self.lengths, other.lengths) if part is not None]
        lengths = torch.cat(each) if len(each) == 2 else None
        return Rows(features, answers, torch.cat([self.classes, other.classes]), lengths)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Rows":
        """Return the rows that `tensors` returned; raises `KeyError` or `ValueError` for anything else."""
        prefix = f"{FEATURES}-"
        features = {name.removeprefix(prefix): rows for name, rows in tensors.items() if name.startswith(prefix)}
        found = cls(features, tensors["answers"], tensors["classes"], tensors.get("lengths"))
        if len({len(rows) for rows in tensors.values()}) > 1:
            raise ValueError("the parts have different numbers of rows")
        return found


def write_caches(
    directory: ModelDirectory,
    caches: StoredCaches,
    files: Mapping[str, LookupFiles],
    *,
    held_out: Rows | None = None,
    lessons: Rows | None = None,
    new_entry: bool = False,
) -> ModelDirectory:
    """Write the caches into the model directory in place of the present ones; the manifest is written last.

    `files` are by name. `held_out` and `lessons` are for adaptation, to verify new heads on and to train them with.
    `new_entry` gives the model an empty first stage, because a cache stands before the network.
    """
    made = {LIST: json_bytes(caches)}
    if new_entry:
        made |= files_with_entry(directory)
    for name, lookup in files.items():
        made[graph_file(name)] = graph_to_json(lookup.graph)
        made[weights_file(name)] = tensor_bytes(lookup.weights)
        made[head_file(name)] = tensor_bytes(lookup.head.tensors())
    made |= {name: tensor_bytes(rows.tensors()) for name, rows in ((HELD_OUT, held_out), (LESSONS, lessons)) if rows}
    return directory.write_files(made, remove=set(directory.names(CACHES)) - set(made))


def read_caches(directory: ModelDirectory) -> StoredCaches | None:
    """Return what `caches.json` says, or None for a model without learned caches; raises `RepositoryError`."""
    if LIST not in directory.files:
        return None
    caches = directory.read_json(LIST, StoredCaches)
    path = directory.path / LIST
    if caches.format != FORMAT:
        raise RepositoryError(f"{path} has format {caches.format}, this version reads {FORMAT}: build the caches again")
    listed = (*caches.lookups, *caches.spare)
    if any(not _was_measured(one) for one in listed) or not _was_calibrated(caches):
        raise RepositoryError(f"{path} has figures that nobody can have measured: build the caches again")
    last = len(read_model(directory).cuts)
    if len({one.name for one in listed}) < len(listed) or any(not 0 <= one.stage < last for one in listed):
        raise RepositoryError(
            f"{path} does not fit a model of {last + 1} stages or names a cache twice: build the caches again"
        )
    thresholds = [value for level in caches.levels for value in level.thresholds.values()]
    if not all(map(math.isfinite, [*thresholds, *(lookup.threshold for lookup in caches.lookups)])):
        raise RepositoryError(f"{path} has a threshold that is no number: build the caches again")
    return caches


def _was_measured(one: SpareLookup) -> bool:
    """Tell whether the figures of a lookup can be."""
    shares = (one.hit_rate, one.fidelity) if isinstance(one, StoredLookup) else ()
    return (
        0 <= one.bytes <= MOST_WEIGHT_BYTES
        and one.seconds.makes_sense
        and abs(one.slower) <= MOST_SECONDS
        and all(0.0 <= share <= 1.0 for share in shares)
    )


def _was_calibrated(caches: StoredCaches) -> bool:
    """Tell whether the promise of the caches can be."""
    shares = (caches.target, caches.confidence, caches.fidelity, caches.lower, caches.whole)
    return (
        all(0.0 <= share <= 1.0 for share in shares)
        and sum(one.hit_rate for one in caches.lookups) <= 1.0 + 1e-6
        and caches.calibrated_on >= 0
        and (caches.tail is None or 0.0 <= caches.tail < math.inf)
        and (caches.answers is None or caches.answers >= 1)
        and _is_a_curve(caches)
    )


def _is_a_curve(caches: StoredCaches) -> bool:
    """Tell whether the levels of the caches can be: ever less sure, of lookups in use, with shares of all requests."""
    names, stages = {one.name for one in caches.lookups}, {one.stage for one in caches.lookups}
    targets = [level.target for level in caches.levels]
    return targets == sorted(set(targets), reverse=True) and all(
        all(0.0 <= share <= 1.0 for share in (level.target, level.fidelity, level.lower, *level.hit_rates.values()))
        and sum(level.hit_rates.values()) <= 1.0 + 1e-6
        and level.thresholds.keys() <= names
        and level.hit_rates.keys() <= stages
        and 0.0 <= level.seconds <= MOST_SECONDS
        for level in caches.levels
    )


def read_lookup(
    directory: ModelDirectory,
    name: str,
    read: Callable[[ModelDirectory, str], Mapping[str, Tensor]] = read_tensors,
) -> LookupFiles:
    """Return the files of the learned cache of this name; `read` reads the weights out of theirs.

    Raises `RepositoryError` if they make no learned cache.
    """
    graph = read_graph_file(directory, graph_file(name))
    if len(graph.inputs) != 1 or [output for output, _ in graph.outputs] != [FEATURES]:
        raise RepositoryError(f"{directory.path / graph_file(name)} is no learned cache: build the caches again")
    head = read_head(directory, head_file(name))
    if graph.output_specs()[0].shape != (head.width,):
        raise RepositoryError(f"{directory.path / head_file(name)} takes other features: build the caches again")
    weights = read(directory, weights_file(name))
    check_weights(directory, weights_file(name), graph.weights(), weights)
    return LookupFiles(graph, weights, head)


def read_head(directory: ModelDirectory, name: str) -> Head:
    """Return the head in this file; raises `RepositoryError` if there is none in it."""
    try:
        return Head.from_tensors(read_tensors(directory, name))
    except ValueError as error:
        raise RepositoryError(f"{directory.path / name} is no head of a lookup ({error}): build it again") from None


def read_rows(directory: ModelDirectory, name: str) -> Rows | None:
    """Return the rows of `HELD_OUT` or `LESSONS`, or None if there is no such file; raises `RepositoryError`."""
    if name not in directory.files:
        return None
    try:
        return Rows.from_tensors(read_tensors(directory, name))
    except (KeyError, ValueError) as error:
        raise RepositoryError(f"{directory.path / name} has no rows ({error}): build the caches again") from None


def with_caches(
    spec: ModelSpec, costs: ModelCosts, caches: StoredCaches | None, *, floor: float = 1.0
) -> tuple[ModelSpec, ModelCosts]:
    """Return model and costs for the scheduler, with where lookups stand, what they cost and how often they hit.

    With a `floor` under 1, these are the levels of the operating curve that promise no less, and the whole network.
    Raises `ConfigError` where there are none, or the caches promise less than the floor.
    """
    if caches is None:
        return spec, costs
    promised = levels_down_to(caches, floor)
    stages = sorted({lookup.stage for lookup in caches.lookups})
    behind = {stage: [one for one in caches.lookups if one.stage == stage] for stage in stages}
    curves = {stage: in_turn([one.seconds for one in found]) for stage, found in behind.items()}
    rates = {stage: sum(one.hit_rate for one in found) for stage, found in behind.items()}
    levels = tuple(Level(level.target, level.hit_rates) for level in promised)
    costs = replace(costs, lookups=curves, hit_rates=rates, aside=caches.aside)
    if levels:
        target = [level.fidelity for level in levels].index(caches.target)
        costs = replace(costs, levels=levels, target=target, hit_rates=levels[target].hit_rates)
    return replace(spec, lookups=tuple(stages)), costs


def levels_down_to(caches: StoredCaches, floor: float) -> tuple[StoredLevel, ...]:
    """Return the levels that promise no less than `floor`, the whole network first; none for a floor of 1.

    Raises `ConfigError` where the caches have no operating curve, or promise less than the floor themselves.
    """
    if floor >= 1.0 or not caches.lookups:
        return ()
    if floor > caches.target:
        raise ConfigError(f"a floor of {floor:g} is above the {caches.target:g} that the caches promise: give less")
    found = [level for level in caches.levels if caches.whole > level.target >= floor]
    if caches.target not in {level.target for level in found}:
        raise ConfigError(
            f"these learned caches have no operating curve down to {floor:g}: run `latebind calibrate` with "
            f"--fidelity {caches.target:g} and more data, or leave the floor out"
        )
    return (StoredLevel(caches.whole, caches.whole, caches.whole, {}, {}, 0.0), *found)


def lookup_name(stage: int, kind: str) -> str:
    """Return the name of a learned cache, such as "0-residual" or "2-conv.3.1": also that of its files."""
    return f"{stage}-{kind.rstrip(')').replace('(', '.').replace(',', '.')}"


def graph_file(name: str) -> str:
    """Return the name of a lookup's graph file."""
    return f"{CACHES}/{name}.json"


def weights_file(name: str) -> str:
    """Return the name of a lookup's weights file."""
    return f"{CACHES}/{name}.safetensors"


def head_file(name: str) -> str:
    """Return the name of the file of a lookup's head."""
    return f"{CACHES}/{name}.head.safetensors"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The `share` of so many held-out `samples` that the whole network, without learned caches, answers rightly."""

    share: float
    samples: int

    def __str__(self) -> str:
        return f"{self.share:.4f} of {self.samples}"


def accuracy_of(answers: Tensor, labels: Tensor) -> Accuracy:
    """Return how often `answers` `(N, classes)` are greatest at the `labels` `(N,)`."""
    return Accuracy(float((answers.argmax(dim=1) == labels).double().mean()), len(labels))


def write_accuracy(directory: ModelDirectory, accuracy: Accuracy) -> ModelDirectory:
    """Write the accuracy into a model directory, in place of a present one."""
    return directory.write_files({ACCURACY: json_bytes(accuracy)})


def read_accuracy(directory: ModelDirectory) -> Accuracy | None:
    """Return the accuracy measured when the model was built, None without labels; raises `RepositoryError`."""
    if ACCURACY not in directory.files:
        return None
    found = directory.read_json(ACCURACY, Accuracy)
    if not 0.0 <= found.share <= 1.0 or found.samples < 1:
        raise RepositoryError(f"{directory.path / ACCURACY} has {found}, which is no share: build the model again")
    return found


def read_accuracies(directories: Iterable[ModelDirectory]) -> dict[str, float]:
    """Return the accuracies that are known, by the name of the model."""
    found = {read_model(directory).name: read_accuracy(directory) for directory in directories}
    return {name: accuracy.share for name, accuracy in found.items() if accuracy is not None}
