"""Refuses modules whose answer to a row depends on other rows of its batch, which are other clients'. Runs the module.

Rows are answered in eager alone, in batches of several sizes, at several places, and beside rows of NaN and of huge
numbers. Running the graph in float64 tells a difference from rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.eager import in_eager, in_float64
from latebind.program.graph import Graph
from latebind.program.lengths import Rows
from latebind.program.measure import with_batch
from latebind.program.trials import Drawn

Run = Callable[..., Rows]

BATCH = 5
PLACES = (1, 2)  # of the rows that are compared: the middle alone stays where it is when a module reverses rows
LARGE = 8  # rows of the largest batch tried, unless the model takes larger ones
HUGE = 1e30
SIZES = (1.0, 1e3, 1e3, 1.0)  # of the floating-point numbers of drawn rows

ROUNDING = 1e-5  # of the largest value: smaller differences are ignored
# In float64 rounding is smaller by nine digits than in float32, while the effect of other rows is as large as before.
STAYS = 1e-3
SURE = 1e-3  # of the largest value, where float64 cannot be tried
BRANCHES = 1e-2  # share of an answer that differs if the module, unlike its graph, treats a single row specially

ADVICE = (
    "requests of several clients share a batch, so a row must be answered by itself. What to change: leave dimension 0 "
    "alone (mean(1) for mean(0), softmax(-1) for softmax(0)), compute nothing with x.shape[0], give batch norms their "
    "running statistics, and attention and LSTMs batch_first=True"
)
SQUEEZE = "squeeze() also removes the dimension of the batch if it is 1, write squeeze(-1) or flatten(1); "


def check_rows(
    run: Run,
    graph: Graph,
    weights: Mapping[str, Tensor],
    examples: Rows,
    *,
    specs: Sequence[TensorSpec] = (),
    most: int,
) -> None:
    """Raise `ExportError` if the answer of `run` to a row depends on other rows, or on its place among them.

    `run` calls in eager what was exported as `graph`; dimension 0 of inputs and outputs is the batch. `examples` are
    rows that it takes; further ones are drawn for the inputs `specs`, if any. `most` is the largest batch.
    """
    drawn = Drawn(specs, (), BATCH)
    batches = [with_batch(examples, BATCH), *(drawn.up_to(size) for size in SIZES if specs)]
    eager, wider = in_eager(graph, weights), in_float64(graph, weights)
    names = [name for name, _ in graph.outputs]
    for number, rows in enumerate(batches):
        if number and _tried(run, rows) is None:  # the module need not take what is drawn
            continue
        alone = _alone(run, rows)
        if alone is None:
            raises = f"the module raises on one row alone, though not on {BATCH} together"
            raise ExportError(f"rows depend on each other ({raises}): {SQUEEZE}{ADVICE}")
        for name, part in zip(names, alone, strict=True):
            if part.shape[1:2] != (1,):
                shape = tuple(part.shape[1:])
                raise ExportError(f"{name} of the module has shape {shape} for one row alone: {SQUEEZE}{ADVICE}")
        for where, scene, places, foreign in _scenes(rows, most):
            found = _tried(run, scene)
            if found is None and not foreign:
                raise ExportError(
                    f"rows depend on each other (the module raises {where}, though not on a row alone): {ADVICE}"
                )
            for place, part in enumerate(found or ()):
                expected = alone[place]
                apart = _apart(part, places, expected, len(scene[0]))
                if _stands_out(apart, expected).any():
                    by_graph, by_wider = (_apart_of(one, rows, scene, places, place) for one in (eager, wider))
                    if _is_real(apart, expected, by_graph, by_wider):
                        differs = f"{names[place]} of a row {where} is not what it is for the row alone"
                        raise ExportError(f"rows depend on each other ({differs}): {ADVICE}")


def check_stages(
    graph: Graph, cuts: Sequence[str], weights: Mapping[str, Tensor], examples: Rows, *, most: int
) -> None:
    """Raise `ExportError` if rows change places within `graph`, even where they are back in order at its end.

    `cuts` names the activations between stages, where requests leave a batch and others join it.
    """
    inside = replace(graph, outputs=tuple((name, name) for name in cuts))
    check_rows(in_eager(inside, weights), inside, weights, examples, most=most)


def _scenes(rows: Rows, most: int) -> Iterator[tuple[str, Rows, tuple[int, ...], bool]]:
    """Yield batches with two of these rows: where they are, in words, the batch, their places in it.

    The last value says whether the module may refuse the batch, whose other rows need not be valid.
    """
    first, second = PLACES
    large = max(most, LARGE)
    order = [*(place % BATCH for place in range(large - 2)), second, first]
    yield "beside other rows", rows, PLACES, False
    yield "in a batch of 2", tuple(part[[second, first]] for part in rows), (1, 0), False
    yield f"in a batch of {large}, at another place", tuple(part[order] for part in rows), (large - 1, large - 2), False
    yield "beside rows of NaN", _among(rows, float("nan"), torch.amax), PLACES, True
    yield "beside rows of huge values", _among(rows, HUGE, torch.amin), PLACES, True


def _among(rows: Rows, number: float, whole: Callable[[Tensor], Tensor]) -> Rows:
    """Return the rows with others in place of those that are not compared: of a number, or of one of their own."""
    others, found = [place for place in range(BATCH) if place not in PLACES], []
    for part in map(torch.clone, rows):
        if part.is_floating_point():
            size = min(number, torch.finfo(part.dtype).max)
            signs = torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).sign()
            part[others] = (signs * size).to(part.dtype)[others]
        elif part.numel():
            part[others] = whole(part)
        found.append(part)
    return tuple(found)


def _tried(run: Run, rows: Rows) -> Rows | None:
    """Return the answers; None if the module raises, which it may in any way for values that it does not take."""
    try:
        return run(*rows)
    except Exception:  # foreign code
        return None


def _alone(run: Run, rows: Rows) -> Rows | None:
    """Return the answers to each compared row alone, `(2, 1, ...)` for each output; None if there are none."""
    found = [_tried(run, tuple(part[[place]] for part in rows)) for place in PLACES]
    there = [one for one in found if one is not None]
    return tuple(map(torch.stack, zip(*there, strict=True))) if len(there) == len(PLACES) else None


def _apart_of(run: Run, rows: Rows, scene: Rows, places: tuple[int, ...], output: int) -> tuple[Tensor, Tensor] | None:
    """Return how far an output of the rows in a scene is from their output alone, and the latter."""
    alone, found = _alone(run, rows), _tried(run, scene)
    if alone is None or found is None:
        return None
    return _apart(found[output], places, alone[output], len(scene[0])), alone[output]


def _apart(answers: Tensor, places: tuple[int, ...], expected: Tensor, rows: int) -> Tensor:
    """Return how far the answers at these places are from those alone, in their shape and in float64.

    Infinite where only one is NaN or infinite, or the shapes differ, and 1 where whole numbers differ.
    """
    if answers.numel() * len(places) != expected.numel() * rows:
        return torch.full(expected.shape, float("inf"), dtype=torch.float64)
    found = answers.reshape(rows, -1)[list(places)].reshape(expected.shape)
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


def _is_real(
    apart: Tensor,
    expected: Tensor,
    by_graph: tuple[Tensor, Tensor] | None,
    by_wider: tuple[Tensor, Tensor] | None,
) -> bool:
    """Return whether an output differs by more than rounding: in float64 too, or in the module only."""
    if by_graph is not None:
        share, same = (float(_stands_out(part, expected).double().mean()) for part in (apart, by_graph[0]))
        if same < BRANCHES < share:
            return True  # export assumes batches larger than 1: `if x.shape[0] == 1` is not in the graph
    if by_wider is None:
        return bool((apart > SURE * _largest(expected)).any())
    if apart.isinf().any():
        return bool(_stands_out(*by_wider).any())
    return float(by_wider[0].max()) > STAYS * float(apart.max())
