"""What a build finds out about the values that clients may send: which the module takes, and where a backend differs.

`limits` says what indices allow, `trial_rows` draws rows within these limits, `verify` compares on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError, ExportError
from latebind.domain.model import TensorSpec
from latebind.program.export import Exported
from latebind.program.limits import Limits, find_limits
from latebind.program.measure import made_up_inputs
from latebind.program.ranges import whole_range
from latebind.program.rebuild import in_eager
from latebind.program.trial_rows import USUAL, trials
from latebind.program.tuning import Candidate, Chain
from latebind.program.verify import (
    FAILURES,
    Answered,
    Reference,
    Run,
    agreed_magnitude,
    answered,
    stages_agree,
    whole_agrees,
)

RAISING = "eager"  # the backend that raises where the module does


@dataclass(frozen=True, slots=True)
class Agreement:
    """The inputs with the whole numbers that they may have, and what the module answers to trials within these.

    `open` says why only eager is sure to raise where the module does, if so.
    """

    inputs: tuple[TensorSpec, ...]
    answers: tuple[Answered, ...]
    reference: Reference
    open: str | None

    def judged(self, candidate: Candidate) -> Candidate:
        """Return the candidate with the largest numbers up to which it does as the module does, or refused."""
        if candidate.uncut is None:
            return candidate
        if self.open is not None and candidate.backend != RAISING:
            return replace(candidate, refused=self.open, uncut=None)
        largest = agreed_magnitude(candidate.uncut, self.reference, self.answers, self.answers[0].trial.magnitude)
        if largest is None:
            why = "differs from the module on values that clients may send, though not on the examples"
            return replace(candidate, refused=why, uncut=None)
        return replace(candidate, largest=largest)

    def holds(self, chain: Chain, largest: float) -> bool:
        """Return whether the whole chain, and each stage, do as eager does on numbers up to `largest`.

        A stage in eager is what stages are compared with, so of such a chain only the whole is compared.
        """
        within = [
            given for given in self.answers if given.trial.magnitude <= max(largest, self.answers[0].trial.magnitude)
        ]
        if not whole_agrees(chain.stages, self.reference, within):
            return False
        return chain.backend == RAISING or stages_agree(chain.stages, chain.graphs, self.reference, within)

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
        if all(_raises(run, _with(rows, place, value)) for value in beyond):
            kept[spec.name] = found
        else:
            unsure.append(spec.name)
    return Limits(kept, (*limits.open, *unsure))


def _with(rows: tuple[Tensor, ...], place: int, value: int) -> tuple[Tensor, ...]:
    return tuple(torch.full_like(tensor, value) if number == place else tensor for number, tensor in enumerate(rows))


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


def _rows(rows: tuple[Tensor, ...]) -> Sequence[tuple[Tensor, ...]]:
    return [tuple(tensor[row : row + 1] for tensor in rows) for row in range(len(rows[0]))]


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
    rows = _values(data)
    if isinstance(data, Mapping) and isinstance(examples, Mapping) and set(data) == set(examples):
        rows = [data[name] for name in examples]
    wanted = _values(examples)
    if [tensor.shape[1:] for tensor in rows] != [tensor.shape[1:] for tensor in wanted]:
        shapes = [[list(tensor.shape[1:]) for tensor in tensors] for tensors in (rows, wanted)]
        raise ConfigError(
            f"the data has rows of shapes {shapes[0]}, and the examples of {shapes[1]}: give rows of both alike"
        )
    return tuple(tensor.to(one.dtype) for tensor, one in zip(rows, wanted, strict=True))


def _values(tensors: Mapping[str, Tensor] | Sequence[Tensor]) -> list[Tensor]:
    return list(tensors.values() if isinstance(tensors, Mapping) else tensors)


def like(
    examples: Mapping[str, Tensor] | Sequence[Tensor], rows: Sequence[Tensor]
) -> Mapping[str, Tensor] | Sequence[Tensor]:
    """Return copies of rows, which a module may write to, in the form of the examples."""
    copies = [tensor.clone() for tensor in rows]
    return dict(zip(examples, copies, strict=True)) if isinstance(examples, Mapping) else copies
