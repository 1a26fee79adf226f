"""What the operations of query files compute, on one row: with numpy if that is simple, with torch if it is better.

Types and shapes have been checked by the entries of the same names in `queries/file/operations.py`. Values can still be
wrong: an index past the end or a box that is not a number raises `ValueError`.
"""

import operator
from collections.abc import Callable, Mapping
from math import ceil, floor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Array = NDArray[Any]
Value = Any  # an array, a numpy number, or a literal number or text of the expression


def crop(image: Array, top: Value, left: Value, height: int, width: int) -> Array:
    """Cut a piece of an image `(..., H, W)`; a computed corner is moved so that the piece lies inside."""
    rows, columns = (
        min(max(floor(corner), 0), whole - part)
        for corner, part, whole in zip((_number(top), _number(left)), (height, width), image.shape[-2:], strict=True)
    )
    return image[..., rows : rows + height, columns : columns + width]


def crop_to(image: Array, box: Array, height: int, width: int) -> Array:
    """Cut a box out of an image `(..., H, W)`, with all pixels that it touches (at least one), and resize it.

    The box is top, left, bottom and right, as fractions of the image.
    """
    top, left, bottom, right = box.tolist()
    rows, columns = _span(top, bottom, image.shape[-2]), _span(left, right, image.shape[-1])
    return resize(image[..., rows, columns], height, width)


def resize(image: Array, height: int, width: int) -> Array:
    """Resize an image `(..., H, W)` bilinearly; pixels are squares, as everywhere in torch unless told otherwise."""
    if image.shape[-2:] == (height, width):
        return image
    flat = torch.from_numpy(image).reshape(1, -1, *image.shape[-2:])
    made: Array = functional.interpolate(flat, (height, width), mode="bilinear", align_corners=False).numpy()
    return made.reshape(*image.shape[:-2], height, width)


def softmax(scores: Array) -> Array:
    """Turn scores `(..., classes)` into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def top_indices(row: Array, count: int) -> Array:
    """Return the indices of the `count` largest numbers of a row, largest first; of equal ones the first."""
    ascending = np.argsort(row[::-1], kind="stable")[::-1][:count]
    places: Array = len(row) - 1 - ascending
    return places


def select(values: Array, index: Value) -> Value:
    """Return one entry of the first dimension.

    A computed index counts from 0; raises `ValueError` if it is out of range.
    """
    place = index if isinstance(index, int) else int(_number(index))
    if not (isinstance(index, int) or 0 <= place < len(values)):
        raise ValueError(f"index {place} is none of {len(values)}")
    return values[place]


def scale(values: Array, factor: float, offset: float = 0.0) -> Array:
    """Return `values * factor + offset`, in the dtype of `values`."""
    kind = values.dtype.type
    scaled: Array = values * kind(factor) + kind(offset)
    return scaled


def _number(value: Value) -> Any:
    """Return the only number of an array, or a number as it is."""
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value


def _span(low: float, high: float, size: int) -> slice:
    first = min(max(floor(low * size), 0), size - 1)
    return slice(first, min(max(ceil(high * size), first + 1), size))


def _on_numbers(compare: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    return lambda left, right: compare(_number(left), _number(right))


COMPUTED: Mapping[str, Callable[..., Value]] = {
    "crop": crop,
    "crop_to": crop_to,
    "resize": resize,
    "softmax": softmax,
    "argmax": lambda row: row.argmax(),
    "max": lambda values: values.max(),
    "top_values": lambda row, count: row[top_indices(row, count)],
    "top_indices": top_indices,
    "select": select,
    "scale": scale,
    "cast": lambda values, dtype: np.asarray(values).astype(dtype),
    "reshape": lambda values, *shape: np.reshape(values, shape),
}

LOGIC: Mapping[str, Callable[..., Value]] = {
    "==": _on_numbers(operator.eq),
    "!=": _on_numbers(operator.ne),
    "<": _on_numbers(operator.lt),
    "<=": _on_numbers(operator.le),
    ">": _on_numbers(operator.gt),
    ">=": _on_numbers(operator.ge),
    "in": lambda value, *numbers: _number(value) in numbers,
    "not": lambda value: not value,
}
