"""Reads a program that `torch.export` made into a `Graph` and its weights; refuses what cannot be served."""

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node as FxNode

from latebind.domain.errors import ExportError
from latebind.domain.model import INNER_DTYPES, ITEM_BYTES, TensorSpec
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight
from latebind.program.operators import BUILTINS, SYM_SIZE, is_allowed, why_refused

Foreign = Any  # an object of torch or the module, of any type

# Operators that return their argument, and those that only check what the exporter knows already.
ALIAS = "aten.alias.default"
CHECKS = ("aten._assert", "aten.sym_constrain_range")
# How torch.export notes an operator that does more than return tensors: `with_effects(token, operator, ...)`.
EFFECT = "with_effects"

AS_PARTS = "let the module take or return torch.view_as_real(x), which has both parts in float32"
DTYPE_HINTS = {
    "bfloat16": "build module.float() on float32 rows; --backend openvino-bf16 --tolerance 0.02 computes in bfloat16",
    "complex64": AS_PARTS,
    "complex128": AS_PARTS,
}


class Reader:
    """Reads an exported program into a `Graph`."""

    def __init__(self, program: ExportedProgram, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self._program = program
        self._signature = program.graph_signature
        self._inputs = dict(zip(self._signature.user_inputs, inputs, strict=True))
        self._outputs = outputs
        self._specs: dict[str, TensorSpec] = {}
        self._nodes: list[Node] = []
        self._weights: dict[str, Tensor] = {}
        self._weight_of: dict[str, str] = {}
        self._batch: Any = None

    def read(self) -> tuple[Graph, dict[str, Tensor]]:
        """Return graph and weights; raises `ExportError` for what cannot be served."""
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                self._read_placeholder(node)
            elif node.op == "call_function":
                self._read_call(node)
            elif node.op == "output":
                results = self._outputs_of(node.args[0])
        outputs = tuple((name, self._output(name, found)) for name, found in zip(self._outputs, results, strict=True))
        specs = tuple(self._specs[name] for name in self._inputs.values())
        return Graph(specs, tuple(self._nodes), outputs), self._weights

    def _outputs_of(self, given: Foreign) -> list[Foreign]:
        """Return the results of the module; raises `ExportError` if one depends on state written by an earlier call.

        State that is written and never read, such as a count of calls, is left out: outputs do not depend on it.
        """
        kinds = list(zip(self._signature.output_specs, given, strict=True))
        results = [found for spec, found in kinds if spec.kind == OutputKind.USER_OUTPUT]
        written = {str(spec.target): found for spec, found in kinds if spec.kind != OutputKind.USER_OUTPUT}
        read = _upstream([found for found in results if isinstance(found, FxNode)])
        for target in written:
            name = next((key for key, buffer in self._signature.inputs_to_buffers.items() if buffer == target), target)
            if name in read or target in self._signature.user_inputs:
                raise ExportError(
                    f"the module changes {target.removeprefix('module.')!r} while it runs: a served model keeps no "
                    "state between calls. Take it as an input and return it, or write to it only where self.training"
                )
        return results

    def _read_placeholder(self, node: FxNode) -> None:
        name = node.name
        if name in self._inputs:
            value = node.meta["val"]
            self._batch = value.shape[0].node.expr
            self._specs[self._inputs[name]] = TensorSpec(
                self._inputs[name], dtype_name(value.dtype, name), tuple(int(size) for size in value.shape[1:])
            )
        elif name in self._signature.inputs_to_parameters:
            self._add_weight(name, self._signature.inputs_to_parameters[name])
        elif name in self._signature.inputs_to_buffers:
            self._add_weight(name, self._signature.inputs_to_buffers[name])
        elif name in self._signature.input_tokens:
            return  # of an `EFFECT`, which is refused
        else:
            self._add_weight(name, self._signature.inputs_to_lifted_tensor_constants[name])

    def _add_weight(self, placeholder: str, target: str) -> None:
        state = self._program.state_dict
        tensor = state[target] if target in state else self._program.constants[target]
        short = target.removeprefix("module.")
        self._weight_of[placeholder] = short
        self._weights[short] = tensor.detach().contiguous()

    def _read_call(self, node: FxNode) -> None:
        op = _op_name(node.target)
        if op.startswith(CHECKS):
            return
        if op == EFFECT:
            raise ExportError(
                f"the module uses {_op_name(node.args[1])!r}, which cannot be served: it does more than return "
                "tensors. Where it raises for some values, as in torch.linalg.inv, take what answers for all: inv_ex"
            )
        if op == "aten.as_strided.default" and _is_as_it_was(node):
            self._nodes.append(
                Node(node.name, ALIAS, (self._argument(node.args[0]),), (), self._type(node.meta["val"]))
            )
            return
        if not is_allowed(op):
            raise ExportError(f"the module uses {op!r}, which cannot be served: {why_refused(op)}")
        value = node.meta.get("val")
        args: tuple[Argument, ...]
        kwargs: tuple[tuple[str, Argument], ...]
        if isinstance(value, torch.SymInt) and value.node.expr == self._batch:
            first = next(iter(self._inputs.values()))
            op, args, kwargs = SYM_SIZE, (Value(first), 0), ()
        else:
            args = tuple(self._argument(part) for part in node.args)
            kwargs = tuple((key, self._argument(part)) for key, part in node.kwargs.items())
        self._nodes.append(Node(node.name, op, args, kwargs, self._type(value)))

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

    def _size(self, size: Foreign) -> int | None:
        if isinstance(size, int):
            return size
        return None if size.node.expr == self._batch else -1

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
    """Return whether the stated strides are the tensor's own: channels last, `AdaptiveAvgPool2d(1)` states them.

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
    raise ExportError(f"{what} of the module has dtype {name}, which clients cannot be sent or send: {hint}")
