"""What the operations of query files compute: with numpy, and with torch those of `OF_TORCH`.

Operations work on many rows at once: each tensor is an array `(B, *shape)`, where `shape` is that in the query file.
Comparisons work on the numbers of one row. Types and shapes have been checked by the entries of the same names in
`queries/file/language.py`. Values can still be wrong: an index past the end, or a box that is not a number, in any row
raises `ValueError`.
"""

import operator
from collections.abc import Callable, Mapping
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Value = Any  # an array, or a literal number or text of the expression


def crop(images: Array, top: Value, left: Value, height: int, width: int) -> Array:
    """Cut a piece of each image `(..., H, W)`; a computed corner is moved so that the piece lies inside."""
    if not isinstance(top, np.ndarray) and not isinstance(left, np.ndarray):
        return images[..., top : top + height, left : left + width]
    cut = []
    for image, *corners in zip(images, numbers(top, len(images)), numbers(left, len(images)), strict=True):
        row, column = (
            min(max(floor(corner), 0), whole - part)
            for corner, part, whole in zip(corners, (height, width), image.shape[-2:], strict=True)
        )
        cut.append(image[..., row : row + height, column : column + width])
    return np.stack(cut)


def crop_to(images: Array, boxes: Array, height: int, width: int) -> Array:
    """Cut a box out of each image `(..., H, W)`, with all pixels that it touches (at least one), and resize it.

    A box is top, left, bottom and right, as fractions of the image.
    """
    cut = []
    for image, (top, left, bottom, right) in zip(images, boxes.tolist(), strict=True):
        rows, columns = _span(top, bottom, image.shape[-2]), _span(left, right, image.shape[-1])
        cut.append(_resized(image[..., rows, columns], height, width))
    return np.stack(cut)


def resize(images: Array, height: int, width: int) -> Array:
    """Resize each image `(..., H, W)` bilinearly; pixels are squares, torch's default.

    One by one: together, their last bits would depend on the other images.
    """
    return np.stack([_resized(image, height, width) for image in images])


def _resized(image: Array, height: int, width: int) -> Array:
    if image.shape[-2:] == (height, width):
        return image
    from torch import from_numpy  # noqa: PLC0415  (the engine has checked that it is there)
    from torch.nn import functional  # noqa: PLC0415

    flat = from_numpy(image).reshape(1, -1, *image.shape[-2:])
    made: Array = functional.interpolate(flat, (height, width), mode="bilinear", align_corners=False).numpy()
    return made.reshape(*image.shape[:-2], height, width)


def softmax(scores: Array) -> Array:
    """Turn scores `(..., classes)` into shares that sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def top_indices(rows: Array, count: int) -> Array:
    """Return the indices of the `count` largest numbers of each row, largest first; of equal ones the first."""
    ascending = np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    places: Array = rows.shape[1] - 1 - ascending
    return places


def select(values: Array, index: Value) -> Array:
    """Return one entry of each row's first dimension.

    A computed index counts from 0; raises `ValueError` if it is out of range.
    """
    if isinstance(index, int):
        return values[:, index]
    places = [int(place) for place in numbers(index, len(values))]
    for place in places:
        if not 0 <= place < values.shape[1]:
            raise ValueError(f"index {place} is out of range for {values.shape[1]} entries")
    return values[np.arange(len(values)), places]


def scale(values: Array, factor: float, offset: float = 0.0) -> Array:
    """Return `values * factor + offset`, in the dtype of `values`."""
    kind = values.dtype.type
    scaled: Array = values * kind(factor) + kind(offset)
    return scaled


def numbers(value: Value, rows: int) -> list[Any]:
    """Return the only number of each row of an array, or a literal once for each of `rows` rows.

    They are Python's own, which are compared with literals exactly: the literal is not rounded to float32.
    """
    return value.reshape(rows).tolist() if isinstance(value, np.ndarray) else [value] * rows


def _span(low: float, high: float, size: int) -> slice:
    first = min(max(floor(low * size), 0), size - 1)
    return slice(first, min(max(ceil(high * size), first + 1), size))


def _flat(values: Array) -> Array:
    return values if values.ndim == 2 else values.reshape(len(values), -1)


COMPUTED: Mapping[str, Callable[..., Array]] = {
    "crop": crop,
    "crop_to": crop_to,
    "resize": resize,
    "softmax": softmax,
    "argmax": lambda rows: rows.argmax(1),
    "label": lambda rows, first: rows.argmax(1) + first,
    "max": lambda values: _flat(values).max(1),
    "top_values": lambda rows, count: np.take_along_axis(rows, top_indices(rows, count), 1),
    "top_indices": top_indices,
    "select": select,
    "scale": scale,
    "cast": lambda values, dtype: values.astype(dtype),
    "reshape": lambda values, *shape: values.reshape(len(values), *shape),
}

OF_TORCH = frozenset({"crop_to", "resize"})

LOGIC: Mapping[str, Callable[..., bool]] = {  # of the numbers of one row
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, *numbers: value in numbers,
    "not": operator.not_,
}
