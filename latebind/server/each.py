"""Rows of different sizes in one call: grouped by their sizes on the way in, and one by one on the way back."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from latebind.domain.errors import Failed, InvalidRequest
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.preprocessing.preprocessor import Prepared
from latebind.server.gateway import NO_DIMS, Answer, Array, array_dtype, as_numbers


class Part(NamedTuple):
    """Rows of equal sizes, by their numbers in the call, that share a claim; `dims` are their named dimensions."""

    rows: Sequence[int]
    dims: Mapping[str, int]


def parts_of(spec: ModelSpec, rows: Sequence[Prepared], most: int) -> list[Part]:
    """Return the rows of a call in parts of at most `most`, the largest rows first: what is alike goes together.

    Raises `InvalidRequest` for rows that the model does not take.
    """
    names = [tensor.name for tensor in spec.inputs]
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for number, row in enumerate(rows):
        try:
            shapes = tuple([row.tensors[name].shape for name in names])
        except KeyError as error:
            raise Failed(f"{spec.name}: nothing is made for its input {error}: build the model again") from None
        alike.setdefault(shapes, []).append(number)
    found = []
    for shapes, numbers in sorted(alike.items(), reverse=True):
        try:
            dims = spec.dims_of(dict(zip(names, shapes, strict=True)))
        except ValueError as error:
            raise InvalidRequest(f"row {numbers[0]}: tensor {error}") from None
        for tensor in spec.inputs:
            _check(tensor, numbers, [rows[number].tensors[tensor.name] for number in numbers])
        for begin in range(0, len(numbers), most):
            found.append(Part(numbers[begin : begin + most], dims or NO_DIMS))
    return found


def _check(tensor: TensorSpec, rows: Sequence[int], arrays: Sequence[Array]) -> None:
    """Raise unless arrays of one shape, of these rows, have values that an input allows."""
    dtype = array_dtype(tensor.dtype)
    if any(array.dtype != dtype for array in arrays):
        raise Failed(f"input {tensor.name!r} is not made as {tensor.dtype}: build the model again")
    if not tensor.is_limited or not arrays[0].size:
        return
    arrays = [as_numbers(array, tensor.dtype) for array in arrays]
    values = np.stack(arrays)
    if not tensor.allows(values.min().item(), values.max().item()):
        for number, array in zip(rows, arrays, strict=True):
            if not tensor.allows(array.min().item(), array.max().item()):
                told = f"{array.min()} to {array.max()}: they must be {tensor.range()}"
                raise InvalidRequest(f"row {number}: tensor {tensor.name!r} has values from {told}")


def write(part: Part, rows: Sequence[Prepared], places: Mapping[str, Sequence[Array]]) -> None:
    """Write the rows of a part into their places, those of a claim."""
    for name, some in places.items():
        for place, number in zip(some, part.rows, strict=True):
            place[...] = rows[number].tensors[name]


def one_by_one(answer: Answer, outputs: Sequence[TensorSpec]) -> list[Answer]:
    """Return an answer for each row of one, as if each had been a call of its own."""
    found = []
    for number in range(len(answer.left_at)):
        row = slice(number, number + 1)
        own = {name: rows[row] for name, rows in answer.outputs.items()}
        for tensor in outputs:
            if tensor.padding is not None:  # of a sequence, as far as this one is written
                own[tensor.name] = own[tensor.name][:, : _written(own[tensor.name], tensor.padding)]
        about = answer.left_at[row], answer.waited[row], answer.ran[row], answer.steps[row], answer.spec, True
        found.append(Answer(own, *about, answer.caches[row]))
    return found


def _written(tokens: Array, padding: int) -> int:
    return int((tokens != padding).any(axis=0).nonzero()[0].max(initial=0)) + 1


def check_alike(rows: Sequence[Prepared], outputs: Sequence[TensorSpec]) -> None:
    """Raise `InvalidRequest` if the answers to these rows would differ in size, so that no tensor holds them all."""
    vary = [tensor.name for tensor in outputs if any(not isinstance(size, int) for size in tensor.sizes)]
    shapes = {tuple([array.shape for array in row.tensors.values()]) for row in rows} if vary else {()}
    if len(shapes) > 1:
        raise InvalidRequest(
            f"output {vary[0]!r} is as large as its row, and the {len(rows)} rows of this call differ in size: send "
            "each as a call of its own, or ask for other outputs"
        )


def joined(answers: Sequence[Answer], outputs: Sequence[TensorSpec]) -> Answer:
    """Return the answers of single rows as one, with these outputs. Sequences are filled up with their padding.

    Rows of other outputs are of one shape (`check_alike`).
    """
    if len(answers) == 1:
        return answers[0]
    found = {}
    for tensor in outputs:
        arrays = [answer.outputs[tensor.name] for answer in answers]
        if tensor.padding is not None:
            whole = np.full((len(arrays), max(array.shape[1] for array in arrays)), tensor.padding, tensor.dtype)
            for row, array in zip(whole, arrays, strict=True):
                row[: array.shape[1]] = array[0]
            found[tensor.name] = whole
        else:
            found[tensor.name] = np.concatenate(arrays)
    several = {
        name: tuple([one for answer in answers for one in getattr(answer, name)])
        for name in ("left_at", "waited", "ran", "steps", "caches")
    }
    return replace(answers[0], outputs=found, **several)
