"""Whether a backend agrees with the module: on usual rows, and row by row on values over all that clients may send.

`whole_numbers` says which whole numbers an input may have, `trials` draws rows within these limits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from latebind.domain.errors import ExportError, LatebindError
from latebind.domain.model import TensorSpec, is_floating
from latebind.program.backends import StageFunction, run_chain
from latebind.program.device import HOST
from latebind.program.eager import in_eager, in_float64
from latebind.program.export import Exported
from latebind.program.graph import Graph
from latebind.program.lengths import Rows, at_size, own_sizes, resized
from latebind.program.measure import made_up_tensors
from latebind.program.rows import check_rows
from latebind.program.trials import USUAL, Trial, trials, within
from latebind.program.whole_numbers import RAISED, filled, find_limits

DEFAULT_TOLERANCE = 1e-5
ROUNDING = 16  # how many times as far from the exact result as eager a backend may be
TINY = 2.0**-116  # numbers of this size count as 0: 1024 times the smallest normal float32
FAILURES = (LatebindError, *RAISED)

Run = Callable[..., Rows]


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return max |found - expected| / max |expected|, the worst over all outputs; infinite for other shapes or dtypes.

    Infinities and NaNs must be the same in both, and so must whole numbers.
    """
    if not _alike(found, expected):
        return inf
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if other.numel():
            far, finite = float(_distance(one, other).max()), other[other.isfinite()].double().abs()
            worst = max(worst, far / float(finite.max().clamp_min(1e-30)) if far and finite.numel() else far)
    return worst


def _alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _distance(found: Tensor, expected: Tensor) -> Tensor:
    """Return the largest difference in each row `(N,)`; infinite unless NaNs, infinities and whole numbers agree."""
    a, b = found.reshape(len(found), -1), expected.reshape(len(expected), -1)
    if not b.shape[1]:
        return torch.zeros(len(b), dtype=torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    far = (a.double() - b.double()).abs().nan_to_num(inf, inf) if b.is_floating_point() else torch.tensor(inf).double()
    return torch.where(same, 0.0, far).amax(1)


def _raises(run: Run, rows: Rows) -> bool:
    try:
        run(*rows)
    except FAILURES:
        return True
    return False


def _tried(run: Run, rows: Rows) -> Rows | None:
    """Return copies of the answers, which a backend may overwrite in its next call; None if it raises."""
    try:
        return tuple(tensor.clone() for tensor in run(*rows))
    except FAILURES:
        return None


def _each(rows: Rows) -> list[Rows]:
    """Return each row by itself."""
    return [tuple(tensor[row : row + 1] for tensor in rows) for row in range(len(rows[0]))]


@dataclass(frozen=True, slots=True)
class Answered:
    """The rows of a trial that are answered, and the answers: all together, and each alone. Others are in `raising`.

    Both answers are right: where sums overflow, eager itself gives an infinity in one and NaN in the other. `error` is
    the message of what was raised.
    """

    magnitude: float
    rows: Rows
    together: Rows
    alone: Rows
    raising: tuple[Rows, ...] = ()
    error: str = ""

    def kept(self, places: Sequence[int]) -> "Answered":
        """Return only these of the rows."""
        some = ([part[list(places)] for part in parts] for parts in (self.rows, self.together, self.alone))
        rows, together, alone = map(tuple, some)
        return replace(self, rows=rows, together=together, alone=alone)


def answered(run: Run, trial: Trial) -> Answered:
    """Return what `run` answers to a trial."""
    kept, outputs, raising, message = [], [], [], ""
    for place, row in enumerate(_each(trial.rows)):
        try:
            outputs.append(tuple(tensor.clone() for tensor in run(*row)))
            kept.append(place)
        except FAILURES as error:
            raising.append(row)
            message = " ".join(str(error).split())[:200]
    rows = tuple(tensor[kept] for tensor in trial.rows)
    alone = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
    together = tuple(tensor.clone() for tensor in run(*rows)) if len(kept) > 1 else alone
    return Answered(trial.magnitude, rows, together, alone, tuple(raising), message)


@dataclass(frozen=True)
class Judge:
    """Tells answers that differ from eager's from those that are only rounded differently, for `graph`."""

    graph: Graph
    weights: Mapping[str, Tensor]
    tolerance: float

    def wrong_rows(self, run: Run, given: Answered) -> Tensor:
        """Return which rows `(N,)` bool `run` answers differently from eager: all together, or each one alone."""
        wrong = torch.zeros(len(given.rows[0]), dtype=torch.bool)
        if not len(wrong):
            return wrong
        together = _tried(run, given.rows)
        each = [together] if len(wrong) == 1 else [_tried(run, row) for row in _each(given.rows)]
        if together is None or None in each:
            return ~wrong
        for found in (together, tuple(map(torch.cat, zip(*(one for one in each if one is not None), strict=True)))):
            wrong |= self.differ(found, given.rows, given.together) & self.differ(found, given.rows, given.alone)
        return wrong

    def differ(self, found: Rows, rows: Rows, expected: Rows) -> Tensor:
        """Return for which rows `(N,)` bool `found` differs from `expected`.

        A row may differ by the tolerance, in proportion to its own largest finite number. If that is less than the
        error of eager itself, it may differ by some times that error: numbers that cancel leave nothing but rounding,
        which depends on the order of the sums.
        """
        if not _alike(found, expected):
            return torch.ones(len(rows[0]), dtype=torch.bool)
        allowed = []
        for tensor in expected:
            sizes = tensor.reshape(len(tensor), -1).double().abs().nan_to_num(0.0, 0.0, 0.0)
            largest = sizes.amax(1) if sizes.shape[1] else sizes.new_zeros(len(sizes))
            allowed.append((largest * self.tolerance).clamp_min(TINY if tensor.dtype != torch.float16 else 0.0))
        far = [_distance(one, other) for one, other in zip(found, expected, strict=True)]
        wrong = self._beyond(far, allowed)
        places = wrong.nonzero()[:, 0]
        if len(places):
            some = ([tensor[places] for tensor in tensors] for tensors in (rows, expected))
            wrong[places] = self._beyond([one[places] for one in far], self._rounding(*map(tuple, some)))
        return wrong

    def _beyond(self, far: Sequence[Tensor], allowed: Sequence[Tensor]) -> Tensor:
        return torch.stack([~(one <= most) for one, most in zip(far, allowed, strict=True)]).any(0)

    def _rounding(self, rows: Rows, expected: Rows) -> list[Tensor]:
        """Return by how much rows `(N,)` of each output may differ because of rounding alone.

        This is the distance of eager from the result in float64, or how much its graph changes when the last bits of
        its weights do: a single number may be exact by chance. The graph may overflow where the module does not, so it
        is compared with itself. A whole number that differs in float64 is on an edge, and may be either (inf).
        """
        most = [torch.zeros(len(tensor), dtype=torch.float64) for tensor in expected]
        if any(node.type is not None and node.type.dtype in {"float16", "bfloat16"} for node in self.graph.whole.nodes):
            return most
        precise, eager, *shaken = self._variants
        usual = _tried(eager, rows) if shaken else None
        for found, same in ((_tried(precise, rows), expected), *((_tried(one, rows), usual) for one in shaken)):
            if found is not None and same is not None:
                most = [torch.maximum(one, _apart(a, b)) for one, a, b in zip(most, found, same, strict=True)]
        return [one * ROUNDING for one in most]

    @cached_property
    def _variants(self) -> Sequence[Run]:
        """The graph in float64, as it is, and with other last bits of its weights, if it has any such weights."""
        generator = torch.Generator().manual_seed(0)
        own = {name: self.weights[name] for name in self.graph.weights()}
        shaken = [{name: _shaken(tensor, generator) for name, tensor in own.items()} for _ in range(2)]
        others = [in_eager(self.graph, weights) for weights in shaken if any(weights[n] is not own[n] for n in own)]
        return in_float64(self.graph, own), in_eager(self.graph, own), *others


def _apart(found: Tensor, expected: Tensor) -> Tensor:
    """Return how far apart rows `(N,)` are; differences in NaNs and infinities count as 0, and excuse nothing."""
    far = _distance(found.to(expected.dtype), expected)
    if not expected.is_floating_point():
        return far
    return torch.where(far.isinf(), 0.0, _distance(found, expected).nan_to_num(0.0, 0.0, 0.0))


def _shaken(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a matrix with every number off by about one in its last bit; others, which may be exact, unchanged."""
    if tensor.dtype not in {torch.float32, torch.float64} or tensor.dim() < 2:
        return tensor
    signs = torch.randint(-1, 2, tensor.shape, generator=generator)
    return tensor * (1 + signs * torch.finfo(tensor.dtype).eps)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The inputs with the whole numbers that they may have, and the module's answers to trials within these."""

    inputs: tuple[TensorSpec, ...]
    answers: tuple[Answered, ...]
    judge: Judge

    def largest(self, run: Run) -> float | None:
        """Return up to which magnitude `run` agrees with the module: inf for all numbers, None if not for usual ones.

        It must raise where the module does. A backend that treats NaN or infinities differently must not meet any
        inside the network: large numbers may add up to one, sooner in some rows than in those compared. So only the
        magnitude below the last one that agreed and gave numbers is safe. It must be well above that of the usual rows.
        A row counts with its own largest number: each magnitude has small rows too, which no limit keeps out.
        """
        if any(not _raises(run, row) for given in self.answers for row in given.raising):
            return None
        differ: float | None = None  # from which magnitude on
        for given in self.answers:
            wrong = self.judge.wrong_rows(run, given)
            if wrong.any():
                least = min(given.magnitude, _least_magnitude([tensor[wrong] for tensor in given.rows]))
                differ = least if differ is None else min(differ, least)
                if given is self.answers[0] or differ <= USUAL:
                    return None
        if differ is None:
            return inf
        usual, larger = self.answers[0].magnitude, [one for one in self.answers[1:] if one.magnitude > USUAL]
        always_finite = all(_is_finite(one) for one in self.answers if one not in larger)
        agreed = []
        for given in larger:
            if given.magnitude >= differ or (always_finite and not _is_finite(given)):
                break
            agreed.append(given.magnitude)
        sure = agreed[-2] if len(agreed) > 1 else 0.0
        return sure if sure >= max(USUAL, ROUNDING * usual) else None

    def holds(self, stages: Sequence[StageFunction], graphs: Sequence[Graph], largest: float) -> bool:
        """Return whether the chain agrees with the module up to `largest`, and each stage that has a graph with eager.

        Stages are given what eager computes before them.
        """
        judges = [replace(self.judge, graph=graph) for graph in graphs]
        eager = [in_eager(graph, self.judge.weights) for graph in graphs]
        for given in self.answers:
            if given.magnitude > max(largest, self.answers[0].magnitude) or not len(given.rows[0]):
                continue
            if self.judge.wrong_rows(lambda *rows: run_chain(stages, rows), given).any():
                return False
            rows = given.rows
            for stage, expected, judge in zip(stages[: len(graphs)], eager, judges, strict=True):
                found = answered(expected, Trial(given.magnitude, rows))
                if judge.wrong_rows(stage, found).any():
                    return False
                rows = found.together
        return True

    def limited(self, largest: float) -> tuple[TensorSpec, ...]:
        """Return the inputs with all their limits, on a backend that agrees with the module up to `largest`."""
        return tuple(
            replace(spec, largest=min(largest, torch.finfo(getattr(torch, spec.dtype)).max))
            if largest < inf and is_floating(spec.dtype)
            else spec
            for spec in self.inputs
        )


def _least_magnitude(rows: Sequence[Tensor]) -> float:
    """Return the smallest, over rows, of a row's largest floating-point number; 0 if rows have none."""
    found = torch.zeros(len(rows[0]), dtype=torch.float64)
    for tensor in rows:
        if tensor.is_floating_point() and tensor.numel():
            sizes = tensor.reshape(len(tensor), -1).double().abs().nan_to_num(inf, inf, inf)
            found = torch.maximum(found, sizes.amax(1))
    return float(found.min())


def _is_finite(given: Answered) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in given.together)


def find_agreement(run: Run, exported: Exported, real: Sequence[Rows], tolerance: float, *, most: int) -> Agreement:
    """Compare the exported graph with the module, which `run` calls; `real` are rows like those to be served.

    Raises `ExportError` for a module whose rows depend on each other (in batches up to `most`), one without any number
    in its answers, and one with checks that the export loses.
    """
    graph, weights = exported.graph, exported.weights
    eager = in_eager(graph, weights)
    inputs = _inputs(run, graph, weights, real)
    specs = at_size(inputs, own_sizes(graph, real[-1]))
    check_rows(run, graph, weights, real[-1], specs=specs, most=most)
    answers = tuple(_defined(answered(run, trial), eager) for trial in trials(graph, weights, inputs, real))
    for given in answers:
        if any(not _raises(eager, row) for row in given.raising):
            raise ExportError(
                f"the module raises for some values ({given.error}) for which its exported graph does not: the export "
                "loses the check. Leave such values out, or check them outside the model"
            )
    whole = [tensor for given in answers for tensor in given.together]
    if not any(bool(tensor.isfinite().any()) or not tensor.numel() for tensor in whole):
        broken = next((name for name, weight in weights.items() if not bool(weight.isfinite().all())), None)
        why = f"the weight {broken!r} has some" if broken else "give rows like those to be served, or fix the module"
        raise ExportError(f"every answer of the module is NaN or infinite on all rows that were tried: {why}")
    try:
        run(*made_up_tensors(inputs, 1, HOST))
    except FAILURES as error:
        raise ExportError(
            f"the module raises for a row of small numbers ({' '.join(str(error).split())[:200]}), with which a server "
            "tries each model: clamp indices and divisors"
        ) from error
    return Agreement(inputs, answers, Judge(graph, weights, tolerance))


def _inputs(run: Run, graph: Graph, weights: Mapping[str, Tensor], real: Sequence[Rows]) -> tuple[TensorSpec, ...]:
    """Return the inputs with their limits, which include all numbers of real rows.

    An export loses the check of one_hot. So if the module raises at an end of the range that its graph takes, its own
    range is searched, in a row of the largest size, where most indices are valid.
    """
    largest = resized(tuple(tensor[:1] for tensor in real[0]), graph.inputs, graph.largest)
    row = dict(zip((spec.name for spec in graph.inputs), largest, strict=True))
    own = at_size(graph.inputs, graph.largest)

    def raises(numbers: Mapping[str, int]) -> bool:
        given = zip(own, filled(own, numbers), strict=True)
        return _raises(run, tuple(tensor if spec.name in numbers else row[spec.name] for spec, tensor in given))

    found = find_limits(graph, weights)
    if any(raises({spec.name: end}) for spec in found if not is_floating(spec.dtype) for end in within(spec)):
        found = find_limits(graph, weights, raises)
    return tuple(
        spec
        if spec.limit is None or all(spec.allows(*map(int, rows[place].aminmax())) for rows in real)
        else spec.unlimited()
        for place, spec in enumerate(found)
    )


def _defined(given: Answered, eager: Run) -> Answered:
    """Return the answers without undefined rows, where the module gives NaN for numbers, but its graph in eager not.

    PyTorch has several kernels for one operator, and may use another one in a module than in a graph. If every word of
    a text is masked, one kernel of attention gives NaN and another a number; a backend cannot agree with both.
    """
    nans = [tensor.isnan() for tensor in given.alone]
    if given.magnitude > USUAL or not any(bool(nan.any()) for nan in nans):
        return given
    kept = []
    for place, row in enumerate(_each(given.rows)):
        found = [tensor.isnan() for tensor in eager(*row)]
        if all(torch.equal(nan[place : place + 1], other) for nan, other in zip(nans, found, strict=True)):
            kept.append(place)
    return given.kept(kept)
