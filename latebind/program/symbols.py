"""Sizes in `torch.export`, which are symbols: named dimensions passed to it, and sizes read from it."""

import ast
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from traceback import FrameSummary, StackSummary, walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._dynamo.exc import UserError
from torch.export import Dim as TorchDim
from torch.export import ExportedProgram
from torch.fx import Node as FxNode
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from latebind.domain.sizes import Dim

Foreign = Any  # an object of torch, of any type
MOST_TRIED = 1024  # sizes, or pairs of sizes, for which what torch cannot prove is evaluated


def torch_dim(dim: Dim) -> Foreign:
    """Return a named dimension as torch takes it: a number of steps, times their size."""
    if dim.step == 1:
        return TorchDim(dim.name, min=dim.least, max=dim.most)
    return dim.step * TorchDim(f"{dim.name}_steps", min=dim.least // dim.step, max=dim.most // dim.step)


def export_for_all_sizes(module: nn.Module, rows: tuple[Tensor, ...], shapes: Foreign) -> ExportedProgram:
    """Return the module exported by `torch.export`, for all sizes that `shapes` allow.

    Torch refuses what it cannot prove to hold for all of them, such as that 1 % (T // 10 - 1) is not 0 from 40 on. So
    its claims are evaluated instead; raises what torch raises if one does not hold.
    """
    try:
        return torch.export.export(module, rows, dynamic_shapes=shapes)
    except UserError as error:
        if "Not all values of" not in str(error) or "specialized" in str(error):
            raise
        program = torch.export.export(
            module, rows, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
        )
        if not all(_holds(claim, program.range_constraints) for claim in _claims(program)):
            raise
        return program


def _claims(program: ExportedProgram) -> Iterator[Foreign]:
    """Yield the claims about sizes that an exported program checks."""
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten._assert_scalar.default:
            value = node.args[0].meta["val"] if isinstance(node.args[0], FxNode) else node.args[0]
            if isinstance(value, torch.SymBool):
                yield value.node.expr


def _holds(claim: Foreign, ranges: Mapping[Foreign, Foreign]) -> bool:
    """Return whether a claim holds for all sizes, or, if they are many, for those tried.

    Like torch it leaves out size 1, where a claim may fail without harm: answers there are compared anyway.
    """
    symbols = sorted(claim.free_symbols, key=str)
    most = int(MOST_TRIED ** (1 / max(len(symbols), 1))) // 2  # of all of them, and of the least
    tried = []
    for symbol in symbols:
        least, last = max(int(ranges[symbol].lower), 2), int(ranges[symbol].upper)
        step = max(1, (last - least) // most)
        tried.append(sorted({*range(least, last + 1, step), *range(least, min(last, least + most)), last}))
    # With torch's own interpreter, on numbers: sympy's `subs` takes a second for each claim of a network for sounds.
    return all(
        sympy_interp(PythonReferenceAnalysis, dict(zip(symbols, sizes, strict=True)), claim)
        for sizes in product(*tried)
    )


class Fixing:
    """Records where the module is when torch first fixes a size to a number, or else last narrows a range of sizes.

    Or else where it first takes two sizes to be equal; those of one named dimension in two inputs are, which is no
    fault.

    Torch reports this only at the end of an export, but logs each such step when it takes it, to nobody while logging
    is off.
    """

    def __init__(self) -> None:
        self._log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
        self._fixed: Sequence[FrameSummary] = ()
        self._narrowed: Sequence[FrameSummary] = ()
        self._equal: Sequence[FrameSummary] = ()
        self._outside = 0  # calls that led to the export, whose lines are not the module's

    @property
    def frames(self) -> Sequence[FrameSummary]:
        """The calls within the export that led there, innermost last; empty if torch did nothing of the kind."""
        return (self._fixed or self._narrowed or self._equal)[self._outside :]

    def _note(self, message: object, *given: Foreign, **_: object) -> None:
        text = str(message)
        if text.startswith("set_replacement %s = %s"):
            if given[1].is_Integer:
                self._fixed = self._fixed or _stack()
            else:
                self._equal = self._equal or _stack()
        elif text.startswith("_update_var_to_range") and text.endswith("(update)"):
            self._narrowed = _stack()

    def __enter__(self) -> None:
        self._outside = len(_stack())
        self._log.info = self._log.debug = self._note  # type: ignore[assignment,method-assign]

    def __exit__(self, *_: object) -> None:
        del self._log.info, self._log.debug


def _stack() -> Sequence[FrameSummary]:
    return StackSummary.extract(walk_stack(None), lookup_lines=False)[::-1]


def written(size: Foreign, steps: Mapping[Foreign, Dim]) -> str | None:
    """Return a torch size as `domain.sizes` reads it; None if it is not one in terms of named dimensions.

    `steps` are the symbols that count the steps of each.
    """
    try:
        return ast.unparse(ast.parse(_text(size, steps)))
    except ValueError:
        return None


def _text(size: Foreign, steps: Mapping[Foreign, Dim]) -> str:
    """Return a torch size as `domain.sizes` reads it; raises `ValueError` if that is not possible."""
    if size.is_Integer:
        return str(int(size))
    factor, rest = size.as_coeff_Mul()
    if rest in steps and factor.is_Integer and factor > 0:
        dim, factor = steps[rest], int(factor)
        if factor % dim.step == 0:
            return dim.name if factor == dim.step else f"({factor // dim.step} * {dim.name})"
        return f"({factor} * ({dim.name} // {dim.step}))"
    kind, parts = size.func.__name__, [_text(part, steps) for part in size.args]
    if kind in {"Max", "Min"}:
        return f"{kind}({', '.join(parts)})"
    joined = {"Add": " + ", "Mul": " * ", "FloorDiv": " // ", "CleanDiv": " // ", "Mod": " % ", "PythonMod": " % "}
    if kind not in joined or not parts:
        raise ValueError(f"{size} is not a size in terms of the named dimensions")
    return f"({joined[kind].join(parts)})"


@contextmanager
def layers_of_any_length() -> Iterator[None]:
    """Register with torch what LSTM and GRU layers return; otherwise it would unroll their steps.

    That would fix a varying number of steps to that of the examples. This way the layers stay whole in a graph.
    """
    layers = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)
    kernels, decompositions = [dict(op.py_kernels) for op in layers], [decomposition_table[op] for op in layers]
    try:
        for op in layers:
            op.py_kernels.update(dict.fromkeys((DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd), _layers))
            decomposition_table[op] = _layers
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernel, decomposition in zip(layers, kernels, decompositions, strict=True):
            op.py_kernels.update(kernel)
            decomposition_table[op] = decomposition
            op._dispatch_cache.clear()


def _layers(rows: Tensor, states: Foreign, *given: Foreign) -> tuple[Tensor, ...]:
    """Return tensors like the outputs of all steps and the last states; `given` are the arguments of the operators."""
    both = given[5]
    several = list(states) if isinstance(states, list | tuple) else [states]
    outputs = rows.new_empty(*rows.shape[:2], several[0].shape[-1] * (2 if both else 1))
    return (outputs, *(state.new_empty(state.shape) for state in several))
