"""Whether rows of different sizes may share a batch, padded to the longest: found by trying, never assumed.

There must be a mask that says where a row ends, and everything that looks at more than one position must obey it. Rows
join a batch at its start and at each boundary between stages, as when served, and each must be answered as if alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from latebind.domain.model import TensorSpec
from latebind.program.backends import StageFunction, fitted, run_rows
from latebind.program.cut import Carry
from latebind.program.eager import in_eager
from latebind.program.graph import Graph
from latebind.program.lengths import Rows, at_size, resized, tried_sizes
from latebind.program.trials import within
from latebind.program.whole_numbers import RAISED

BATCHES, TOGETHER = 6, 5  # batches that are tried, and rows in each


def filled_up(parts: Sequence[Tensor], shape: Sequence[int], number: float = 0) -> Tensor:
    """Return rows `(1, ...)` of different sizes as a batch `(N, *shape)`: cut off, or padded with a number."""
    return torch.cat([fitted(part, shape, number) for part in parts])


def turned(graph: Graph, weights: Mapping[str, Tensor], carries: Sequence[Carry]) -> tuple[Carry, ...]:
    """Return the carries with what each must negate so that a place after a row's end is 0 and read as padding."""
    types, names = graph.types(), sorted({name for carry in carries for name in carry.carried})
    masks = [name for name in names if types[name].dtype == "bool"]
    if not graph.dims or not masks:
        return tuple(carries)
    inside = replace(graph, outputs=tuple((name, name) for name in masks)).needed()
    sizes = {dim.name: dim.least for dim in graph.dims}
    padding = [
        torch.full((1, *spec.shape), spec.padding or 0, dtype=getattr(torch, spec.dtype))
        for spec in at_size(graph.inputs, sizes)
    ]
    found = dict(zip(masks, in_eager(inside, weights)(*padding), strict=True))
    true = {name for name, mask in found.items() if bool(mask.all())}
    return tuple(replace(carry, turned=tuple(name for name in carry.carried if name in true)) for carry in carries)


def may_share(
    run: Callable[..., Rows],
    stages: Sequence[StageFunction],
    graphs: Sequence[Graph],
    specs: Sequence[TensorSpec],
    real: Rows,
    differ: Callable[[Rows, Rows, Rows], Tensor],
) -> bool:
    """Return whether rows of different sizes get the same answers together as alone.

    `run` is the module, `stages` a chain of the `graphs`, `specs` are its inputs with their limits and `real` rows of
    examples. `differ(found, rows, expected)` says for which rows the answers differ.
    """
    dims = graphs[0].dims
    if len(dims) != 1:
        return False
    generator = torch.Generator().manual_seed(0)
    sizes = list(tried_sizes(dims, BATCHES * TOGETHER, seed=1))
    for batch in range(BATCHES):
        lengths = [sizes[(batch + place * BATCHES) % len(sizes)] for place in range(TOGETHER)]
        rows = [_row(real, specs, each, generator, drawn=bool(place % 2)) for place, each in enumerate(lengths)]
        if batch % 2:
            rows[1] = _empty(rows[1], specs)
        joins = torch.randint(0, len(stages), (TOGETHER,), generator=generator).tolist() if batch else [0] * TOGETHER
        leaving = max(range(TOGETHER), key=lambda place: max(lengths[place].values())) if batch % 2 else -1
        try:
            found = together(stages, graphs, specs, rows, joins, leaving=leaving)
            wanted = [tuple(run(*row)) for row in rows]
            for place, own in enumerate(wanted):
                if any(
                    bool(tensor.isnan().any()) for tensor in own
                ):  # the module's kernel differs from a graph's: `verify`
                    (wanted[place],) = together(stages, graphs, specs, [rows[place]], [0])
        except RAISED:  # an index past the end of a row finds something in a longer one
            return False
        for place, (row, answer, own) in enumerate(zip(rows, found, wanted, strict=True)):
            if place != leaving and differ(answer, row, own).any():
                return False
    return True


def _row(
    real: Rows, specs: Sequence[TensorSpec], sizes: dict[str, int], generator: torch.Generator, *, drawn: bool
) -> Rows:
    """Return one row of this size: an example's, with other words of the vocabulary and other numbers if `drawn`.

    Inputs without a vocabulary, such as masks, are always an example's: the module need not obey what no client sends.
    """
    place = int(torch.randint(0, len(real[0]), (1,), generator=generator))
    row = resized(tuple(tensor[place : place + 1] for tensor in real), specs, sizes)
    made = []
    for tensor, spec in zip(row, at_size(specs, sizes), strict=True):
        if drawn and spec.limit is not None:
            least, most = within(spec)
            made.append(torch.randint(least, most + 1, tensor.shape, generator=generator).to(tensor.dtype))
        elif drawn and tensor.is_floating_point():
            made.append(tensor + torch.randn(tensor.shape, generator=generator).to(tensor.dtype))
        else:
            made.append(tensor)
    return tuple(made)


def _empty(row: Rows, specs: Sequence[TensorSpec]) -> Rows:
    """Return a row of nothing but padding, whose words may begin to count because no others do."""
    return tuple(
        torch.full_like(tensor, spec.padding or 0) if spec.sizes and not tensor.is_floating_point() else tensor
        for tensor, spec in zip(row, specs, strict=True)
    )


@torch.inference_mode()
def together(
    stages: Sequence[StageFunction],
    graphs: Sequence[Graph],
    specs: Sequence[TensorSpec],
    rows: Sequence[Rows],
    joins: Sequence[int],
    *,
    leaving: int = -1,
) -> list[Rows]:
    """Return the answers to rows, of which row i joins the batch before stage `joins[i]`, cut to their own sizes.

    There is one named dimension. The row `leaving` has no answer: it leaves the others before the last stage.
    """
    (dim,) = graphs[0].dims
    axis = next((place, spec.sizes.index(dim.name) + 1) for place, spec in enumerate(specs) if dim.name in spec.sizes)
    lengths = [row[axis[0]].shape[axis[1]] for row in rows]
    order: list[int] = []
    passed: Rows = ()
    for number, (stage, graph) in enumerate(zip(stages, graphs, strict=True)):
        new = [place for place, join in enumerate(joins) if join == number]
        alone = [rows[place] for place in new]
        for before in stages[:number]:
            alone = [tuple(tensor.clone() for tensor in before(*row)) for row in alone]
        left = leaving if number + 1 == len(stages) > 1 else -1
        there = [tuple(tensor[[at]] for tensor in passed) for at, place in enumerate(order) if place != left]
        order = [place for place in (*order, *new) if place != left or place in new]
        if not order:
            continue
        longest = {dim.name: max(lengths[place] for place in order)}
        passed = tuple(
            filled_up([row[place] for row in (*there, *alone)], spec.shape_of(longest), spec.padding or 0)
            for place, spec in enumerate(specs if number == 0 else graph.inputs)
        )
        passed = tuple(tensor.clone() for tensor in run_rows(stage, [lengths[place] for place in order], passed))
    found: list[Rows] = [()] * len(rows)
    for place, row in enumerate(order):
        own = at_size(graphs[-1].output_specs(), {dim.name: lengths[row]})
        found[row] = tuple(fitted(tensor[[place]], spec.shape) for tensor, spec in zip(passed, own, strict=True))
    return found
