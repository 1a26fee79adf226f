"""Loads modules and data for a build, from `package.module:function` or a file. Runs code, which serving never does."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from latebind.cli.options import read_dims
from latebind.domain.errors import ConfigError, LatebindError
from latebind.domain.model import ITEM_BYTES, Media, Task, TensorSpec
from latebind.domain.sizes import Dim, Size
from latebind.domain.wording import instead
from latebind.folders.rows import Labeled, is_raw, parts_of, read_labeled, read_samples, read_texts
from latebind.learned.samples import Rows, Samples
from latebind.preprocessing.opening import open_preprocessor
from latebind.program.declared import Declared, declared
from latebind.program.export import made_of_another
from latebind.program.metadata import StoredModel, read_model
from latebind.repository.directory import ModelDirectory

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Array | Sequence[Array]  # (N, *shape), or N of different sizes


def load_function(reference: str) -> Callable[..., Any]:
    """Import what `package.module:function` names; the working directory is on the path. Raises `ConfigError`."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ConfigError(
            f"{reference!r}: write it as package.module:function, such as examples.cifar10.model:resnet56"
        )
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{reference!r} names a file: write the module, {dotted}:{name}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported = importlib.import_module(module)
        found = getattr(imported, name, None)
    except (ImportError, AttributeError) as error:
        lost = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        hint = "; is its folder the working directory?" if lost else ""  # else the error is inside it
        raise ConfigError(f"{reference!r} cannot be imported: {error}{hint}") from error
    except Exception as error:  # the user's module, which may raise anything as it is imported
        raise ConfigError(f"{reference!r} cannot be imported: {_message(error)}") from error
    if found is None:
        public = [each for each, value in vars(imported).items() if callable(value) and not each.startswith("_")]
        raise ConfigError(f"{reference!r} cannot be imported: {module} has no {name!r}{instead(name, public)}")
    if not callable(found):
        raise ConfigError(f"{reference!r} is a {type(found).__name__}: name a function or class that makes the module")
    function: Callable[..., Any] = found
    return function


def _called(reference: str, named: Mapping[str, str]) -> object:
    """Return what the function returns. An exception becomes a `ConfigError` of one line with its place."""
    function = load_function(reference)
    try:
        return function(**named)
    except LatebindError:
        raise
    except Exception as error:  # the user's code, which may raise anything
        given = f" with --data-option {named}" if named else ""
        raise ConfigError(f"{reference!r}{given} raised {_message(error)}") from error


def _message(error: Exception) -> str:
    """Return an exception's message, and where it was raised, unless that is the call in this file."""
    frames = traceback.extract_tb(error.__traceback__)
    place = "" if frames[-1].filename == __file__ else f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {error}{place}"


def load_module(reference: str, weights: Path | None) -> nn.Module:
    """Make the module that `reference` names, in evaluation mode, and fill it from a `.safetensors` file if given."""
    module = _called(reference, {})
    if (kind := made_of_another(module)) is not None:
        raise ConfigError(f"{reference!r} made {kind}: return the nn.Module that it was made of")
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{reference!r} made something of type {type(module).__name__}: it must make a torch.nn.Module"
        )
    if weights is not None:
        _fill(module, weights)
    return module.eval()


def _fill(module: nn.Module, weights: Path) -> None:
    try:
        missing, unexpected = load_model(module, weights, strict=False)  # tied weights are in the file once
    except OSError as error:
        reason = error.strerror or str(error).partition(f": {weights}")[0]  # safetensors names the file too
        raise ConfigError(f"{weights} cannot be read: {reason}") from error
    except SafetensorError as error:
        raise ConfigError(
            f"{weights} is not a .safetensors file: write one with safetensors.torch.save_model(module, FILE); "
            "files of torch.save are not read, because they may contain code"
        ) from error
    except RuntimeError as error:  # tensors of other shapes
        raise ConfigError(f"{weights} does not fit the module: {' '.join(str(error).split())[:500]}") from error
    wrong = []
    for problem, names in (("it lacks", sorted(missing)), ("the module has no", sorted(unexpected))):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        wrong += [f"{problem} {', '.join(names[:3])}{more}"] if names else []
    if wrong:
        raise ConfigError(f"{weights} does not fit the module: {'; '.join(wrong)}; save it from the same module")


def example_inputs(
    descriptions: Sequence[str], ranges: Sequence[str] = (), *, seed: int
) -> tuple[dict[str, Tensor], Declared]:
    """Make a batch of two for every `name=dtype:3x32x32`, and return what may vary in its rows.

    The shape is without the batch dimension; it has numbers, and names with `ranges`, such as `L=1..512`. Floats
    are random. Integers are 0, or 1 if the name contains "mask": with everything masked there is nothing to compare.
    Raises `ConfigError`.
    """
    generator, dims = _generator(seed), read_dims(ranges)
    made: dict[str, Tensor] = {}
    sizes: dict[str, list[Size]] = {}
    for description in descriptions:
        name, _, rest = description.partition("=")
        dtype, _, shape = rest.partition(":")
        row: list[Size] = [int(size) if size.isdecimal() else size for size in shape.split("x")] if shape else []
        if not name or dtype not in ITEM_BYTES or not all(row):
            known = ", ".join(ITEM_BYTES)
            raise ConfigError(f"{description!r}: write it as image=float32:3x32x32, with a dtype of {known}")
        for size in row:
            if isinstance(size, str) and size not in dims:
                raise ConfigError(f"{description!r:.140}: {_undeclared(size, dims)}")
        sizes[name] = row
        sides = [_typical(dims[size]) if isinstance(size, str) else size for size in row]
        rows, kind = (2, *sides), getattr(torch, dtype)
        largest = prod([dims[size].most if isinstance(size, str) else size for size in row]) * ITEM_BYTES[dtype]
        if 2 * largest > _memory():  # the system would kill a process that takes so much
            which = "rows of the largest size" if sides != row else "such rows"
            raise ConfigError(f"{description!r:.140}: two {which} are larger than memory")
        if kind.is_floating_point:
            made[name] = torch.randn(rows, generator=generator).to(kind)
        else:
            made[name] = torch.full(rows, int("mask" in name), dtype=kind)
    return made, declared(dims, sizes)


def check_batch(specs: Iterable[TensorSpec], most: int, memory: int | None = None) -> None:
    """Raise `ConfigError` if `most` rows, each the largest that these inputs allow, do not fit in memory."""
    row, has = sum(spec.row_bytes for spec in specs), _memory() if memory is None else memory
    if row * most > has:
        problem = (
            f"a batch of {most} rows of the largest size has {row * most / 1e9:.1f} GB, and memory {has / 1e9:.1f} GB"
        )
        raise ConfigError(f"{problem}: declare smaller rows (--input, --dim) or a smaller --max-batch")


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _undeclared(size: str, dims: Mapping[str, Dim]) -> str:
    """Return what to write for a size that is neither a number nor a dimension."""
    if not size.isidentifier():
        return f"{size!r} is not a size: write a number, or a name whose range --dim gives, such as L"
    other = instead(size, dims) if dims else ""
    return f"{size} has no --dim{other}; add --dim {size}=1..512, with the smallest and largest size of a row"


def _typical(dim: Dim) -> int:
    """Return a size in the middle: at either end, an export may assume what does not hold elsewhere."""
    return max(dim.least, (dim.least + dim.most) // (2 * dim.step) * dim.step)


def _generator(seed: int) -> torch.Generator:
    """Return a generator with this seed. Raises `ConfigError` for one that torch or numpy does not take."""
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"--seed {seed}: give a whole number of 0 or more, below 2^63")
    return torch.Generator().manual_seed(seed)


def load_samples(
    data: str, given: Sequence[str] | None, *, seed: int, inputs: Sequence[TensorSpec] = ()
) -> tuple[Samples, Samples]:
    """Return the samples to fit on and those to calibrate on, from a function or from the halves of a file.

    A function is `given` the options of `--data-option`, as `key=value`. If rows of the `inputs` differ in size, see
    `_own_sizes`. Raises `ConfigError`.
    """
    _generator(seed)
    found = _data(data, given)
    if isinstance(found, dict):
        labels = found.pop("labels", None)
        rows = {name: _tensors(part) for name, part in _own_sizes(data, found, inputs).items()}
        return Samples(rows, None if labels is None else torch.from_numpy(labels)).halves(seed)
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Samples) for part in found)):
        raise ConfigError(f"{data!r} must return two latebind.learned.samples.Samples: to fit and to calibrate")
    return found


def samples_for(
    directory: ModelDirectory, data: str, given: Sequence[str] | None, *, seed: int
) -> tuple[Samples, Samples]:
    """Do what `load_samples` does for a built model, also for tables and folders if it reads raw inputs.

    Raises `ConfigError`.
    """
    model = read_model(directory)
    if not is_raw(data):
        return load_samples(data, given, seed=seed, inputs=model.inputs)
    _generator(seed)
    if model.about.task is Task.EMBED and [each.media for each in model.about.raw] == [Media.TEXT]:
        texts = Labeled({model.about.raw[0].name: read_texts(Path(data))})
        return _prepared(directory, model, texts).halves(seed)
    labeled, samples = _raw_samples(directory, model, data)
    return parts_of(samples, labeled, seed=seed)


def rows_for(
    directory: ModelDirectory, data: str, given: Sequence[str] | None
) -> tuple[dict[str, Arrays], Array | None]:
    """Do what `load_sized_rows` does for a built model, also for tables and folders: all of their rows."""
    model = read_model(directory)
    if not is_raw(data):
        return load_sized_rows(data, given, model.inputs)
    _, samples = _raw_samples(directory, model, data)
    assert isinstance(samples.inputs, Mapping)
    assert samples.labels is not None
    return {name: _arrays(part) for name, part in samples.inputs.items()}, samples.labels.numpy()


def _raw_samples(directory: ModelDirectory, model: StoredModel, data: str) -> tuple[Labeled, Samples]:
    if not model.about.raw or not model.about.labels:
        raise ConfigError(
            f"--data {data}: {model.name} is not a classifier of texts, pictures or sounds: give an .npz file"
        )
    labeled = read_labeled(Path(data), model.about.raw[0].media, model.about.labels)
    return labeled, _prepared(directory, model, labeled)


def _prepared(directory: ModelDirectory, model: StoredModel, rows: Labeled) -> Samples:
    preprocessor = open_preprocessor(directory, model.about)
    return read_samples(preprocessor, rows, [spec.name for spec in model.inputs])[0]


def load_rows(data: str, given: Sequence[str] | None) -> tuple[dict[str, Array], Array | None]:
    """Return rows to send, an array `(N, *shape)` for each input, and labels `(N,)` if there are any.

    A function is `given` the options of `--data-option`, as `key=value`. Raises `ConfigError`.
    """
    rows, labels = load_sized_rows(data, given, ())
    found = {name: part for name, part in rows.items() if isinstance(part, np.ndarray)}
    if len(found) < len(rows):
        raise ConfigError(f"{data!r} gives rows of several sizes: here all rows must have the same size")
    return found, labels


def load_sized_rows(
    data: str, given: Sequence[str] | None, inputs: Sequence[TensorSpec]
) -> tuple[dict[str, Arrays], Array | None]:
    """Do what `load_rows` does, with N arrays for those `inputs` whose rows differ in size (`_own_sizes`)."""
    found = _data(data, given)
    if isinstance(found, dict):
        labels = found.pop("labels", None)
        return _own_sizes(data, found, inputs), labels
    if not isinstance(found, Samples):
        raise ConfigError(f"{data!r} must return latebind.learned.samples.Samples")
    if not isinstance(found.inputs, Mapping):
        raise ConfigError(f"{data!r} must name its inputs: return Samples with a dictionary of inputs")
    labels = None if found.labels is None else found.labels.numpy()
    return {name: _arrays(part) for name, part in found.inputs.items()}, labels


def _tensors(part: Arrays) -> Rows:
    return torch.from_numpy(part) if isinstance(part, np.ndarray) else [torch.from_numpy(row) for row in part]


def _arrays(part: Rows) -> Arrays:
    return part.numpy() if isinstance(part, Tensor) else [np.asarray(row) for row in part]


def _own_sizes(data: str, arrays: dict[str, Array], inputs: Sequence[TensorSpec]) -> dict[str, Arrays]:
    """Return the arrays of a file, each row cut to its own size if the file has sizes.

    An integer array `(N,)` named as a dimension, such as `L`, has the size of each row; values beyond it are padding.
    Without such an array all rows have the size of the array. Raises `ConfigError`.
    """
    named = {size for spec in inputs for size in spec.sizes if isinstance(size, str)} - {spec.name for spec in inputs}
    sizes = {name: arrays.pop(name) for name in named & arrays.keys()}
    for name, each in sizes.items():
        if each.ndim != 1 or each.dtype.kind not in "iu":
            raise ConfigError(f"{data}: {name} must have one whole number for each row, its size")
    found = dict[str, Arrays](arrays)
    for spec in inputs:
        axes = {axis: sizes[size] for axis, size in enumerate(spec.sizes, start=1) if size in sizes}
        if spec.name not in arrays or not axes:
            continue
        rows = arrays[spec.name]
        for axis, each in axes.items():
            if rows.ndim != len(spec.sizes) + 1 or not 1 <= each.min() <= each.max() <= rows.shape[axis]:
                raise ConfigError(
                    f"{data}: {spec.name} has shape {list(rows.shape)}, and {spec.sizes[axis - 1]} says that rows are "
                    f"{each.min()} to {each.max()} long: save each row padded to the longest, with its own size"
                )
        found[spec.name] = [
            row[tuple([slice(axes[axis][number]) if axis in axes else slice(None) for axis in range(1, rows.ndim)])]
            for number, row in enumerate(rows)
        ]
    return found


def _data(data: str, given: Sequence[str] | None) -> object:
    """Return the arrays of an `.npz` file, `labels` among them if there are any, else what a function returns."""
    named = {}
    for pair in given or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{pair!r}: write it as key=value")
        named[key] = value
    if not data.endswith(".npz"):
        if ":" not in data:
            raise ConfigError(f"--data {data!r}: give an .npz file, or a function as package.module:function")
        return _called(data, named)
    try:
        with np.load(data) as opened:  # object arrays are refused by default
            arrays = {name: opened[name] for name in opened.files}
    except OSError as error:
        raise ConfigError(f"{data} cannot be read: {error.strerror or error}") from error
    except (AttributeError, BadZipFile, EOFError, ValueError) as error:
        raise ConfigError(
            f"{data} is not an .npz file of plain arrays: write one with numpy.savez({Path(data).name!r}, image=rows)"
        ) from error
    if not arrays.keys() - {"labels"}:
        raise ConfigError(f"{data} holds no inputs: save an array for each input of the model")
    if len({len(rows) for rows in arrays.values()}) != 1:
        raise ConfigError(
            f"the arrays in {data} have different numbers of rows: give each input and label of every row"
        )
    return arrays
