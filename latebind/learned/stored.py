"""Learned caches in a model directory: `caches/caches.json`, and for each cache a graph, its weights and a head.

Beside them `accuracy.json`: how often the whole network is right, by which queries choose among models. A directory
without it holds a model that was built without labels.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from latebind.domain.errors import ConfigError, ExportError, RepositoryError
from latebind.learned.head import Head
from latebind.learned.metadata import LIST, Accuracy, StoredCaches, graph_file, head_file, stage_file, weights_file
from latebind.program.backends import BACKENDS
from latebind.program.device import has_torch, without_torch
from latebind.program.graph import Graph, graph_to_json, read_graph_file
from latebind.program.metadata import read_model
from latebind.program.operators import resolve
from latebind.program.stage_files import NeedsTorch, anything, files_of, has_files, needs_file
from latebind.program.stored import files_with_entry
from latebind.repository.directory import CACHES, ModelDirectory, json_bytes
from latebind.repository.tensors import check_weights, read_arrays, read_tensors, tensor_bytes

if TYPE_CHECKING:
    from torch import Tensor

FEATURES = "features"
HELD_OUT, LESSONS = f"{CACHES}/held-out.safetensors", f"{CACHES}/lessons.safetensors"


@dataclass(frozen=True, slots=True)
class LookupFiles:
    """A lookup as data: `graph` and `weights` compute features, and `head` turns them into answers and scores.

    Weights are tensors, or arrays if its network is `stored` in a directory as OpenVINO files, under its `name`.
    """

    graph: Graph
    weights: Mapping[str, Any]
    head: Head
    name: str = ""
    stored: ModelDirectory | None = None

    @property
    def bytes(self) -> int:
        """The size of all weights."""
        return sum(tensor.nbytes for tensor in (*self.weights.values(), *self.head.tensors().values()))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that no predictor was fitted to, as features: new heads are trained or verified on them.

    `features[name]` are `(N, width) bfloat16` of the lookup of that name, `answers` `(N, classes) bfloat16` of the base
    model, `classes` `(N,) int64` its classes, and `lengths` `(N,) int64` those of the rows; None if all are alike.
    `end` `(N,) bool` says whether the network's own answers are the base model's; None if it is the base model.
    """

    features: Mapping[str, "Tensor"]
    answers: "Tensor"
    classes: "Tensor"
    lengths: "Tensor | None" = None
    end: "Tensor | None" = None

    def tensors(self) -> dict[str, "Tensor"]:
        """Return all tensors by name, to be written."""
        features = {f"{FEATURES}-{name}": rows for name, rows in self.features.items()}
        some = {"lengths": self.lengths, "end": self.end}
        there = {name: part for name, part in some.items() if part is not None}
        return {**features, "answers": self.answers, "classes": self.classes, **there}

    def seen_by(self, lookups: Iterable[str]) -> "Rows":
        """Return the same rows with the features of these lookups only."""
        return replace(self, features={name: self.features[name] for name in lookups})

    def take(self, numbers: "Tensor") -> "Rows":
        """Return some of the rows, by number."""
        features = {name: found[numbers] for name, found in self.features.items()}
        lengths, end = (None if part is None else part[numbers] for part in (self.lengths, self.end))
        return Rows(features, self.answers[numbers], self.classes[numbers], lengths, end)

    def joined(self, other: "Rows") -> "Rows":
        """Return these rows, followed by others with features of the same lookups."""
        import torch  # noqa: PLC0415  (imported already: there are rows)

        features = {name: torch.cat([rows, other.features[name]]) for name, rows in self.features.items()}
        answers = torch.cat([self.answers, other.answers])

        def both(one: "Tensor | None", another: "Tensor | None") -> "Tensor | None":
            return None if one is None or another is None else torch.cat([one, another])

        lengths, end = both(self.lengths, other.lengths), both(self.end, other.end)
        return Rows(features, answers, torch.cat([self.classes, other.classes]), lengths, end)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, "Tensor"]) -> "Rows":
        """Return the rows that `tensors` returned; raises `KeyError` or `ValueError` for anything else."""
        prefix = f"{FEATURES}-"
        features = {name.removeprefix(prefix): rows for name, rows in tensors.items() if name.startswith(prefix)}
        found = cls(features, tensors["answers"], tensors["classes"], tensors.get("lengths"), tensors.get("end"))
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
    """Write the caches into the model directory, replacing existing ones; the manifest is written last.

    `files` are by name. `held_out` and `lessons` are for adaptation, to verify new heads on and to train them with.
    `new_entry` gives the model an empty first stage, because a cache comes before the network.
    """
    made = {LIST: json_bytes(caches)}
    if new_entry:
        made |= files_with_entry(directory)
    backend = read_model(directory).backend
    for name, lookup in files.items():
        if BACKENDS[backend].has_files and needs_file(lookup.graph, lookup.weights, backend):
            with suppress(NeedsTorch, ExportError):  # torch runs it, even if the model needs no torch otherwise
                made |= files_of(stage_file(name), lookup.graph, lookup.weights, packs=False)
        made[graph_file(name)] = graph_to_json(lookup.graph)
        made[weights_file(name)] = tensor_bytes(lookup.weights)
        made[head_file(name)] = tensor_bytes(lookup.head.tensors())
    made |= {name: tensor_bytes(rows.tensors()) for name, rows in ((HELD_OUT, held_out), (LESSONS, lessons)) if rows}
    return directory.write_files(made, remove=set(directory.names(CACHES)) - set(made))


class Read(Protocol):
    """Reads weights: arrays if a network is `stored` as OpenVINO files, else tensors."""

    def __call__(self, directory: ModelDirectory, name: str, *, stored: bool) -> Mapping[str, Any]:
        """Return all weights in a file."""


def read_whole(directory: ModelDirectory, name: str, *, stored: bool) -> Mapping[str, Any]:
    """Return all weights in a file, with all of them in memory."""
    return read_arrays(directory, name) if stored else read_tensors(directory, name)


def read_lookup(
    directory: ModelDirectory, name: str, read: Read = read_whole, *, backend: str = "eager"
) -> LookupFiles:
    """Return the files of the learned cache of this name, for a model on `backend`; `read` reads its weights.

    Raises `RepositoryError` if they do not form a learned cache.
    """
    by_openvino = BACKENDS[backend].has_files
    graph = read_graph_file(directory, graph_file(name), known=anything if by_openvino else resolve)
    if len(graph.inputs) != 1 or [output for output, _ in graph.outputs] != [FEATURES]:
        raise RepositoryError(f"{directory.path / graph_file(name)} is not a learned cache: build the caches again")
    head = read_head(directory, head_file(name))
    if graph.output_specs()[0].shape != (head.width,):
        raise RepositoryError(f"{directory.path / head_file(name)} takes other features: build the caches again")
    stored = by_openvino and (not graph.whole.nodes or has_files(directory, stage_file(name), graph))
    if not stored and not has_torch():
        raise ConfigError(without_torch(directory.path / graph_file(name), backend))
    weights = read(directory, weights_file(name), stored=stored)
    check_weights(directory, weights_file(name), graph.weights(), weights)
    return LookupFiles(graph, weights, head, name, directory if stored else None)


def read_head(directory: ModelDirectory, name: str) -> Head:
    """Return the head in this file; raises `RepositoryError` if it holds none."""
    try:
        return Head.from_tensors(read_arrays(directory, name))
    except ValueError as error:
        raise RepositoryError(
            f"{directory.path / name} is not the head of a lookup ({error}): build it again"
        ) from None


def read_rows(directory: ModelDirectory, name: str) -> Rows | None:
    """Return the rows of `HELD_OUT` or `LESSONS`, or None if there is no such file; raises `RepositoryError`."""
    if name not in directory.files:
        return None
    try:
        return Rows.from_tensors(read_tensors(directory, name))
    except (KeyError, ValueError) as error:
        raise RepositoryError(f"{directory.path / name} has no rows ({error}): build the caches again") from None


def accuracy_of(answers: "Tensor", labels: "Tensor") -> Accuracy:
    """Return how often `answers` `(N, classes)` are greatest at the `labels` `(N,)`."""
    return Accuracy(float((answers.argmax(dim=1) == labels).double().mean()), len(labels))
