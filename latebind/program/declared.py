"""Named dimensions as users declare them. Whether a module takes rows of such sizes is found by its export."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.export import Dim as ExportDim

from latebind.domain.errors import ConfigError
from latebind.domain.sizes import Dim, Size
from latebind.domain.wording import instead
from latebind.program.export import Tensors, input_names, tensors_of
from latebind.program.lengths import checked

Dynamic = Mapping[str, Any] | Sequence[Any]
"""By input, or in their order: dimensions by their number, the batch being 0, or one entry for each; None: none."""


class Declared(NamedTuple):
    """Named dimensions, and for each input that has some its sizes without the batch."""

    dims: tuple[Dim, ...] = ()
    sizes: Mapping[str, tuple[Size, ...]] = {}


NOTHING = Declared()


def declared(dims: Mapping[str, Dim], sizes: Mapping[str, Sequence[Size]]) -> Declared:
    """Return what varies in inputs of these sizes. Raises `ConfigError` for a dimension that no input has."""
    varying = {name: tuple(row) for name, row in sizes.items() if any(isinstance(size, str) for size in row)}
    named = {size for row in varying.values() for size in row}
    for name in dims:
        if name not in named:
            raise ConfigError(f"no input has the dimension {name}: name it in one, such as input_ids=int64:{name}")
    return Declared(tuple(dims.values()), varying)


def from_export(inputs: Tensors, dynamic: Dynamic) -> Declared:
    """Return what varies in these example inputs, given like the `dynamic_shapes` of `torch.export.export`.

    Dimensions are `Dim`s of `torch.export` or of latebind; `32*torch.export.Dim("h", min=1, max=32)` goes in steps of
    32. The batch always varies and need not be declared. Raises `ConfigError`.
    """
    names, tensors = input_names(inputs), tensors_of(inputs)
    if isinstance(dynamic, Mapping):
        for name in dynamic:
            if name not in names:
                raise ConfigError(f"dims: there is no input {name!r}{instead(str(name), names)}")
        entries = [dynamic.get(name) for name in names]
    elif len(dynamic) == len(names):
        entries = list(dynamic)
    else:
        raise ConfigError(f"dims has {len(dynamic)} entries, and there are {len(names)} inputs: give one for each")
    dims: dict[str, Dim] = {}
    found: dict[str, int] = {}  # in the examples
    sizes: dict[str, list[Size]] = {}
    for name, tensor, entry in zip(names, tensors, entries, strict=True):
        sizes[name] = list(tensor.shape[1:])
        for place, given in _by_place(entry, tensor, f"dims: {name}").items():
            where = f"dims: dimension {place} of {name}"
            dim = None if place == 0 else _dim(given, where)
            if dim is None:
                continue
            if dims.setdefault(dim.name, dim) != dim:
                both = f"{dims[dim.name].range()} elsewhere, and {dim.range()} here"
                raise ConfigError(f"{where}: {dim.name} is {both}: declare it once")
            size = tensor.shape[place]
            if not dim.allows(size) or found.setdefault(dim.name, size) != size:
                also = f", {found[dim.name]} in another input" if dim.name in found else ""
                raise ConfigError(f"{where}: {dim.name} is {dim.range()}, and {size} in the example inputs{also}")
            sizes[name][place - 1] = dim.name
    return declared(dims, sizes)


def _by_place(entry: object, tensor: Tensor, where: str) -> Mapping[int, object]:
    """Return the entries for the dimensions of one input, by their number; `where` begins errors."""
    if entry is None:
        return {}
    if isinstance(entry, Sequence) and len(entry) == tensor.dim():
        return dict(enumerate(entry))
    if isinstance(entry, Mapping) and all(place in range(tensor.dim()) for place in entry):
        return entry
    places = f"0 (the batch) to {tensor.dim() - 1}"
    raise ConfigError(
        f"{where} has dimensions {places}: give them by number, as {{1: Dim('L', 1, 512)}}, or one by one"
    )


def _dim(given: object, where: str) -> Dim | None:
    """Return a dimension as latebind knows it; None for one that is fixed."""
    if given is None or isinstance(given, int) or given == ExportDim.STATIC:
        return None
    if isinstance(given, Dim):
        return checked(given, where)
    if not isinstance(given, ExportDim):  # such as Dim.AUTO and Dim.DYNAMIC
        raise ConfigError(f"{where}: {given!r:.80} has no name and no range: write Dim('L', min=1, max=512)")
    root, computed = getattr(given, "root", given), getattr(given, "fn", int)  # of one such as 32*h + 1
    step = computed(1) - computed(0)
    if computed(0):
        raise ConfigError(f"{where}: {given.__name__} is not served: give a Dim, or a multiple of one")
    if not isinstance(root.max, int):
        raise ConfigError(f"{where}: {root.__name__} has no largest size: write Dim({root.__name__!r}, min=1, max=512)")
    return checked(Dim(root.__name__, max(root.min, 1) * step, root.max * step, step), where)
