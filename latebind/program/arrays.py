"""Stages over numpy arrays, which is how engines run them on the host, and over torch tensors.

A stage computes on one of them and is wrapped for the other: both are views of the same memory, and nothing is copied.
A tensor of bfloat16, which numpy does not have, is an array of its bits. Torch is imported only when a tensor arrives.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = tuple[Array, ...]
ArrayFunction: TypeAlias = Callable[..., Arrays]
"""`stage(*arrays) -> arrays`, under the same rules as `backends.StageFunction`."""

BFLOAT16 = "bfloat16"


class ArrayStage(Protocol):
    """A stage that computes on arrays, and may run rows of different lengths without their padding."""

    def __call__(self, *inputs: Array) -> Arrays:
        """Run the stage."""

    def of_lengths(self, lengths: Sequence[int], *inputs: Array) -> Arrays:
        """Run the stage on rows of these lengths, padded to the longest."""

    def twin(self) -> "ArrayStage":
        """Return the same stage for another thread."""


class OverArrays:
    """Wraps a stage over arrays as one over tensors."""

    def __init__(self, arrays: ArrayStage) -> None:
        self.arrays = arrays

    def twin(self) -> "OverArrays":
        """Return the same stage for another thread."""
        return OverArrays(self.arrays.twin())

    def over_arrays(self, inputs: Sequence[TensorSpec]) -> ArrayStage:
        """Return the stage itself."""
        del inputs
        return self.arrays

    def __call__(self, *inputs: "Tensor") -> tuple["Tensor", ...]:
        """Run the stage; the outputs are valid until the next call."""
        return tensors_over(self.arrays(*map(array_of, inputs)))

    def of_lengths(self, lengths: Sequence[int], *inputs: "Tensor") -> tuple["Tensor", ...]:
        """Run the stage on rows of these lengths, padded to the longest."""
        return tensors_over(self.arrays.of_lengths(lengths, *map(array_of, inputs)))


class OverTensors:
    """Wraps a stage over tensors as one over arrays; `inputs` say which arrays hold the bits of bfloat16."""

    def __init__(self, stage: Callable[..., tuple["Tensor", ...]], inputs: Sequence[TensorSpec]) -> None:
        import torch  # noqa: PLC0415  (once: an import in each call takes as long as the call)

        self._stage = stage
        self._of_lengths = getattr(stage, "of_lengths", None)
        self._inputs = inputs if any(spec.dtype == BFLOAT16 for spec in inputs) else ()
        self._tensor, self._bfloat16 = torch.from_numpy, torch.bfloat16

    def __call__(self, *inputs: Array) -> Arrays:
        """Run the stage."""
        return self._arrays(self._stage(*self._tensors(inputs)))

    def of_lengths(self, lengths: Sequence[int], *inputs: Array) -> Arrays:
        """Run the stage on rows of these lengths, without their padding if it can."""
        if self._of_lengths is None:
            return self(*inputs)
        return self._arrays(self._of_lengths(lengths, *self._tensors(inputs)))

    def _tensors(self, arrays: Arrays) -> Sequence["Tensor"]:
        return tensors_over(arrays, self._inputs) if self._inputs else [self._tensor(rows) for rows in arrays]

    def _arrays(self, tensors: Sequence["Tensor"]) -> Arrays:
        return tuple([array_of(one) if one.dtype == self._bfloat16 else one.numpy() for one in tensors])


def pass_through(*inputs: Any) -> tuple[Any, ...]:
    """The empty stage: its outputs are its inputs, not copied."""
    return inputs


def over_arrays(stage: Callable[..., Any], inputs: Sequence[TensorSpec] = ()) -> ArrayFunction:
    """Return a stage over tensors on the host as one over arrays, for the same thread.

    `inputs` are its inputs, needed only if some are bfloat16.
    """
    if stage is pass_through:
        return pass_through
    own: Callable[..., ArrayFunction] | None = getattr(stage, "over_arrays", None)
    return OverTensors(stage, inputs) if own is None else own(inputs)


def run_lengths(stage: ArrayFunction, lengths: Sequence[int], inputs: Arrays) -> Arrays:
    """Return the outputs of a stage for rows of these lengths, padded to the longest; some stages skip the padding."""
    of_lengths: ArrayFunction | None = getattr(stage, "of_lengths", None)
    return stage(*inputs) if of_lengths is None else of_lengths(lengths, *inputs)


def array_of(tensor: "Tensor") -> Array:
    """Return an array that shares a tensor's memory; bfloat16 is returned as its bits."""
    import torch  # noqa: PLC0415  (imported already: there is a tensor)

    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def tensors_over(arrays: Sequence[Array], specs: Sequence[TensorSpec] = ()) -> tuple["Tensor", ...]:
    """Return tensors that share the arrays' memory; `specs`, if any, say which hold the bits of bfloat16."""
    import torch  # noqa: PLC0415

    tensors = tuple([torch.from_numpy(rows) for rows in arrays])
    if not specs or not tensors:
        return tensors
    return tuple(
        [
            tensor.view(torch.bfloat16) if spec.dtype == BFLOAT16 else tensor
            for tensor, spec in zip(tensors, specs, strict=True)
        ]
    )


def copied(rows: Any) -> Any:
    """Return a copy of an array or tensor."""
    return rows.copy() if isinstance(rows, np.ndarray) else rows.clone()


def filled(rows: Any, shape: Sequence[int], number: float = 0) -> Any:
    """Return an array or tensor, like `rows`, of this shape and filled with a number."""
    if isinstance(rows, np.ndarray):
        return np.full(shape, number, rows.dtype)
    return rows.new_full(tuple(shape), number)


def stacked(rows: Sequence[Any]) -> Any:
    """Return arrays or tensors of one shape as one `(N, *shape)`."""
    if isinstance(rows[0], np.ndarray):
        return np.stack(rows)
    from torch import stack  # noqa: PLC0415

    return stack(tuple(rows))


def computing() -> AbstractContextManager[object]:
    """Return a context in which torch, if it computes anything here, records nothing for gradients."""
    torch: Any = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.inference_mode()
