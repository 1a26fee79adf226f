"""The samples that learned caches are made from: model inputs, labels if known, and the world each row belongs to.

And whether their model is one to make them for. Learned caches answer for classifiers, and are compared by the class of
largest value. A regressor and an embedding may end in a linear layer of many columns too, so that shows nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.program.graph import Graph
from latebind.program.stored import read_graph, read_model
from latebind.repository.directory import ModelDirectory

CHOOSE_SHARE = 0.3  # of the calibration rows choose the thresholds; the others show the bound

SOFTMAX = ("aten._softmax.default", "aten._log_softmax.default")

RowNumbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of model inputs.

    `inputs` are tensors `(N, ...)` by name or in the order of the model's inputs. `labels` `(N,) int64` are the true
    classes. `worlds` `(N,) int64` number the conditions that rows were taken under (kinds of hardness, places, days).
    Rows for calibration count as independent draws: a world should have one row of each thing seen, not ten views.
    """

    inputs: tuple[Tensor, ...] | dict[str, Tensor]
    labels: Tensor | None = None
    worlds: Tensor | None = None

    def __len__(self) -> int:
        tensors = tuple(self.inputs.values()) if isinstance(self.inputs, Mapping) else self.inputs
        return len(tensors[0]) if tensors else 0

    def ordered(self, specs: tuple[TensorSpec, ...]) -> "Samples":
        """Return the same rows with inputs as a tuple in the model's order.

        Raises `ConfigError` if they are not what the model takes, hold NaN, or the numbers of rows differ.
        """
        tensors = self._in_order(specs)
        for tensor, spec in zip(tensors, specs, strict=True):
            dtype = str(tensor.dtype).removeprefix("torch.")
            if tuple(tensor.shape[1:]) != spec.shape or dtype != spec.dtype:
                raise ConfigError(
                    f"samples for {spec.name!r} are {tuple(tensor.shape[1:])} {dtype}, "
                    f"the model takes {spec.shape} {spec.dtype}: give rows as the model takes them"
                )
            if tensor.is_floating_point() and (bad := int(tensor.isnan().reshape(len(tensor), -1).any(dim=1).sum())):
                raise ConfigError(
                    f"samples for {spec.name!r} hold NaN in {bad} of {len(tensor)} rows, from which nothing can be "
                    "learned or calibrated: leave these rows out"
                )
        beside = [part for part in (self.labels, self.worlds) if part is not None]
        if len({len(part) for part in (*tensors, *beside)}) != 1:
            raise ConfigError("inputs, labels and worlds of the samples have different numbers of rows")
        return Samples(tensors, self.labels, self.worlds)

    def take(self, rows: Tensor) -> "Samples":
        """Return these rows, by number, as a new object."""
        labels = self.labels[rows] if self.labels is not None else None
        worlds = self.worlds[rows] if self.worlds is not None else None
        if isinstance(self.inputs, dict):
            return Samples({name: tensor[rows] for name, tensor in self.inputs.items()}, labels, worlds)
        return Samples(tuple(tensor[rows] for tensor in self.inputs), labels, worlds)

    def halves(self, seed: int = 0) -> tuple["Samples", "Samples"]:
        """Return two halves of the rows, which are drawn: to train on and to calibrate on."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        fit, calibrate = (self.take(part) for part in order.tensor_split(2))
        return fit, calibrate

    def _in_order(self, specs: tuple[TensorSpec, ...]) -> tuple[Tensor, ...]:
        if not isinstance(self.inputs, Mapping):
            if len(self.inputs) != len(specs):
                raise ConfigError(f"the model takes {len(specs)} inputs, the samples have {len(self.inputs)}")
            return self.inputs
        missing = [spec.name for spec in specs if spec.name not in self.inputs]
        if missing or len(self.inputs) != len(specs):
            wanted = ", ".join(spec.name for spec in specs)
            have = ", ".join(self.inputs)
            raise ConfigError(
                f"the model takes the inputs {wanted}, the samples have {have}: name them as the model does"
            )
        return tuple(self.inputs[spec.name] for spec in specs)


def check_classifier(spec: ModelSpec) -> None:
    """Raise `ConfigError` for a model that learned caches cannot answer for: one output `(B, classes) float32`."""
    name, outputs = spec.name, spec.outputs
    instead = "build this model without data for caches, and it is served whole"
    if len(outputs) != 1:
        raise ConfigError(
            f"{name} has {len(outputs)} outputs: learned caches answer for classifiers with one output; {instead}"
        )
    if outputs[0].dtype != "float32" or len(outputs[0].shape) != 1 or outputs[0].shape[0] < 2:
        raise ConfigError(
            f"{name} yields {outputs[0].dtype} of shape {outputs[0].shape} a row: learned caches answer for "
            f"classifiers, which yield one float32 for each of 2 or more classes; {instead}"
        )


def checked(samples: Samples, spec: ModelSpec) -> Samples:
    """Return the samples with inputs in the model's order and labels as int64, whatever whole numbers they came as.

    Raises `ConfigError` if there are none, if they do not fit the model, and for labels that are no classes.
    """
    ordered = samples.ordered(spec.inputs)
    classes = spec.outputs[0].shape[0]
    if len(ordered) == 0:
        raise ConfigError("there are no samples: give rows to fit and to calibrate")
    labels = ordered.labels
    if labels is not None and not _are_classes(labels, classes):
        raise ConfigError(
            f"labels must be whole numbers from 0 to {classes - 1}, one for each row: learned caches answer for "
            "classifiers; leave labels out where the model is none"
        )
    return ordered if labels is None else replace(ordered, labels=labels.long())


def check_answers(answers: Tensor) -> Tensor:
    """Return the network's answers `(N, classes)` to samples; raises `ConfigError` where they are NaN."""
    if bad := int(answers.isnan().any(dim=1).sum()):
        raise ConfigError(
            f"the network answers {bad} of {len(answers)} rows of the samples with NaN, which is no class: leave these "
            "rows out, or mend the network's weights"
        )
    return answers


def _are_classes(labels: Tensor, classes: int) -> bool:
    if labels.dim() != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        return False
    return 0 <= int(labels.min()) <= int(labels.max()) < classes


def split_worlds(samples: Samples, *, seed: int) -> tuple[list[RowNumbers], list[RowNumbers]]:
    """Return the row numbers for choosing and those for verifying, each as a list with one array for each world.

    Worlds of the same size are split alike. So if several worlds show the same things in the same order, all views of
    a thing fall on the same side.
    """
    worlds = samples.worlds.numpy() if samples.worlds is not None else np.zeros(len(samples), dtype=np.int64)
    choose, verify = [], []
    for world in np.unique(worlds):
        rows = np.flatnonzero(worlds == world)
        order = rows[np.random.default_rng(seed).permutation(len(rows))]
        cut = round(CHOOSE_SHARE * len(rows))
        choose.append(np.sort(order[:cut]))
        verify.append(np.sort(order[cut:]))
    return choose, verify


def check_task(task: str) -> None:
    """Raise `ConfigError` for what no output may be declared to mean: "classify" (scores of classes), "" (nothing)."""
    if task not in {"", "classify"}:
        raise ConfigError(f"task is {task!r}: give 'classify', or leave it out")


def doubt(directory: ModelDirectory, samples: Sequence[Samples], task: str) -> str:
    """Return why nobody knows that the model is a classifier, and what to do; "" where that is certain.

    It is certain if the user declares it (`check_task`), gives the classes of rows, or the network ends in a softmax.
    """
    check_task(task)
    if task or any(part.labels is not None for part in samples):
        return ""
    model = read_model(directory)
    if _ends_in_softmax(read_graph(directory, model)):
        return ""
    return (
        f"learned caches answer for classifiers, and nothing says that the output of {model.name} is scores of "
        "classes, of which the largest is the answer. If it is, declare it (--task classify, or task='classify' in "
        "Python) or give labels with the rows; any other model is served whole"
    )


def _ends_in_softmax(graph: Graph) -> bool:
    """Return whether the only output is a softmax over the one dimension of a row."""
    if len(graph.outputs) != 1 or len(graph.output_specs()[0].shape) != 1:
        return False
    (_, last), nodes = graph.outputs[0], {node.name: node for node in graph.nodes}
    return last in nodes and nodes[last].op in SOFTMAX
