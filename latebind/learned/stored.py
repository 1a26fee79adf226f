"""How learned caches lie in a model directory: `caches/caches.json`, and for each a graph, its weights and a head."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.errors import RepositoryError
from latebind.domain.model import ModelSpec
from latebind.learned.head import Head
from latebind.program.graph import Graph
from latebind.program.graph_file import graph_from_json, graph_to_json
from latebind.program.stored import files_with_entry, read_model
from latebind.repository.directory import CACHES, ModelDirectory, json_bytes
from latebind.repository.tensors import read_tensors, tensor_bytes

FORMAT = 3
LIST = f"{CACHES}/caches.json"
FEATURES = "features"
HELD_OUT, LESSONS = f"{CACHES}/held-out.safetensors", f"{CACHES}/lessons.safetensors"


@dataclass(frozen=True, slots=True)
class StoredLookup:
    """One learned cache: it stands behind `stage` and answers where its score is at least `threshold`.

    `kind` names its network.

    `hit_rate` is the share of all requests that leave here, `fidelity` the share of those answered as the base model
    would, both on held-out samples; `seconds` is its latency over batch sizes with the model's backend.
    """

    stage: int
    kind: str
    threshold: float
    hit_rate: float
    fidelity: float
    bytes: int
    seconds: Curve


@dataclass(frozen=True, slots=True)
class SpareLookup:
    """A learned cache behind `stage` that is not in use."""

    stage: int
    kind: str


@dataclass(frozen=True, slots=True)
class StoredCaches:
    """All learned caches of a model and the promise that they were calibrated for.

    `spare` are there but not in use: another calibration may take them up.
    """

    format: int
    target: float
    confidence: float
    fidelity: float
    lower: float
    calibrated_on: int
    lookups: tuple[StoredLookup, ...]
    spare: tuple[SpareLookup, ...] = ()

    @property
    def kinds(self) -> dict[int, str]:
        """The kind of each cache, used or not, by stage."""
        found = {lookup.stage: lookup.kind for lookup in self.lookups}
        found |= {spare.stage: spare.kind for spare in self.spare}
        return dict(sorted(found.items()))

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages behind which a cache is, used or not."""
        used, spare = (lookup.stage for lookup in self.lookups), (one.stage for one in self.spare)
        return tuple(sorted((*used, *spare)))


@dataclass(frozen=True, slots=True)
class LookupFiles:
    """A lookup as data: the features that `graph` computes with `weights`, and what `head` makes of them."""

    graph: Graph
    weights: Mapping[str, Tensor]
    head: Head

    @property
    def bytes(self) -> int:
        """The size of all weights."""
        return sum(tensor.nbytes for tensor in (*self.weights.values(), *self.head.tensors().values()))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that no predictor was fitted to, as the lookups see them: heads are trained or shown on them later.

    `features[stage]` `(N, width) bfloat16` of the lookup behind that stage, `answers` `(N, classes) bfloat16` of the
    base model and its `classes` `(N,) int64`.
    """

    features: Mapping[int, Tensor]
    answers: Tensor
    classes: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return everything by name, to be written."""
        behind = {f"{FEATURES}-{stage}": rows for stage, rows in self.features.items()}
        return {**behind, "answers": self.answers, "classes": self.classes}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Rows":
        """Return what `tensors` wrote; raises `KeyError` or `ValueError` for anything else."""
        behind = {
            int(name.removeprefix(f"{FEATURES}-")): rows for name, rows in tensors.items() if name.startswith(FEATURES)
        }
        found = cls(behind, tensors["answers"], tensors["classes"])
        if len({len(rows) for rows in tensors.values()}) > 1:
            raise ValueError("the parts have different numbers of rows")
        return found


def write_caches(
    directory: ModelDirectory,
    caches: StoredCaches,
    files: Mapping[int, LookupFiles],
    *,
    held_out: Rows | None = None,
    lessons: Rows | None = None,
    new_entry: bool = False,
) -> ModelDirectory:
    """Put the caches into the model directory in place of the ones there; the manifest is renewed last.

    `held_out` and `lessons` are for adaptation: to show new heads on and to train them with. `new_entry` gives the
    model an empty first stage, because a cache stands before the network.
    """
    made = {LIST: json_bytes(caches)}
    if new_entry:
        made |= files_with_entry(directory)
    for stage, lookup in files.items():
        made[graph_name(stage)] = graph_to_json(lookup.graph)
        made[weights_name(stage)] = tensor_bytes(lookup.weights)
        made[head_name(stage)] = tensor_bytes(lookup.head.tensors())
    made |= {name: tensor_bytes(rows.tensors()) for name, rows in ((HELD_OUT, held_out), (LESSONS, lessons)) if rows}
    return directory.write_files(made, remove=_obsolete(directory, made))


def read_caches(directory: ModelDirectory) -> StoredCaches | None:
    """Return what `caches.json` says, or None for a model without learned caches; raises `RepositoryError`."""
    if LIST not in directory.files:
        return None
    caches = directory.read_json(LIST, StoredCaches)
    path = directory.path / LIST
    if caches.format != FORMAT:
        raise RepositoryError(f"{path} has format {caches.format}, this version reads {FORMAT}: build the caches again")
    stages = caches.stages
    last = len(read_model(directory).cuts)
    if len(set(stages)) != len(stages) or any(not 0 <= stage < last for stage in stages):
        raise RepositoryError(f"{path} names stages {stages} of a model with {last + 1}: build the caches again")
    if any(not math.isfinite(lookup.threshold) for lookup in caches.lookups):
        raise RepositoryError(f"{path} has a threshold that is no number: build the caches again")
    return caches


def read_lookup(directory: ModelDirectory, stage: int) -> LookupFiles:
    """Return graph and weights of the learned cache behind `stage`."""
    graph = graph_from_json(directory.read(graph_name(stage)))
    if len(graph.inputs) != 1 or [name for name, _ in graph.outputs] != [FEATURES]:
        raise RepositoryError(f"{directory.path / graph_name(stage)} is no learned cache: build the caches again")
    head = read_head(directory, head_name(stage))
    if graph.output_specs()[0].shape != (head.width,):
        raise RepositoryError(f"{directory.path / head_name(stage)} takes other features: build the caches again")
    return LookupFiles(graph, read_tensors(directory, weights_name(stage)), head)


def read_head(directory: ModelDirectory, name: str) -> Head:
    """Return the head in this file; raises `RepositoryError` if it is none."""
    try:
        return Head.from_tensors(read_tensors(directory, name))
    except ValueError as error:
        raise RepositoryError(f"{directory.path / name} is no head of a lookup ({error}): build it again") from None


def read_rows(directory: ModelDirectory, name: str) -> Rows | None:
    """Return the rows of `HELD_OUT` or `LESSONS`, or None if there are none."""
    if name not in directory.files:
        return None
    try:
        return Rows.from_tensors(read_tensors(directory, name))
    except (KeyError, ValueError) as error:
        raise RepositoryError(f"{directory.path / name} has no rows ({error}): build the caches again") from None


def with_caches(spec: ModelSpec, costs: ModelCosts, caches: StoredCaches | None) -> tuple[ModelSpec, ModelCosts]:
    """Return the model as the scheduler is to know it: where lookups stand, what they cost, how often they hit."""
    if caches is None:
        return spec, costs
    curves = {lookup.stage: lookup.seconds for lookup in caches.lookups}
    rates = {lookup.stage: lookup.hit_rate for lookup in caches.lookups}
    return replace(spec, lookups=tuple(curves)), replace(costs, lookups=curves, hit_rates=rates)


def graph_name(stage: int) -> str:
    """Return the name of a lookup's graph file."""
    return f"{CACHES}/stage-{stage}.json"


def weights_name(stage: int) -> str:
    """Return the name of a lookup's weights file."""
    return f"{CACHES}/stage-{stage}.safetensors"


def head_name(stage: int) -> str:
    """Return the name of the file of a lookup's head."""
    return f"{CACHES}/stage-{stage}.head.safetensors"


def _obsolete(directory: ModelDirectory, kept: Iterable[str]) -> tuple[str, ...]:
    return tuple(set(directory.names(CACHES)) - set(kept))
