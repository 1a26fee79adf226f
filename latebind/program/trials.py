"""Rows of input on which backends are compared with the module: values over everything that a client may send.

Whole numbers are drawn over their dtype (within their limits): its ends, 0, 1, -1, what 32 bits or a float no longer
hold, and the constants of the graph. Floating-point numbers are drawn by magnitude, from subnormal to the largest, and
last come NaN and infinities. Rows are the same for each build of a graph.

Where a model has named dimensions, these rows have the sizes of the examples, and further ones are of other sizes, over
the whole range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log10, nan, prod

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from latebind.domain.model import TensorSpec, is_floating
from latebind.program.backends import StageFunction
from latebind.program.eager import in_eager
from latebind.program.graph import Graph, Weight, flat
from latebind.program.lengths import Rows, at_size, own_sizes, resized, tried_sizes
from latebind.program.whole_numbers import whole_range

USUAL = 1e6  # the magnitude of numbers up to which a backend must agree with the module, or is not taken
MAGNITUDES = (USUAL, 1e9, 1e12, 1e15, 1e18, 1e21, 1e24, 1e27, 1e30, 1e33, 1e36)
SMALL = (1e-3, 1e-6, 1e-12, 1e-20, 1e-30, 1e-40)
SMALLER = (1e-46, 1e-100, 1e-300)  # of float64: OpenVINO computes in 32 bits, where they are 0
ROWS, FEW_ROWS = 24, 6  # of one group
LARGE = 1 << 14  # values of a row from which few rows are drawn: they have many values each
LARGE_INSIDE = 1 << 17  # the same for a row anywhere in the network
KINDS = 5  # groups of usual magnitude
# Rows of one group, and real rows, for networks of fewer operations a row than this: each row is run some twenty times,
# together and alone, by every backend.
BY_WORK = ((5e7, ROWS, 64), (2.5e8, FEW_ROWS, 16), (4e9, 2, 4), (inf, 1, 4))
# Further sizes besides both ends, and rows of each, for networks of fewer operations than this at their largest size.
SIZES_BY_WORK = ((5e7, 24, 4), (1e9, 12, 2), (2e10, 6, 1), (inf, 3, 1))
MOST_CONSTANTS = 32
WHOLE = (0, 1, -1, 2, 3, -2, 127, 128, 255, 256, -129, 32767, 32768, 65535, 65536)
EDGES = tuple(sign * (1 << power) + more for power in (24, 31, 32, 53) for sign in (1, -1) for more in (-1, 0, 1))


@dataclass(frozen=True, slots=True)
class Trial:
    """Rows to compare on. No floating-point number is larger than `magnitude`; NaN and infinities have inf."""

    magnitude: float
    rows: Rows


def trials(
    graph: Graph, weights: Mapping[str, Tensor], specs: Sequence[TensorSpec], real: Sequence[Rows]
) -> tuple[Trial, ...]:
    """Return the trials of a graph with inputs `specs`, in ascending magnitude; the first has the `real` rows."""
    run, named = in_eager(graph, weights), specs
    specs = at_size(specs, own_sizes(graph, real[0]))
    work = operations(run, real[0])
    count, most = next((count, most) for less, count, most in BY_WORK if work <= less)
    if sum(prod(spec.shape) for spec in specs) >= LARGE:
        count = min(count, FEW_ROWS)
    inside = [graph.spec(node.name, node.type) for node in graph.whole.nodes if node.type is not None and node.type.row]
    if max((prod(spec.shape) for spec in inside), default=0) >= LARGE_INSIDE:
        count, most = min(count, 2), min(most, 4)
    drawn = Drawn(specs, _constants(graph.whole, weights), count)
    usual = tuple(torch.cat([rows[place][:most] for rows in real]) for place in range(len(specs)))
    found = [Trial(_largest(usual), usual)]
    found += _of_other_sizes(graph, weights, named, usual)
    found += [Trial(USUAL, drawn.up_to(USUAL)) for _ in range(KINDS)]
    found.append(Trial(USUAL, drawn.of_one_number(USUAL)))
    ends = [torch.finfo(getattr(torch, spec.dtype)).max for spec in specs if is_floating(spec.dtype)]
    if ends:
        sizes = [size for size in MAGNITUDES if USUAL < size < max(ends)]
        found += [Trial(size, drawn.up_to(size)) for size in (*sizes, max(ends))]
        found.append(Trial(inf, drawn.not_finite()))
    return tuple(found)


def operations(run: StageFunction, rows: Rows) -> int:
    """Return the multiplications and additions of one row."""
    with FlopCounterMode(display=False) as counted:
        run(*(tensor[:1] for tensor in rows))
    found: int = counted.get_total_flops()
    return found


def _of_other_sizes(
    graph: Graph, weights: Mapping[str, Tensor], specs: Sequence[TensorSpec], real: Rows
) -> list[Trial]:
    """Return trials of real rows and drawn ones of sizes over the whole range of the named dimensions, if any."""
    if not graph.dims:
        return []
    work = operations(in_eager(graph, weights), resized(real, specs, graph.largest))
    sizes, count = next((sizes, rows) for less, sizes, rows in SIZES_BY_WORK if work <= less)
    found = []
    for each in tried_sizes(graph.dims, sizes):
        some = resized(tuple(tensor[: 2 * count] for tensor in real), specs, each)
        made = Drawn(at_size(specs, each), _constants(graph.whole, weights), count).up_to(USUAL)
        found.append(Trial(USUAL, tuple(map(torch.cat, zip(some, made, strict=True)))))
    return found


def _largest(rows: Rows) -> float:
    """Return the largest magnitude among the floating-point numbers."""
    floating = [tensor.double().abs() for tensor in rows if tensor.is_floating_point() and tensor.numel()]
    return max((float(tensor.nan_to_num(0.0, 0.0, 0.0).max()) for tensor in floating), default=0.0)


class Drawn:
    """Draws rows for these inputs, `count` at a time; whole numbers keep within their limits."""

    def __init__(self, specs: Sequence[TensorSpec], constants: Sequence[float], count: int) -> None:
        self._specs = specs
        self._constants = constants
        self._generator = torch.Generator().manual_seed(0)
        self._count = count
        self._drawn = 0
        self._alike = 0  # rows of one special number

    def up_to(self, size: float) -> Rows:
        """Return rows of whole numbers of every kind and of floating-point numbers up to this magnitude."""
        made = [self._numbers(spec, size) if is_floating(spec.dtype) else self._whole(spec) for spec in self._specs]
        self._drawn += self._count
        return tuple(made)

    def of_one_number(self, size: float) -> Rows:
        """Return twice as many rows of one number each.

        When its mean is subtracted, only rounding is left of such a row, and not the same on each backend: OpenVINO's
        layer_norm returns -1 instead of 0 for three in ten of those whose sum 24 bits do not hold exactly.
        """
        count, made = 2 * self._count, []
        for spec in self._specs:
            dtype: torch.dtype = getattr(torch, spec.dtype)
            if dtype.is_floating_point:
                largest = min(size, torch.finfo(dtype).max)
                numbers = (self._signed(count) * self._spread(1e-6, largest, count)).clamp(-largest, largest)
                numbers[0] = largest
            else:
                least, most = within(spec)
                numbers = self._between(least, most, count)
                numbers[::2] >>= self._below((most - least).bit_length() + 1, self._count)
                numbers = numbers.clamp(least, most)
            each = numbers.to(dtype).view(-1, *[1 for _ in spec.shape])
            made.append(each.expand(-1, *spec.shape).contiguous())
        return tuple(made)

    def not_finite(self) -> Rows:
        """Return rows with NaN or infinities in some places or in all."""
        made = self.up_to(1.0)
        for rows in made:
            if rows.is_floating_point() and rows.numel():
                for number, row in enumerate(rows.view(len(rows), -1)):
                    where = slice(None) if number % 2 else self._below(len(row), 1)
                    row[where] = (nan, inf, -inf)[number % 3]
        return made

    def _whole(self, spec: TensorSpec) -> Tensor:
        """Return `(N, *shape)` whole numbers: each row of one special number, a mixture of them, any, or small ones."""
        least, most = within(spec)
        near = [int(number) + more for number in self._constants for more in (-1, 0, 1)]
        special = [n for n in (*WHOLE, least, most, least + 1, most - 1, *EDGES, *near) if least <= n <= most]
        chosen = torch.tensor(list(dict.fromkeys(special)), dtype=torch.int64)
        made, values = [], prod(spec.shape)
        for number in range(self._drawn, self._drawn + self._count):
            kind = number % 4
            if kind == 0:
                row = chosen[number // 4 % len(chosen)].expand(values)
            elif kind == 1:
                row = chosen[self._below(len(chosen), values)]
            elif kind == 2:
                row = self._between(least, most, values)
            else:
                row = self._between(max(least, -16), min(most, 16) if most >= -16 else most, values)
            made.append(row.to(getattr(torch, spec.dtype)).view(spec.shape))
        return torch.stack(made)

    def _numbers(self, spec: TensorSpec, size: float) -> Tensor:
        """Return `(N, *shape)` numbers up to this size: one special number, by magnitude, normal and whole ones."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        limits = torch.finfo(dtype)
        size, normal = min(size, limits.max), limits.smallest_normal
        small = (normal * limits.eps, normal, *SMALL, *(SMALLER if dtype == torch.float64 else ()))
        special = torch.tensor([0.0, 1.0, -1.0, 0.5, *small, *self._constants, size, -size], dtype=torch.float64)
        special = special[special.abs() <= size]
        made, values = [], prod(spec.shape)
        for number in range(self._drawn, self._drawn + self._count):
            kind = number % 6
            if number == self._drawn:  # one row at least is as large
                kind = number // self._count % 2 if size > USUAL and self._count < FEW_ROWS else 0
            if kind == 0:
                row = special[-2 if number == self._drawn else self._alike % len(special)].expand(values)
                self._alike += number != self._drawn
            elif kind == 1:
                row = self._signed(values) * size * torch.rand(values, generator=self._generator, dtype=torch.float64)
            elif kind == 2:
                row = self._signed(values) * self._spread(normal, size, values)
            elif kind == 3:
                row = torch.randn(values, generator=self._generator, dtype=torch.float64)
            elif kind == 4:
                row = self._between(-16, 16, values).double()
            else:
                row = special[self._below(len(special), values)]
            made.append(row.clamp(-size, size).to(dtype).view(spec.shape))
        return torch.stack(made)

    def _spread(self, least: float, size: float, values: int) -> Tensor:
        """Return positive numbers whose exponents are drawn evenly, from a little below `least` to `size`."""
        low, high = log10(least) - 6, log10(size)
        exponents = torch.rand(values, generator=self._generator, dtype=torch.float64) * (high - low) + low
        return torch.pow(10.0, exponents)

    def _signed(self, values: int) -> Tensor:
        return self._below(2, values) * 2.0 - 1.0

    def _below(self, most: int, values: int) -> Tensor:
        return torch.randint(most, (values,), generator=self._generator)

    def _between(self, least: int, most: int, values: int) -> Tensor:
        """Return whole numbers from `least` to `most`, which may be as far apart as 64 bits allow."""
        if most - least < 1 << 62:
            return self._below(most - least + 1, values) + least
        bits = [self._below(1 << 32, values) for _ in range(2)]
        return (bits[0] << 32 | bits[1]).clamp(least, most)


def within(spec: TensorSpec) -> tuple[int, int]:
    """Return the least and the largest of the whole numbers that an input may have."""
    whole = whole_range(spec.dtype)
    assert whole is not None
    return (whole.start, whole.stop - 1) if spec.limit is None else (spec.least, spec.limit - 1)


def _constants(graph: Graph, weights: Mapping[str, Tensor]) -> list[float]:
    """Return numbers that the graph computes with, at which it may branch, or which may cancel an input."""
    found: dict[float, None] = {}
    for node in graph.nodes:
        for argument in flat(node.args):
            numbers: list[object] = [argument]
            if isinstance(argument, Weight) and weights[argument.name].numel() <= 64:
                numbers = weights[argument.name].flatten()[:8].tolist()
            for number in numbers:
                if isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < 1 << 62:
                    found[number] = None
    return list(found)[:MOST_CONSTANTS]
