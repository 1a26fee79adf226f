"""Whether a backend does as the module does, on usual rows and row by row on values over all that clients may send.

`ranges` says which whole numbers keep indices in range, `trial_rows` draws rows within these limits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError, ExportError, LatebindError
from latebind.domain.model import TensorSpec
from latebind.program.backends import StageFunction, run_chain
from latebind.program.eager import in_eager, in_float64
from latebind.program.export import Exported, tensors_of
from latebind.program.graph import Graph
from latebind.program.measure import made_up_inputs, with_batch
from latebind.program.ranges import Limits, find_limits, whole_range
from latebind.program.trial_rows import USUAL, Trial, trials

DEFAULT_TOLERANCE = 1e-5
ROUNDING = 16  # how many times as far from the exact result as eager a backend may be
TINY = 2.0**-116  # numbers of this size count as 0: 1024 times the smallest normal float32
FAILURES = (LatebindError, RuntimeError, TypeError, ValueError, IndexError)

Rows = tuple[Tensor, ...]
Run = Callable[..., Rows]


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return max |found - expected| / max |expected|, the worst over all outputs; infinite for other shapes or dtypes.

    Infinities and NaNs must be the same in both, and so must whole numbers.
    """
    if not _alike(found, expected):
        return inf
    return max(_error(a, b) for a, b in zip(found, expected, strict=True))


def _alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    pairs = list(zip(found, expected, strict=False))
    return len(found) == len(expected) and all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _error(found: Tensor, expected: Tensor) -> float:
    if not expected.is_floating_point():
        return 0.0 if torch.equal(found, expected) else inf
    if not expected.numel():
        return 0.0
    far, finite = float(_distance(found, expected).max()), expected[expected.isfinite()]
    return far / float(finite.double().abs().max().clamp_min(1e-30)) if far and finite.numel() else far


def wrong_rows(found: Sequence[Tensor], expected: Sequence[Tensor], allowed: Sequence[Tensor]) -> Tensor:
    """Return which rows `(N,)` bool differ by more than `allowed` `(N,)`, of each output, in any value."""
    wrong = torch.zeros(len(expected[0]), dtype=torch.bool)
    for one, other, most in zip(found, expected, allowed, strict=True):
        if not other.is_floating_point():
            wrong |= (one != other).reshape(len(other), -1).any(1) & ~most.isinf()
            continue
        far = _distance(one, other)
        wrong |= ~(far <= most)
    return wrong


def _distance(found: Tensor, expected: Tensor) -> Tensor:
    """Return the largest difference in each row `(N,)`; infinite unless NaNs and infinities are the same."""
    a, b = found.reshape(len(found), -1).double(), expected.reshape(len(expected), -1).double()
    if not b.shape[1]:
        return torch.zeros(len(b), dtype=torch.float64)
    finite = b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, torch.where(finite & a.isfinite(), (a - b).abs(), inf))
    return difference.amax(1)


def _allowed(expected: Sequence[Tensor], tolerance: float) -> list[Tensor]:
    """Return by how much each row `(N,)` of each output may differ: in proportion to its largest finite number."""
    found = []
    for tensor in expected:
        rows = tensor.reshape(len(tensor), -1).double().abs().nan_to_num(0.0, 0.0, 0.0)
        largest = rows.amax(1) if rows.shape[1] else torch.zeros(len(rows), dtype=torch.float64)
        found.append((largest * tolerance).clamp_min(TINY if tensor.dtype != torch.float16 else 0.0))
    return found


@dataclass(frozen=True, slots=True)
class Answered:
    """The rows of a trial that eager answers, and what it answers: to all together, and to each one alone.

    Both are right: where sums overflow, eager itself gives an infinity in one and NaN in the other. `raises` is what it
    said of a row that it refuses, one of `all_rows`.
    """

    trial: Trial
    expected: tuple[Tensor, ...]
    alone: tuple[Tensor, ...]
    raises: str | None = None
    all_rows: tuple[Tensor, ...] = ()

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.trial.rows[0])


def answered(run: Run, trial: Trial) -> Answered:
    """Return what `run` answers to a trial; rows for which it raises are left out."""
    kept, outputs, raised = [], [], None
    for place, row in enumerate(_rows(trial.rows)):
        try:
            outputs.append(_copied(run(*row)))
            kept.append(place)
        except FAILURES as error:
            raised = " ".join(str(error).split())[:200]
    rows = tuple(tensor[kept] for tensor in trial.rows)
    alone = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
    together = _copied(run(*rows)) if len(kept) > 1 else alone
    return Answered(replace(trial, rows=rows), together, alone, raised, trial.rows)


def _rows(rows: tuple[Tensor, ...]) -> Sequence[tuple[Tensor, ...]]:
    """Return each row by itself."""
    return [tuple(tensor[row : row + 1] for tensor in rows) for row in range(len(rows[0]))]


def _copied(found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return copies: a backend may write over its outputs in the next call."""
    return tuple(tensor.clone() for tensor in found)


@dataclass(frozen=True)
class Reference:
    """What eager answers, by which `graph` it is computed, and what a backend may differ by: see `first_wrong`."""

    graph: Graph
    weights: Mapping[str, Tensor]
    tolerance: float

    def wrong(self, run: Run, given: Answered) -> bool:
        """Return whether `run` answers any row otherwise than eager."""
        return bool(self.wrong_rows(run, given).any())

    def wrong_rows(self, run: Run, given: Answered) -> Tensor:
        """Return which rows `(N,)` bool `run` answers otherwise than eager: all together, or each one alone.

        A row may differ by the tolerance, in proportion to its own largest number. Where that is less than what eager
        itself is away from the exact result, it may differ by some times as much: numbers that cancel leave nothing
        but rounding, of any order of the sums.
        """
        rows, wrong = given.trial.rows, torch.zeros(given.size, dtype=torch.bool)
        if not given.size:
            return wrong
        try:
            together = _copied(run(*rows))
            each = [together] if given.size == 1 else [_copied(run(*row)) for row in _rows(rows)]
        except FAILURES:
            return ~wrong
        for found in (together, tuple(torch.cat(parts) for parts in zip(*each, strict=True))):
            if not _alike(found, given.expected):
                return ~wrong
            wrong |= self._wrong(found, rows, given.expected) & self._wrong(found, rows, given.alone)
        return wrong

    def differs(self, found: tuple[Tensor, ...], rows: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
        """Return whether `found` is another answer to these rows than `expected`, by the rule of `wrong`."""
        return not _alike(found, expected) or bool(self._wrong(found, rows, expected).any())

    def _wrong(self, found: tuple[Tensor, ...], rows: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> Tensor:
        """Return which rows `(N,)` bool differ by more than the tolerance and by more than rounding."""
        wrong = wrong_rows(found, expected, _allowed(expected, self.tolerance))
        places = wrong.nonzero()[:, 0]
        if len(places):
            some = tuple(tensor[places] for tensor in expected)
            rounding = self._rounding(tuple(tensor[places] for tensor in rows), some)
            wrong[places] = wrong_rows([tensor[places] for tensor in found], some, rounding)
        return wrong

    def _rounding(self, rows: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> list[Tensor]:
        """Return by how much rows `(N,)` of each output may differ because of rounding alone.

        This is what eager is away from the result in float64, or what its graph yields otherwise with weights in the
        last bit of which something else stands: a single number may be exact by chance. The graph may overflow where
        the module does not, so it is compared with itself. A whole number that is another one in float64 stands on an
        edge, and may be either (inf).
        """
        none = [torch.zeros(len(tensor), dtype=torch.float64) for tensor in expected]
        if any(node.type is not None and node.type.dtype in {"float16", "bfloat16"} for node in self.graph.nodes):
            return none
        precise, eager, *shaken = self._variants
        usual = _tried(eager, rows) if shaken else None
        pairs = [(_tried(precise, rows), expected), *((_tried(one, rows), usual) for one in shaken)]
        far = none
        for other, same in pairs:
            if other is not None and same is not None:
                far = [torch.maximum(most, _apart(a, b)) for most, a, b in zip(far, other, same, strict=True)]
        return [most * ROUNDING for most in far]

    @cached_property
    def _variants(self) -> Sequence[Run]:
        """In float64, as it is, and with weights of other last bits, if it has any such weights."""
        generator = torch.Generator().manual_seed(0)
        own = {name: self.weights[name] for name in self.graph.weights()}
        shaken = [{name: _shaken(tensor, generator) for name, tensor in own.items()} for _ in range(2)]
        others = [in_eager(self.graph, weights) for weights in shaken if any(weights[n] is not own[n] for n in own)]
        return in_float64(self.graph, own), in_eager(self.graph, own), *others


def _tried(run: Run, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    try:
        return run(*rows)
    except FAILURES:
        return None


def _apart(found: Tensor, expected: Tensor) -> Tensor:
    """Return how far rows `(N,)` are from each other; where a number of one is not finite, nothing is excused."""
    if not expected.is_floating_point():
        edge = (found.to(expected.dtype) != expected).reshape(len(expected), -1).any(1)
        return torch.where(edge, inf, 0.0).double()
    rows = _distance(found.to(expected.dtype), expected)
    return torch.where(rows.isinf(), 0.0, _distance(found, expected).nan_to_num(0.0, 0.0, 0.0))


def _shaken(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a matrix with every number off by about one in its last bit; others, which may be exact, as they are."""
    if tensor.dtype not in {torch.float32, torch.float64} or tensor.dim() < 2:
        return tensor
    signs = torch.randint(-1, 2, tensor.shape, generator=generator)
    return tensor * (1 + signs * torch.finfo(tensor.dtype).eps)


def agreed_magnitude(run: Run, reference: Reference, answers: Sequence[Answered], usual: float) -> float | None:
    """Return up to which magnitude of its input `run` does as eager does; inf without end, None if not usually.

    A backend that takes NaN or infinities otherwise must not meet any inside of the network: large numbers may add up
    to one, sooner in some rows than in those compared. So the magnitude below the last one that agreed and gave numbers
    is sure. It must be well above that of the usual rows. A row counts with its own largest number: rows of small
    numbers are among those of each magnitude, and no limit keeps them out.
    """
    differ: float | None = None  # from which magnitude on
    for number, given in enumerate(answers):
        wrong = reference.wrong_rows(run, given)
        if wrong.any():
            least = min(_least_magnitude([tensor[wrong] for tensor in given.trial.rows]), given.trial.magnitude)
            differ = least if differ is None else min(least, differ)
            if number == 0 or differ <= USUAL:
                return None
    if differ is None:
        return inf
    first = next(number for number, given in enumerate(answers) if number and given.trial.magnitude > USUAL)
    always_finite = all(_is_finite(given) for given in answers[:first])
    agreed = []
    for given in answers[first:]:
        if given.trial.magnitude >= differ or (always_finite and not _is_finite(given)):
            break
        agreed.append(given.trial.magnitude)
    sure = agreed[-2] if len(agreed) > 1 else 0.0
    return sure if sure >= max(USUAL, ROUNDING * usual) else None


def _least_magnitude(rows: Sequence[Tensor]) -> float:
    """Return the largest floating-point number of the row where that is the least; 0 if rows have none."""
    found = torch.zeros(len(rows[0]), dtype=torch.float64)
    for tensor in rows:
        if tensor.is_floating_point() and tensor.numel():
            sizes = tensor.reshape(len(tensor), -1).double().abs().nan_to_num(inf, inf, inf)
            found = torch.maximum(found, sizes.amax(1))
    return float(found.min())


def _is_finite(given: Answered) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in given.expected)


def stages_agree(
    stages: Sequence[StageFunction], graphs: Sequence[Graph], reference: Reference, answers: Sequence[Answered]
) -> bool:
    """Return whether each stage does as eager does, on what eager computes before it."""
    references = [replace(reference, graph=graph) for graph in graphs]
    eager = [in_eager(graph, reference.weights) for graph in graphs]
    for given in answers:
        if not given.size:
            continue
        trial = given.trial
        for stage, expected, of_stage in zip(stages, eager, references, strict=True):
            found = answered(expected, trial)
            if of_stage.wrong(stage, found):
                return False
            trial = replace(found.trial, rows=found.expected)
    return True


def chain_error(
    stages: Sequence[StageFunction],
    graphs: Sequence[Graph],
    weights: Mapping[str, Tensor],
    inputs: tuple[Tensor, ...],
    batches: Sequence[int],
) -> float:
    """Return the worst relative error of any single stage and of the whole chain against eager, over these batches."""
    worst, eager = 0.0, [in_eager(graph, weights) for graph in graphs]
    for batch in batches:
        rows = exact = with_batch(inputs, batch)
        for stage, in_stage in zip(stages, eager, strict=True):
            expected = in_stage(*exact)
            worst = max(worst, relative_error(stage(*exact), expected))
            exact = expected
        worst = max(worst, relative_error(run_chain(stages, rows), exact))
    return worst


@dataclass(frozen=True, slots=True)
class Agreement:
    """The inputs with the whole numbers that they may have, and what the module answers to trials within these.

    `open` says why only eager is sure to raise where the module does, if so.
    """

    inputs: tuple[TensorSpec, ...]
    answers: tuple[Answered, ...]
    reference: Reference
    open: str | None

    def largest(self, uncut: Run) -> float | None:
        """Return up to which numbers the whole model does as the module does: see `agreed_magnitude`."""
        return agreed_magnitude(uncut, self.reference, self.answers, self.answers[0].trial.magnitude)

    def holds(self, stages: Sequence[StageFunction], graphs: Sequence[Graph], largest: float) -> bool:
        """Return whether the chain, and each of the stages that have a graph here, do as eager does up to `largest`."""
        within = [
            given for given in self.answers if given.trial.magnitude <= max(largest, self.answers[0].trial.magnitude)
        ]
        if any(self.reference.wrong(lambda *rows: run_chain(stages, rows), given) for given in within):
            return False
        return not graphs or stages_agree(stages, graphs, self.reference, within)

    def limited(self, largest: float) -> tuple[TensorSpec, ...]:
        """Return the inputs with all their limits, on a backend that does as the module does up to `largest`."""
        return tuple(
            replace(spec, largest=min(largest, torch.finfo(getattr(torch, spec.dtype)).max))
            if largest < inf and spec.dtype.startswith("float")
            else spec
            for spec in self.inputs
        )


def find_agreement(run: Run, exported: Exported, real: Sequence[tuple[Tensor, ...]], tolerance: float) -> Agreement:
    """Compare the exported graph with the module, which `run` calls; `real` are rows as they will come.

    Raises `ExportError` for a module without any number in its answers, and for one whose checks an export loses.
    """
    graph, weights = exported.graph, exported.weights
    limits, answers = _answers(run, exported, real, one_hot=False)
    if _unnoticed(run, exported, answers):
        limits, answers = _answers(run, exported, real, one_hot=True)
    lost = _unnoticed(run, exported, answers)
    if lost is not None:
        raise ExportError(
            f"the module raises for some values ({lost}) to which its exported graph gives an answer: what checks them "
            "is lost in the export. Leave such values out of the inputs, or check them outside the model"
        )
    _check_numbers(answers, exported)
    inputs = limits.applied(graph.inputs)
    _check_made_up(run, inputs)
    raised = next((given.raises for given in answers if given.raises is not None), None)
    open_ = None
    if limits.open:
        open_ = f"an index may be out of range, or a divisor 0, at {limits.open[0]}: only eager raises there"
    elif raised is not None:
        open_ = f"the module raises for some values ({raised}): only eager does the same"
    return Agreement(inputs, answers, Reference(graph, weights, tolerance), open_)


def _check_made_up(run: Run, inputs: tuple[TensorSpec, ...]) -> None:
    """Raise `ExportError` if the module raises for the numbers by which a server tries each model."""
    try:
        run(*made_up_inputs(inputs, 1))
    except FAILURES as error:
        raise ExportError(
            f"the module raises for a row of small numbers ({' '.join(str(error).split())[:200]}), by which a server "
            "tries each model: clamp what is an index or a divisor"
        ) from error


def _answers(
    run: Run, exported: Exported, real: Sequence[tuple[Tensor, ...]], *, one_hot: bool
) -> tuple[Limits, tuple[Answered, ...]]:
    limits = find_limits(exported.graph, exported.weights, one_hot=one_hot)
    limits = _confirmed(limits, run, exported, real[0])
    drawn = trials(exported.graph, exported.weights, limits.applied(exported.graph.inputs), real)
    return limits, tuple(_defined(answered(run, trial), exported) for trial in drawn)


def _defined(given: Answered, exported: Exported) -> Answered:
    """Return the answers without rows that have none: the module says NaN of numbers, its graph in eager does not.

    PyTorch has several kernels for one operator, and takes another one in a module than in a graph. Where every word of
    a text is masked, one kernel of attention answers NaN and another a number; a backend cannot do as both do.
    """
    if given.trial.magnitude > USUAL or not given.size:
        return given
    kept, graph = [], None
    for place, row in enumerate(_rows(given.trial.rows)):
        alone = tuple(tensor[place : place + 1] for tensor in given.alone)
        said = [tensor.isnan() for tensor in alone if tensor.is_floating_point()]
        if any(bool(nan.any()) for nan in said):
            graph = graph or in_eager(exported.graph, exported.weights)
            found = [tensor.isnan() for tensor in graph(*row) if tensor.is_floating_point()]
            if not all(torch.equal(one, other) for one, other in zip(said, found, strict=True)):
                continue
        kept.append(place)
    if len(kept) == given.size:
        return given
    return replace(
        given,
        trial=replace(given.trial, rows=tuple(tensor[kept] for tensor in given.trial.rows)),
        expected=tuple(tensor[kept] for tensor in given.expected),
        alone=tuple(tensor[kept] for tensor in given.alone),
    )


def _confirmed(limits: Limits, run: Run, exported: Exported, rows: tuple[Tensor, ...]) -> Limits:
    """Return the limits beyond which the module raises; what it answers all the same is not to be refused."""
    kept, unsure = {}, []
    for place, spec in enumerate(exported.graph.inputs):
        found, whole = limits.allowed.get(spec.name), whole_range(spec.dtype)
        if found is None or whole is None:
            continue
        beyond = [value for value in (found.least - 1, found.most + 1) if whole.least <= value <= whole.most]
        if all(
            _raises(run, (*rows[:place], torch.full_like(rows[place], value), *rows[place + 1 :])) for value in beyond
        ):
            kept[spec.name] = found
        else:
            unsure.append(spec.name)
    return Limits(kept, (*limits.open, *unsure))


def _raises(run: Run, rows: tuple[Tensor, ...]) -> bool:
    try:
        run(*rows)
    except FAILURES:
        return True
    return False


def _unnoticed(run: Run, exported: Exported, answers: Sequence[Answered]) -> str | None:
    """Return what the module said of a row for which it raises and its graph does not; None if there is no such row."""
    graph = in_eager(exported.graph, exported.weights)
    for given in answers:
        if given.raises is None:
            continue
        for row in _rows(given.all_rows):
            if _raises(run, row) and not _raises(graph, row):
                return given.raises
    return None


def _check_numbers(answers: Sequence[Answered], exported: Exported) -> None:
    """Raise `ExportError` if no answer has a single number in it: there is nothing to compare."""
    whole = [tensor for given in answers for tensor in given.expected]
    if not whole or any(bool(tensor.isfinite().any()) or not tensor.numel() for tensor in whole):
        return
    broken = next((name for name, weight in exported.weights.items() if not bool(weight.isfinite().all())), None)
    why = f"the weight {broken!r} has some" if broken is not None else "give rows as they will come, or mend the module"
    raise ExportError(f"every answer of the module is NaN or infinite on all rows that were tried: {why}")


def in_order(
    data: Mapping[str, Tensor] | Sequence[Tensor], examples: Mapping[str, Tensor] | Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return rows of data in the order and the dtypes of the examples, by name where both have the same names.

    Raises `ConfigError` for rows of another shape.
    """
    rows = tensors_of(data)
    if isinstance(data, Mapping) and isinstance(examples, Mapping) and set(data) == set(examples):
        rows = tuple(data[name] for name in examples)
    wanted = tensors_of(examples)
    if [tensor.shape[1:] for tensor in rows] != [tensor.shape[1:] for tensor in wanted]:
        shapes = [[list(tensor.shape[1:]) for tensor in tensors] for tensors in (rows, wanted)]
        raise ConfigError(
            f"the data has rows of shapes {shapes[0]}, and the examples of {shapes[1]}: give rows of both alike"
        )
    return tuple(tensor.to(one.dtype) for tensor, one in zip(rows, wanted, strict=True))


def like(
    examples: Mapping[str, Tensor] | Sequence[Tensor], rows: Sequence[Tensor]
) -> Mapping[str, Tensor] | Sequence[Tensor]:
    """Return copies of rows, which a module may write to, in the form of the examples."""
    copies = [tensor.clone() for tensor in rows]
    return dict(zip(examples, copies, strict=True)) if isinstance(examples, Mapping) else copies
