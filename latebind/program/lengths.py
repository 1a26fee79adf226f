"""Rows of any size that a model takes: inputs in terms of named dimensions, which sizes to try, and rows of these."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import MOST_DIMS, Dim, Size, make_sense
from latebind.program.graph import Graph

if TYPE_CHECKING:
    from torch import Tensor

Rows = tuple["Tensor", ...]
Sizes = Mapping[str, int]  # of the named dimensions
MOST_BUCKETS = 16  # graphs of a model whose code fixes sizes
SHORTEST, LONGER = 8, 1.25  # the length of the shortest, where there is not one for each, and the ratio of the next


def checked(dim: Dim, where: str) -> Dim:
    """Return a dimension if it is valid. Raises `ConfigError`, which begins with `where` it is declared."""
    if fault := dim.fault():
        raise ConfigError(f"{where}: {fault}")
    return dim


def check_dims(dims: Sequence[Dim]) -> None:
    """Raise `ConfigError` for named dimensions that are invalid, alone or together."""
    for dim in dims:
        checked(dim, f"{dim.name}={dim.least}..{dim.most}:{dim.step}")
    if not make_sense(dims):
        raise ConfigError(f"{len(dims)} dimensions: give at most {MOST_DIMS}, and each of another name")


def input_specs(
    given: Mapping[str, tuple[str, Sequence[int]]],
    dims: Sequence[Dim] = (),
    sizes: Mapping[str, Sequence[Size]] | None = None,
) -> tuple[TensorSpec, ...]:
    """Return inputs with these dtypes and shapes of example rows; `sizes` give some shapes in terms of `dims`.

    Raises `ConfigError` for sizes that are not those of the examples, or that name no dimension.
    """
    sizes, largest = sizes or {}, {dim.name: dim.most for dim in dims}
    check_dims(dims)
    found = []
    for name in sizes.keys() - given.keys():
        raise ConfigError(f"sizes are given for {name!r}, and the inputs are {', '.join(given)}")
    for name, (dtype, shape) in given.items():
        own = tuple(sizes.get(name, shape))
        for size in own:
            if isinstance(size, str) and size not in largest:
                raise ConfigError(f"{name!r} has the size {size!r}: give a number or one of {', '.join(largest)}")
        whole = tuple(largest[size] if isinstance(size, str) else size for size in own)
        found.append(TensorSpec(name, dtype, whole, sizes=() if whole == own else own))
    named = {size for spec in found for size in spec.sizes}
    for dim in dims:
        if dim.name not in named:
            raise ConfigError(f"no input has the dimension {dim.name}: name it in the sizes of one")
    sizes_of(found, dims, {name: shape for name, (_, shape) in given.items()})
    return tuple(found)


def sizes_of(specs: Sequence[TensorSpec], dims: Sequence[Dim], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes of the named dimensions in rows of these shapes; raises `ConfigError` if no row has them."""
    try:
        return ModelSpec("", "1", tuple(specs), (), 1, 1, dims=tuple(dims)).dims_of(shapes)
    except ValueError as error:
        raise ConfigError(f"the examples do not fit: {error}") from None


def own_sizes(graph: Graph, rows: Rows) -> dict[str, int]:
    """Return the sizes of the named dimensions in rows of a graph; raises `ConfigError`."""
    shapes = {spec.name: tensor.shape[1:] for spec, tensor in zip(graph.inputs, rows, strict=True)}
    return sizes_of(graph.inputs, graph.dims, shapes)


def at_size(specs: Sequence[TensorSpec], sizes: Sizes) -> tuple[TensorSpec, ...]:
    """Return these tensors with the fixed shapes that they have at these sizes of the named dimensions."""
    return tuple(replace(spec, shape=spec.shape_of(sizes), sizes=()) for spec in specs)


def resized(rows: tuple[Any, ...], specs: Sequence[TensorSpec], sizes: Sizes) -> tuple[Any, ...]:
    """Return rows, tensors or arrays, with these sizes of the named dimensions: cut off, or repeated as needed."""
    found = []
    for tensor, spec in zip(rows, specs, strict=True):
        made = tensor
        for axis, size in enumerate(spec.sizes, start=1):
            if isinstance(size, str) and sizes[size] != made.shape[axis]:
                places = [place % made.shape[axis] for place in range(sizes[size])]
                made = made[(*(slice(None),) * axis, places)]
        found.append(made)
    return tuple(found)


def distinct(dims: Sequence[Dim], own: Sizes, taken: int) -> dict[str, int]:
    """Return sizes that differ from each other, from `taken` and from one step; the `own` ones if possible.

    An export would take equal sizes, or a single step, for intended.
    """
    found: dict[str, int] = {}
    for dim in dims:
        options = [own[dim.name], *range(max(dim.least, dim.step), dim.most + 1, dim.step)[:64]]
        unlike = (size for size in options if size > dim.step and size != taken and size not in found.values())
        found[dim.name] = next(unlike, own[dim.name])
    return found


def count_sizes(dims: Sequence[Dim]) -> int:
    """Return how many sizes rows may have."""
    return prod([(dim.most - dim.least) // dim.step + 1 for dim in dims])


def buckets_of(dims: Sequence[Dim]) -> list[dict[str, int]]:
    """Return the sizes that get a graph each where there cannot be one for all, the smallest first.

    Every size, if there are few. Otherwise they are a ratio apart, so that a row is padded by at most a quarter of its
    size: a further graph (its time to export and compile, and its copy of the weights) has to save that much.
    Raises `ConfigError` for several dimensions with many sizes.
    """
    if count_sizes(dims) <= MOST_BUCKETS:
        every = product(*(range(dim.least, dim.most + 1, dim.step) for dim in dims))
        found = [dict(zip([dim.name for dim in dims], sizes, strict=True)) for sizes in every]
        return sorted(found, key=lambda sizes: prod(sizes.values()))
    if len(dims) > 1:
        named = " and ".join([f"{dim.name}={dim.written()}" for dim in dims])
        raise ConfigError(f"{named} have more than {MOST_BUCKETS} sizes: declare fewer, by larger steps")
    (dim,), least = dims, max(dims[0].least, SHORTEST)
    ratio = max(LONGER, (dim.most / least) ** (1 / (MOST_BUCKETS - 1))) if dim.most > least else LONGER
    sizes = [dim.most]
    while sizes[-1] / ratio >= least and (size := dim.near(sizes[-1] / ratio)) < sizes[-1]:
        sizes.append(size)
    return [{dim.name: size} for size in reversed(sizes)]


def tried_sizes(dims: Sequence[Dim], count: int, *, seed: int = 0) -> Iterator[dict[str, int]]:
    """Yield sizes over the whole range, at least both ends: first those and their neighbours, then drawn ones.

    Sizes are drawn evenly by their logarithm, because what clients send is more often short than long.
    """
    import torch  # noqa: PLC0415

    generator = torch.Generator().manual_seed(seed)
    ends = [(dim.least, dim.most) for dim in dims]
    yield {dim.name: dim.most for dim in dims}
    yield {dim.name: dim.least for dim in dims}
    if len(dims) > 1:
        yield {dim.name: end[place % 2] for place, (dim, end) in enumerate(zip(dims, ends, strict=True))}
    yield {dim.name: min(dim.least + dim.step, dim.most) for dim in dims}
    yield {dim.name: max(dim.most - dim.step, dim.least) for dim in dims}
    for _ in range(count):
        drawn = torch.rand(len(dims), generator=generator, dtype=torch.float64).tolist()
        yield {
            dim.name: dim.near(dim.least * (dim.most / dim.least) ** share)
            for dim, share in zip(dims, drawn, strict=True)
        }
