"""The samples that learned caches are made from: model inputs, labels if known, and the world each row belongs to.

And whether the model is one to make them for. Learned caches answer for classifiers, and are compared by the class of
largest value. Regressors and embeddings may end in a linear layer of many columns too, so that shows nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec, is_floating
from latebind.domain.sizes import Dim
from latebind.program.graph import Graph
from latebind.program.metadata import read_model
from latebind.program.stored import read_graph
from latebind.repository.directory import ModelDirectory

CHOOSE_SHARE = 0.3  # of the calibration rows choose the thresholds; the others show the bound

SOFTMAX = ("aten._softmax.default", "aten._log_softmax.default")

REAL = 64  # rows of one size on which a build compares, if rows differ

NO_SAMPLES = "there are no samples: give rows to fit and to calibrate"

RowNumbers = NDArray[np.int64]
Rows = Tensor | Sequence[Tensor]  # (N, ...), or each row by itself where they differ in size


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of model inputs.

    `inputs` are tensors `(N, ...)` by name or in the order of the model's inputs; if rows differ in size, an input is a
    sequence of N tensors without the batch dimension. `labels` `(N,) int64` are the true classes. `worlds` `(N,) int64`
    number the conditions that rows were taken under (kinds of hardness, places, days). Rows for calibration count as
    independent draws: a world should have one row of each thing seen, not ten views.

    `lengths` `(N,) int64`, computed by `ordered`, are the products of the named dimensions; None if there are none.
    """

    inputs: tuple[Rows, ...] | Mapping[str, Rows]
    labels: Tensor | None = None
    worlds: Tensor | None = None
    lengths: Tensor | None = None

    def __len__(self) -> int:
        tensors = tuple(self.inputs.values()) if isinstance(self.inputs, Mapping) else self.inputs
        return len(tensors[0]) if tensors else 0

    def ordered(self, specs: tuple[TensorSpec, ...], dims: tuple[Dim, ...] = ()) -> "Samples":
        """Return the same rows with inputs as a tuple in the order of the model's, which may have named dimensions.

        Raises `ConfigError` if they are not what the model takes, contain NaN, or the numbers of rows differ.
        """
        given = self._in_order(specs)
        parts = tuple(_rows_of(part, spec) for part, spec in zip(given, specs, strict=True))
        for part, spec in zip(parts, specs, strict=True):
            shape = tuple(part.shape[1:]) if isinstance(part, Tensor) else spec.shape  # else `_lengths` checks each
            each = [part] if isinstance(part, Tensor) else part
            dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in each}
            if shape != spec.shape or dtypes - {spec.dtype}:
                raise ConfigError(
                    f"samples for {spec.name!r} are {shape} {', '.join(sorted(dtypes))}, "
                    f"the model takes {spec.shape} {spec.dtype}: give rows as the model takes them"
                )
            if is_floating(spec.dtype) and (bad := _rows_with_nan(part)):
                raise ConfigError(
                    f"samples for {spec.name!r} contain NaN in {bad} of {len(part)} rows, from which nothing can be "
                    "learned or calibrated: leave these rows out"
                )
        beside = [part for part in (self.labels, self.worlds) if part is not None]
        if len({len(part) for part in (*parts, *beside)}) != 1:
            raise ConfigError("inputs, labels and worlds of the samples have different numbers of rows")
        return Samples(parts, self.labels, self.worlds, _lengths(parts, specs, dims) if dims else None)

    def take(self, rows: Tensor) -> "Samples":
        """Return these rows, by number, as a new object."""
        labels, worlds, lengths = (None if part is None else part[rows] for part in self._beside)
        if isinstance(self.inputs, Mapping):
            return Samples({name: _some(part, rows) for name, part in self.inputs.items()}, labels, worlds, lengths)
        return Samples(tuple(_some(part, rows) for part in self.inputs), labels, worlds, lengths)

    def batch(self, rows: Tensor | slice) -> tuple[Tensor, ...]:
        """Return these rows, which must have one size, as the inputs of one call; they must be `ordered`."""
        assert isinstance(self.inputs, tuple)
        some = (_some(part, rows) for part in self.inputs)
        return tuple(part.contiguous() if isinstance(part, Tensor) else torch.stack(list(part)) for part in some)

    def of_one_size(self, rows: Sequence[int]) -> list[Tensor]:
        """Return the places within `rows` of those of each size, in the order of first occurrence."""
        assert isinstance(self.inputs, tuple)
        sized = [part for part in self.inputs if not isinstance(part, Tensor)]
        found: dict[tuple[torch.Size, ...], list[int]] = {}
        for place, row in enumerate(rows):
            found.setdefault(tuple([part[row].shape for part in sized]), []).append(place)
        return [torch.tensor(places) for places in found.values()]

    def typical(self) -> tuple[Tensor, ...]:
        """Return all rows as the inputs of one call; if they differ in size, some of the median length.

        Raises `ConfigError` if there are none.
        """
        if not len(self):
            raise ConfigError(NO_SAMPLES)
        if self.lengths is None:
            return self.batch(slice(None))
        (middle,) = self.at_quantiles((0.5,))
        return next(self.batch(rows[:REAL]) for rows in self.of_one_size(range(len(self))) if middle in rows)

    def at_quantiles(self, quantiles: Sequence[float]) -> list[int]:
        """Return rows at these quantiles of length, one for each length; the first row if all are alike."""
        if self.lengths is None:
            return [0]
        order = self.lengths.argsort(stable=True)
        places = [round(quantile * (len(order) - 1)) for quantile in quantiles]
        return list({int(self.lengths[row]): row for row in order[places].tolist()}.values())

    def halves(self, seed: int = 0) -> tuple["Samples", "Samples"]:
        """Return two halves of the rows, drawn at random: to train on and to calibrate on."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        fit, calibrate = (self.take(part) for part in order.tensor_split(2))
        return fit, calibrate

    @property
    def _beside(self) -> tuple[Tensor | None, ...]:
        return self.labels, self.worlds, self.lengths

    def _in_order(self, specs: tuple[TensorSpec, ...]) -> tuple[Rows, ...]:
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


def _rows_of(part: Rows, spec: TensorSpec) -> Rows:
    """Return rows as the model's input has them: a tensor, or, if they may differ in size, each by itself."""
    if spec.sizes:
        return [torch.as_tensor(row) for row in part]
    try:
        return whole(part)
    except RuntimeError:
        raise ConfigError(
            f"samples for {spec.name!r} differ in size, the model takes {spec.shape}: declare what may vary (--dim, or "
            "dims= in Python)"
        ) from None


def whole(part: Rows) -> Tensor:
    """Return rows as one tensor; raises `RuntimeError` if they differ in size."""
    return part if isinstance(part, Tensor) else torch.stack([torch.as_tensor(row) for row in part])


def _some(part: Rows, rows: Tensor | slice) -> Rows:
    if isinstance(part, Tensor):
        return part[rows]
    return part[rows] if isinstance(rows, slice) else [part[row] for row in rows.tolist()]


def _rows_with_nan(part: Rows) -> int:
    if isinstance(part, Tensor):
        return int(part.isnan().reshape(len(part), -1).any(dim=1).sum())
    return sum(bool(row.isnan().any()) for row in part)


def _lengths(parts: tuple[Rows, ...], specs: tuple[TensorSpec, ...], dims: tuple[Dim, ...]) -> Tensor:
    """Return the length of each row. Raises `ConfigError` for a row of a size that is not allowed."""
    model = ModelSpec("", "1", specs, (), 1, 1, dims=dims)
    known: dict[tuple[torch.Size, ...], int] = {}
    found = []
    for number, row in enumerate(zip(*parts, strict=True)):
        shapes = tuple([tensor.shape for tensor in row])
        if shapes not in known:
            try:
                own = model.dims_of({spec.name: shape for spec, shape in zip(specs, shapes, strict=True)})
            except ValueError as error:
                raise ConfigError(f"row {number} of the samples: {error}") from None
            known[shapes] = prod(own.values())
        found.append(known[shapes])
    return torch.tensor(found)


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
            f"{name} returns {outputs[0].dtype} of shape {outputs[0].shape} a row: learned caches answer for "
            f"classifiers, which return one float32 for each of 2 or more classes; {instead}"
        )


def checked(samples: Samples, spec: ModelSpec) -> Samples:
    """Return the samples with inputs in the model's order and labels as int64; labels may be of any integer dtype.

    Raises `ConfigError` if there are none, if they do not fit the model, and for labels that are not classes.
    """
    ordered = samples.ordered(spec.inputs, spec.dims)
    classes = spec.outputs[0].shape[0]
    if len(ordered) == 0:
        raise ConfigError(NO_SAMPLES)
    labels = ordered.labels
    if labels is not None and not _are_classes(labels, classes):
        raise ConfigError(
            f"labels must be whole numbers from 0 to {classes - 1}, one for each row: learned caches answer for "
            "classifiers; leave labels out if the model is not one"
        )
    return ordered if labels is None else replace(ordered, labels=labels.long())


def check_answers(answers: Tensor) -> Tensor:
    """Return the network's answers `(N, classes)` to samples; raises `ConfigError` if they contain NaN."""
    if bad := int(answers.isnan().any(dim=1).sum()):
        raise ConfigError(
            f"the network answers {bad} of {len(answers)} rows of the samples with NaN, which is not a class: leave "
            "these rows out, or fix the network's weights"
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
    """Raise `ConfigError` unless the output is declared as "classify" (scores of classes) or "" (not declared)."""
    if task not in {"", "classify"}:
        raise ConfigError(f"task is {task!r}: give 'classify', or leave it out")


def doubt(directory: ModelDirectory, samples: Sequence[Samples], task: str) -> str:
    """Return why the model is not known to be a classifier, and what to do; "" if it is.

    It is known if the user declares it (`check_task`), gives the classes of rows, or the network ends in a softmax.
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
