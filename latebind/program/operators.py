"""The allow-list of operators: the only way from a name in a graph file to something callable.

What an operator does is asked of torch, which is imported on first use.
"""

import operator
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from latebind.domain.errors import RepositoryError

if TYPE_CHECKING:
    from torch._ops import OpOverload


def aten(listed: str) -> frozenset[str]:
    """Return the names of these operators of ATen, as graphs have them."""
    return frozenset(f"aten.{name}" for name in listed.split())


# Operators that are not core and are not decomposed, because every backend has a better kernel for the whole.
KEPT_WHOLE = aten(
    """
    adaptive_max_pool2d.default fake_quantize_per_channel_affine_cachemask.default
    fake_quantize_per_tensor_affine_cachemask.default gru.input hardsigmoid.default hardswish.default
    linear.default logsumexp.default lstm.input masked_fill.Scalar masked_fill.Tensor matmul.default mish.default
    pixel_shuffle.default pixel_unshuffle.default rms_norm.default scaled_dot_product_attention.default
    silu.default tril.default triu.default upsample_bicubic2d.vec upsample_linear1d.vec upsample_nearest1d.vec
    """
)
# Operators that are pure, with output shapes that do not depend on values, but neither core nor pointwise.
ALSO_PURE = aten(
    """
    _conj.default _fft_c2c.default bucketize.Tensor complex.default cummax.default cumprod.default
    grid_sampler_3d.default kthvalue.default linalg_inv_ex.default linalg_vector_norm.default logcumsumexp.default
    median.dim polar.default searchsorted.Tensor sort.stable unfold.default var_mean.correction
    view_as_complex.default view_as_real.default
    """
)
# Core operators that are refused: they return uninitialised memory, address storage freely, or read a tensor's values
# back into Python.
REFUSED = aten(
    """
    _local_scalar_dense.default as_strided.default empty.memory_format empty_strided.default nonzero.default
    sym_is_contiguous.default sym_numel.default sym_storage_offset.default sym_stride.int
    """
)
# Operators over all dimensions, the batch among them.
OF_ALL_ROWS = aten("max.default median.default min.default nanmedian.default")

# Plain Python on a tuple of tensors or on the batch size.
BUILTINS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("getitem", "add", "sub", "mul", "floordiv", "mod")
}

SYM_SIZE = "aten.sym_size.int"
VIEW = "aten.view.default"


@cache
def resolve(name: str) -> Callable[..., Any]:
    """Return the operator of this name ("aten.relu.default", "getitem").

    Raises `RepositoryError` for everything that is not on the allow-list: another namespace, and operators that write
    to their arguments, draw random numbers, or are neither core nor pointwise nor in a list above.
    """
    if name in BUILTINS:
        return BUILTINS[name]
    found = _lookup(name)
    if found is None or not _allowed(name, found):
        raise RepositoryError(
            f"the graph uses the operator {name!r:.100}, which is not on the list of operators that may be served: "
            "build the model again with `latebind build`, or do that computation outside the model"
        )
    return found


def called(name: str) -> Callable[..., Any]:
    """Return what torch should call for the operator `name`: the operator itself, except a reshape for a view.

    A view is valid for memory laid out as at export. A stage may get rows with another layout, and copies without
    effect have been removed from the graph; a reshape is the same where the view is valid, and copies where it is not.
    """
    import torch  # noqa: PLC0415

    found = resolve(name)
    return torch.ops.aten.reshape.default if name == VIEW else found


def is_allowed(name: str) -> bool:
    """Return whether `resolve` would accept this operator."""
    found = _lookup(name)
    return name in BUILTINS or (found is not None and _allowed(name, found))


def why_refused(name: str) -> str:
    """Return why an operator is not allowed, and what to do instead."""
    from torch import Tag  # noqa: PLC0415

    found = _lookup(name)
    if name in OF_ALL_ROWS:
        return "it reduces all rows of a batch together: name a dimension of the row, such as x.amax(1)"
    if name.startswith(("<", "aten.sym_")):  # a Python function on numbers, not on tensors
        why = (
            "it computes with the size of the batch, on which no answer may depend, or with a length in floating point"
        )
    elif found is None:
        why = "it is not one of PyTorch's own operators, and a model directory holds no code"
    elif Tag.nondeterministic_seeded in found.tags:
        why = "it is not a pure tensor operation: it draws random numbers"
    elif name in REFUSED or found._schema.is_mutable or Tag.inplace_view in found.tags:
        why = "it is not a pure tensor operation: it reads or writes more than the values of tensors"
    else:
        why = "it is not on the list of operators that the backends know"
    return f"{why}: replace it, or do that computation outside the model"


def is_pointwise(name: str) -> bool:
    """Return whether the operator works element by element, so that compilers fuse it with the one before."""
    from torch import Tag  # noqa: PLC0415

    found = _lookup(name)
    return found is not None and Tag.pointwise in found.tags


@cache
def _lookup(name: str) -> "OpOverload | None":
    import torch  # noqa: PLC0415
    from torch._ops import OpOverload  # noqa: PLC0415

    parts = name.split(".")
    if len(parts) != 3 or parts[0] != "aten" or not all(part.isidentifier() for part in parts):
        return None
    found = getattr(getattr(torch.ops.aten, parts[1], None), parts[2], None)
    return found if isinstance(found, OpOverload) else None


def _allowed(name: str, found: "OpOverload") -> bool:
    from torch import Tag  # noqa: PLC0415

    if name in KEPT_WHOLE or name in ALSO_PURE:
        return True
    if name in REFUSED or "backward" in name or found._schema.is_mutable:
        return False
    if Tag.nondeterministic_seeded in found.tags or Tag.inplace_view in found.tags:
        return False
    return Tag.core in found.tags or Tag.pointwise in found.tags
