"""Reads what torch.export has made of a module into a `Graph` and its weights, and refuses what cannot be served."""

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node as FxNode

from latebind.domain.errors import ExportError
from latebind.domain.model import INNER_DTYPES, ITEM_BYTES, TensorSpec
from latebind.domain.sizes import Dim, Size
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight
from latebind.program.operators import BUILTINS, SYM_SIZE, is_allowed, why_refused
from latebind.program.symbols import written

Foreign = Any  # an object of torch, of any type

FIXED = "the code fixes a size: write x.shape[0] for the batch, or x.shape[1] for a length, where the number stands"
ALIAS = "aten.alias.default"  # returns its argument
# How torch.export marks an operator that does more than return tensors: `with_effects(token, operator, ...)`.
EFFECT = "with_effects"

AS_PARTS = "let the module take or return torch.view_as_real(x), which has both parts in float32"
UNSIGNED = "torch has few operators for it and copies no rows of it: take int64"
DTYPE_HINTS = {
    "uint16": "torch has few operators for it and copies no rows of it: take int32",
    "uint32": UNSIGNED,
    "uint64": UNSIGNED,
    "complex64": AS_PARTS,
    "complex128": AS_PARTS,
}


class SizeFixed(ExportError):
    """The module's code fixes a named dimension to a number, or handles only some of its sizes."""


class Reader:
    """Reads an exported program into a `Graph`."""

    def __init__(
        self, program: ExportedProgram, inputs: tuple[TensorSpec, ...], outputs: tuple[str, ...], dims: tuple[Dim, ...]
    ) -> None:
        self._program = program
        self._signature = program.graph_signature
        self._specs = {spec.name: spec for spec in inputs}
        self._inputs = dict(zip(self._signature.user_inputs, self._specs, strict=True))
        self._outputs = outputs
        self._dims = {dim.name: dim for dim in dims}
        self._steps: dict[Foreign, Dim] = {}  # by torch's symbol for its number of steps
        self._first: dict[Size | None, tuple[str, int]] = {}  # the first place where each size can be read
        self._nodes: list[Node] = []
        self._weights: dict[str, Tensor] = {}
        self._weight_of: dict[str, str] = {}
        self._batch: Any = None

    def read(self) -> tuple[Graph, dict[str, Tensor]]:
        """Return graph and weights; raises `ExportError` for what cannot be served."""
        results = self._results(self._program.graph.output_node().args[0])
        needed = _upstream([found for found in results if isinstance(found, FxNode)])  # others only check what is known
        for node in self._program.graph.nodes:
            if node.op == "placeholder" and node.name not in self._signature.input_tokens:  # of an `EFFECT`
                self._read_placeholder(node)
            elif node.op == "call_function" and (node.name in needed or _op_name(node.target) == EFFECT):
                self._read_call(node)
        outputs = tuple((name, self._output(name, found)) for name, found in zip(self._outputs, results, strict=True))
        graph = Graph(tuple(self._specs.values()), tuple(self._nodes), outputs, tuple(self._dims.values()))
        return graph, self._weights

    def _results(self, given: Foreign) -> list[Foreign]:
        """Return the results of the module; raises `ExportError` if one depends on state written by an earlier call.

        State that is written and never read, such as a count of calls, is left out: outputs do not depend on it.
        """
        kinds = list(zip(self._signature.output_specs, given, strict=True))
        results = [found for spec, found in kinds if spec.kind == OutputKind.USER_OUTPUT]
        read = _upstream([found for found in results if isinstance(found, FxNode)])
        buffers = {buffer: name for name, buffer in self._signature.inputs_to_buffers.items()}
        for target in [str(spec.target) for spec, _ in kinds if spec.kind != OutputKind.USER_OUTPUT]:
            if buffers.get(target, target) in read or target in self._signature.user_inputs:
                raise ExportError(
                    f"the module changes {target.removeprefix('module.')!r} while it runs: a served model keeps no "
                    "state between calls. Take it as an input and return it, or write to it only where self.training"
                )
        return results

    def _read_placeholder(self, node: FxNode) -> None:
        name = node.name
        if name in self._inputs:
            value, public = node.meta["val"], self._inputs[name]
            self._batch = value.shape[0].node.expr
            self._first.setdefault(None, (public, 0))
            for axis, size in enumerate(self._specs[public].sizes, 1):
                if isinstance(size, str):
                    if isinstance(value.shape[axis], int):  # fixed in a decomposition, after torch's checks
                        raise SizeFixed(
                            f"the module cannot be exported for all sizes: {size} stays {value.shape[axis]}: {FIXED}"
                        )
                    (steps,) = value.shape[axis].node.expr.free_symbols
                    self._steps[steps] = self._dims[size]
                    self._first.setdefault(size, (public, axis))
            return
        signature, state = self._signature, self._program.state_dict
        known = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        target = known.get(name) or signature.inputs_to_lifted_tensor_constants[name]
        tensor = state[target] if target in state else self._program.constants[target]
        self._weight_of[name] = target.removeprefix("module.")
        self._weights[self._weight_of[name]] = tensor.detach().contiguous()

    def _read_call(self, node: FxNode) -> None:
        op = _op_name(node.target)
        if op == EFFECT:
            raise ExportError(
                f"the module uses {_op_name(node.args[1])!r}, which cannot be served: it does more than return "
                "tensors. If it raises for some values, as torch.linalg.inv does, use one that never does: inv_ex"
            )
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and (first := self._first.get(self._size(value))) is not None:
            self._nodes.append(Node(node.name, SYM_SIZE, (Value(first[0]), first[1])))
            return
        if op == "aten.as_strided.default" and _is_as_it_was(node):
            self._nodes.append(
                Node(node.name, ALIAS, (self._argument(node.args[0]),), (), self._type(node.meta["val"]))
            )
            return
        if not is_allowed(op):
            raise ExportError(f"the module uses {op!r}, which cannot be served: {why_refused(op)}")
        args = tuple(self._argument(part) for part in node.args)
        kwargs = tuple((key, self._argument(part)) for key, part in node.kwargs.items())
        kind = self._type(value)
        for axis, size in enumerate(() if kind is None else kind.shape):
            if isinstance(size, str):
                self._first.setdefault(size, (node.name, axis))
        self._nodes.append(Node(node.name, op, args, kwargs, kind))

    def _argument(self, found: Foreign) -> Argument:
        if isinstance(found, FxNode):
            if found.name in self._weight_of:
                return Weight(self._weight_of[found.name])
            return Value(self._inputs.get(found.name, found.name))
        if isinstance(found, list | tuple):
            return tuple(self._argument(part) for part in found)
        for kind, type_ in _CONSTANT_TYPES.items():
            if isinstance(found, type_):
                return Constant(kind, str(found).removeprefix("torch."))
        if found is None or isinstance(found, bool | int | float | str):
            return found
        raise ExportError(f"the module passes a {type(found).__name__} to an operator, which cannot be served")

    def _type(self, value: Foreign) -> TensorType | None:
        if not isinstance(value, Tensor):
            return None
        return TensorType(_inner_dtype(value.dtype), tuple(self._size(size) for size in value.shape))

    def _size(self, size: Foreign) -> Size | None:
        if isinstance(size, int):
            return size
        if size.node.expr == self._batch:
            return None
        return written(size.node.expr, self._steps) or -1

    def _output(self, name: str, found: Foreign) -> str:
        argument = self._argument(found)
        if not isinstance(argument, Value):
            raise ExportError(f"{name} of the module does not depend on its input: leave it out")
        kind = self._type(found.meta["val"])
        if kind is None or kind.row is None:
            raise ExportError(
                f"{name} of the module has a shape that grows with the batch in more than its first dimension: return "
                "what belongs to one row of input, and compare rows with each other outside the model"
            )
        return argument.name


_CONSTANT_TYPES: dict[str, type] = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def _upstream(nodes: list[FxNode]) -> set[str]:
    """Return the names of the nodes and of all that they depend on."""
    found: set[str] = set()
    while nodes:
        node = nodes.pop()
        if node.name not in found:
            found.add(node.name)
            nodes += node.all_input_nodes
    return found


def _is_as_it_was(node: FxNode) -> bool:
    """Return whether the given strides are the tensor's own: with channels last, `AdaptiveAvgPool2d(1)` gives them.

    Strides may only differ for dimensions of size 1, where they have no effect.
    """
    source, found = node.args[0], node.meta["val"]
    assert isinstance(source, FxNode)
    before = source.meta["val"]
    if before.shape != found.shape or before.storage_offset() != found.storage_offset():
        return False
    sides = zip(before.shape, before.stride(), found.stride(), strict=True)
    return all(bool(size == 1) or bool(a == b) for size, a, b in sides)


def _op_name(target: Foreign) -> str:
    found = next((name for name, builtin in BUILTINS.items() if builtin is target), None)
    return found or str(target)


def _inner_dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in INNER_DTYPES:
        raise ExportError(f"the module computes in {name}: it may use {', '.join(sorted(INNER_DTYPES))}")
    return name


def dtype_name(dtype: torch.dtype, what: str) -> str:
    """Return the dtype of an input or output; raises `ExportError` with a hint if the protocol has none like it."""
    name = str(dtype).removeprefix("torch.")
    if name in ITEM_BYTES:
        return name
    hint = DTYPE_HINTS.get(name, f"use one of {', '.join(ITEM_BYTES)}")
    raise ExportError(f"{what} of the module has dtype {name}, which clients can neither send nor receive: {hint}")
