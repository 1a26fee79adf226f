"""Where modules and data of a build come from: `package.module:function` or a file. A trusted step, never serving."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from latebind.domain.errors import ConfigError
from latebind.domain.model import ITEM_BYTES
from latebind.learned.samples import Samples

Array = np.ndarray[Any, np.dtype[Any]]


def load_function(reference: str) -> Callable[..., Any]:
    """Import what `package.module:function` names; the working directory is on the path."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ConfigError(
            f"{reference!r}: write it as package.module:function, such as examples.cifar10.model:resnet56"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{reference!r} cannot be imported: {error}; is its folder the working directory?") from error
    if not callable(found):
        raise ConfigError(f"{reference!r} is a {type(found).__name__}: name a function or class that makes the module")
    function: Callable[..., Any] = found
    return function


def load_module(reference: str, weights: Path | None) -> nn.Module:
    """Make the module that `reference` names, in evaluation mode, and fill it from a `.safetensors` file if given."""
    module = load_function(reference)()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{reference!r} made a {type(module).__name__}: it must make a torch.nn.Module")
    if weights is not None:
        _fill(module, weights)
    return module.eval()


def _options(pairs: Sequence[str] | None) -> dict[str, str]:
    """Read `key=value` options; values stay strings."""
    read = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{pair!r}: write it as key=value")
        read[key] = value
    return read


def example_inputs(descriptions: Sequence[str], *, seed: int) -> dict[str, Tensor]:
    """Make a batch of two for every `name=dtype:3x32x32`; the shape leaves the batch dimension out."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for description in descriptions:
        name, _, rest = description.partition("=")
        dtype, _, shape = rest.partition(":")
        sizes = shape.split("x") if shape else []
        if not name or dtype not in ITEM_BYTES or not all(size.isdecimal() and int(size) for size in sizes):
            known = ", ".join(ITEM_BYTES)
            raise ConfigError(f"{description!r}: write it as image=float32:3x32x32, with a dtype of {known}")
        dims = (2, *(int(size) for size in sizes))
        kind: torch.dtype = getattr(torch, dtype)
        random = torch.randn(dims, generator=generator)
        made[name] = random.to(kind) if kind.is_floating_point else torch.zeros(dims, dtype=kind)
    return made


def load_arrays(file: Path) -> dict[str, Array]:
    """Read an `.npz` file of plain arrays (no pickled objects)."""
    try:
        with np.load(file) as arrays:  # object arrays are refused by default
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is no .npz file of plain arrays: {error}") from error


def _fill(module: nn.Module, weights: Path) -> None:
    try:
        load_model(module, weights, strict=True)  # tied weights are in the file once
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{weights} cannot be read as .safetensors: {error}") from error
    except RuntimeError as error:
        raise ConfigError(f"{weights} does not fit the module: {error}") from error


def load_samples(data: str, given: Sequence[str] | None, *, seed: int) -> tuple[Samples, Samples]:
    """Return the samples to fit on and those to calibrate on, from a function or from the halves of a file.

    A function is `given` what `--data-option` says, as `key=value`.
    """
    named = _options(given)
    if not data.endswith(".npz"):
        found = _called(data, named)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Samples) for part in found)):
            raise ConfigError(f"{data!r} must return two latebind.learned.samples.Samples: to fit and to calibrate")
        return found
    arrays = {name: torch.from_numpy(array) for name, array in load_arrays(Path(data)).items()}
    labels = arrays.pop("labels", None)
    if not arrays:
        raise ConfigError(f"{data} holds no inputs: save an array for each input of the model")
    order = torch.randperm(len(next(iter(arrays.values()))), generator=torch.Generator().manual_seed(seed))
    fit, calibrate = (
        Samples({name: rows[part] for name, rows in arrays.items()}, None if labels is None else labels[part])
        for part in order.tensor_split(2)
    )
    return fit, calibrate


def load_rows(data: str, given: Sequence[str] | None) -> tuple[dict[str, Array], Array | None]:
    """Return rows to send, an array `(N, *shape)` for each input, and labels `(N,)` if there are any.

    A function is `given` what `--data-option` says, as `key=value`.
    """
    named = _options(given)
    if data.endswith(".npz"):
        arrays = load_arrays(Path(data))
        labels = arrays.pop("labels", None)
        return arrays, labels
    samples = _called(data, named)
    if not isinstance(samples, Samples):
        raise ConfigError(f"{data!r} must return latebind.learned.samples.Samples")
    if not isinstance(samples.inputs, dict):
        raise ConfigError(f"{data!r} must name its inputs: return Samples with a dictionary of inputs")
    labels = None if samples.labels is None else samples.labels.numpy()
    return {name: rows.numpy() for name, rows in samples.inputs.items()}, labels


def _called(data: str, named: dict[str, str]) -> object:
    try:
        return load_function(data)(**named)
    except TypeError as error:
        raise ConfigError(f"{data!r} with --data-option {named}: {error}") from error
