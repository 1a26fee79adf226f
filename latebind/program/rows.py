"""Refuses what answers a row by other rows of its batch, in which requests of strangers are. Runs the module.

Rows are answered in eager alone, in batches of several sizes, at several places, and beside rows of NaN and of huge
numbers. A difference is told from rounding by running the graph in float64.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.eager import in_eager, in_float64
from latebind.program.graph import Graph
from latebind.program.measure import with_batch
from latebind.program.ranges import find_limits

Rows = tuple[Tensor, ...]
Answer = Callable[[Rows], Rows]

BATCH = 5
PLACES = (1, 2)  # of the rows that are compared: the middle alone stays where it is when a module reverses rows
LARGE = 8  # rows of the largest batch tried, unless the model takes larger ones
HUGE = 1e30
SCALES = (1.0, 1e3)  # standard deviations of floating-point inputs
WHOLE = (-(1 << 63), (1 << 63) - 1)  # taken modulo the dtype: all that it has
# Lowest whole number and the end of the range, widest first: many modules take them for indices, and raise for others.
RANGES = (WHOLE, (-100, 101), (0, 101), (0, 10), (0, 2))
ENOUGH = 3  # draws that the module takes

ROUNDING = 1e-5  # of the largest value: what differs by less is not looked into
# In float64 rounding is smaller by nine digits than in float32, and what comes of other rows is as large as before.
STAYS = 1e-3
SURE = 1e-3  # of the largest value, where float64 cannot be tried
BRANCHES = 1e-2  # share of an answer that differs where the module, unlike its graph, treats one row apart

ADVICE = (
    "requests of several clients share a batch, so a row must be answered by itself. What to change: leave dimension 0 "
    "alone (mean(1) for mean(0), softmax(-1) for softmax(0)), compute nothing with x.shape[0], give batch norms their "
    "running statistics, and attention and LSTMs batch_first=True"
)

SQUEEZE = "squeeze() takes the dimension of the batch away too where it is 1, write squeeze(-1) or flatten(1); "


def check_rows(answer: Answer, graph: Graph, weights: Mapping[str, Tensor], examples: Rows, *, most: int) -> None:
    """Raise `ExportError` if what `answer` gives for a row depends on other rows, or on its place among them.

    `answer` runs in eager what was exported as `graph`; dimension 0 of inputs and outputs is the batch. `examples` are
    rows that it takes; further ones are drawn, whole numbers over all ranges that it takes. `most` is the largest
    batch.
    """
    company = _Company(answer, graph, weights, most)
    company.check(with_batch(examples, BATCH))
    taken = 0
    for rows in _drawn(find_limits(graph, weights).applied(graph.inputs)):
        if taken < ENOUGH and company.takes(rows):
            company.check(rows)
            taken += 1


def check_stages(
    graph: Graph, cuts: Sequence[str], weights: Mapping[str, Tensor], examples: Rows, *, most: int
) -> None:
    """Raise `ExportError` if rows change places within `graph`, even where they are back in order at its end.

    `cuts` names the activations between stages, where requests leave a batch and others join it.
    """
    inside = replace(graph, outputs=tuple((name, name) for name in cuts))
    eager = in_eager(inside, weights)
    company = _Company(lambda rows: eager(*rows), inside, weights, most)
    company.check(with_batch(examples, BATCH))


@dataclass(frozen=True, slots=True)
class _Scene:
    """A batch, what is said of it, and where in it the rows are that are compared.

    The module may refuse a `foreign` one: it has rows of values that need not be valid.
    """

    said: str
    rows: Rows
    places: tuple[int, ...]
    foreign: bool = False


@dataclass(frozen=True)
class _Company:
    """What answers, its graph, and the largest batch."""

    answer: Answer
    graph: Graph
    weights: Mapping[str, Tensor]
    most: int

    def takes(self, rows: Rows) -> bool:
        """Return whether these rows can be answered."""
        return _tried(self.answer, rows) is not None

    def check(self, rows: Rows) -> None:
        """Raise `ExportError` if rows of these are answered otherwise in other company."""
        alone = _alone(self.answer, rows)
        if alone is None:
            raises = f"the module raises on one row alone, though not on {BATCH} together"
            raise ExportError(f"rows depend on each other ({raises}): {SQUEEZE}{ADVICE}")
        for (name, _), part in zip(self.graph.outputs, alone, strict=True):
            if part.shape[1:2] != (1,):
                shape = tuple(part.shape[1:])
                raise ExportError(f"{name} of the module has shape {shape} for one row alone: {SQUEEZE}{ADVICE}")
        for scene in _scenes(rows, self.most):
            found = _apart(self.answer, scene, alone)
            if found is None and not scene.foreign:
                raise ExportError(
                    f"rows depend on each other (the module raises {scene.said}, though not on a row alone): {ADVICE}"
                )
            for number, apart in enumerate(found or ()):
                if _stands_out(apart, alone[number]).any() and self._is_real(scene, rows, number, apart, alone[number]):
                    name = self.graph.outputs[number][0]
                    differs = f"{name} of a row {scene.said} is not what it is for the row alone"
                    raise ExportError(f"rows depend on each other ({differs}): {ADVICE}")

    @cached_property
    def _by_graph(self) -> tuple[Answer, Answer]:
        """What the graph answers, and what it answers in float64."""
        eager, wider = in_eager(self.graph, self.weights), in_float64(self.graph, self.weights)
        return lambda rows: eager(*rows), lambda rows: wider(*rows)

    def _is_real(self, scene: _Scene, rows: Rows, number: int, apart: Tensor, expected: Tensor) -> bool:
        """Return whether output `number` differs by more than rounding: in float64 too, or in the module only."""
        eager, wider = self._by_graph
        if (alone := _alone(eager, rows)) and (found := _apart(eager, scene, alone)):
            share, same = (float(_stands_out(part, expected).double().mean()) for part in (apart, found[number]))
            if same < BRANCHES < share:
                return True  # export takes batches for larger than 1: `if x.shape[0] == 1` is not in the graph
        if not (alone := _alone(wider, rows)) or not (found := _apart(wider, scene, alone)):
            return bool((apart > SURE * _largest(expected)).any())
        if apart.isinf().any():
            return bool(_stands_out(found[number], alone[number]).any())
        return float(found[number].max()) > STAYS * float(apart.max())


def _scenes(rows: Rows, most: int) -> Iterator[_Scene]:
    """Yield batches in which two of these rows are, beside others of them and beside any that clients may send."""
    first, second = PLACES
    large = max(most, LARGE)
    order = [*(place % BATCH for place in range(large - 2)), second, first]
    yield _Scene("beside other rows", rows, PLACES)
    yield _Scene("in a batch of 2", _taken(rows, (second, first)), (1, 0))
    yield _Scene(f"in a batch of {large}, at another place", _taken(rows, order), (large - 1, large - 2))
    yield _Scene("beside rows of NaN", _among(rows, _highest), PLACES, foreign=True)
    yield _Scene("beside rows of huge values", _among(rows, _lowest), PLACES, foreign=True)


def _among(rows: Rows, strange: Callable[[Tensor], Tensor]) -> Rows:
    """Return the rows with others in place of those that are not compared."""
    own = torch.tensor([place in PLACES for place in range(BATCH)])
    return tuple(torch.where(own.reshape(-1, *[1] * (part.dim() - 1)), part, strange(part)) for part in rows)


def _highest(part: Tensor) -> Tensor:
    """Return rows of NaN, or of the largest of these whole numbers: larger ones need not be valid."""
    if part.is_floating_point():
        return torch.full_like(part, float("nan"))
    return part.amax().expand_as(part) if part.numel() else part


def _lowest(part: Tensor) -> Tensor:
    """Return rows of huge numbers of either sign, or of the smallest of these whole numbers."""
    if part.is_floating_point():
        huge = min(HUGE, torch.finfo(part.dtype).max)
        return torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).sign().to(part.dtype) * huge
    return part.amin().expand_as(part) if part.numel() else part


def _drawn(specs: Sequence[TensorSpec]) -> Iterator[Rows]:
    """Yield batches of random rows, each of another kind."""
    generator = torch.Generator().manual_seed(0)
    kinds = RANGES if any("float" not in spec.dtype for spec in specs) else RANGES[: len(SCALES)]
    for number, limits in enumerate(kinds):
        scale = SCALES[number % len(SCALES)]
        yield tuple(_numbers(spec, scale, limits, generator) for spec in specs)


def _numbers(spec: TensorSpec, scale: float, limits: tuple[int, int], generator: torch.Generator) -> Tensor:
    shape, dtype = (BATCH, *spec.shape), getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return (scale * torch.randn(shape, generator=generator)).to(dtype)
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    low, high = limits
    if spec.limit is not None:
        low, high = max(low, spec.least), min(high, spec.limit)
        low, high = (low, high) if low < high else (spec.least, spec.limit)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def _taken(rows: Rows, places: Sequence[int]) -> Rows:
    return tuple(part[list(places)] for part in rows)


def _tried(answer: Answer, rows: Rows) -> Rows | None:
    """Return the answers; None if there are none, for a module may raise anything for values that it does not take."""
    try:
        return answer(rows)
    except Exception:  # foreign code
        return None


def _alone(answer: Answer, rows: Rows) -> Rows | None:
    """Return the answers to each compared row alone, `(2, 1, ...)` for each output; None if there are none."""
    found = [_tried(answer, _taken(rows, (place,))) for place in PLACES]
    there = [one for one in found if one is not None]
    return tuple(map(torch.stack, zip(*there, strict=True))) if len(there) == len(PLACES) else None


def _apart(answer: Answer, scene: _Scene, alone: Rows) -> tuple[Tensor, ...] | None:
    """Return how far the answers to the rows of the scene are from those alone, by output; None if there are none.

    Distances have the shape of `alone` and are float64: infinite where only one is NaN or infinite, or the shapes
    differ, and 1 where whole numbers differ.
    """
    found = _tried(answer, scene.rows)
    if found is None:
        return None
    return tuple(_distance(part, scene, expected) for part, expected in zip(found, alone, strict=True))


def _distance(answers: Tensor, scene: _Scene, expected: Tensor) -> Tensor:
    rows = len(scene.rows[0])
    if answers.numel() * len(scene.places) != expected.numel() * rows:
        return torch.full(expected.shape, float("inf"), dtype=torch.float64)
    found = answers.reshape(rows, -1)[list(scene.places)].reshape(expected.shape)
    if not expected.is_floating_point():
        return (found != expected).double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    return torch.where(same, 0.0, (found.double() - expected.double()).abs().nan_to_num(float("inf")))


def _largest(expected: Tensor) -> float:
    """Return the largest finite absolute value, at least the smallest normal number."""
    finite = expected.double().abs()
    return max(float(torch.where(finite.isfinite(), finite, 0.0).amax()) if finite.numel() else 0.0, 1e-30)


def _stands_out(apart: Tensor, expected: Tensor) -> Tensor:
    """Return where the difference is not small, or whole numbers differ."""
    return apart > (ROUNDING * _largest(expected) if expected.is_floating_point() else 0.0)
