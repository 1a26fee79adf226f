"""From a `torch.nn.Module` to a `Graph` and its weights, by `torch.export`. Runs the module: a trusted step."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from inspect import signature
from io import StringIO
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.decomp_utils import CustomDecompTable
from torch.export.graph_signature import OutputKind
from torch.fx import Node as FxNode

from latebind.domain.errors import ExportError
from latebind.domain.model import ITEM_BYTES, TensorSpec
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight
from latebind.program.operators import BUILTINS, KEPT_WHOLE, SYM_SIZE, is_allowed, resolve
from latebind.program.simplify import simplify

Foreign = Any  # what torch or the module hands over, of any type

EXPORT_BATCH = 3  # torch.export treats 0 and 1 as special, so it is shown another size

# Nodes that only check what the exporter already knows.
CHECKS = ("aten._assert", "aten.sym_constrain_range")

BRANCHING = (
    "the control flow depends on a tensor's values: express it with torch.where, or make two modules of it and branch "
    "between them in a query (docs/query-files.md)"
)
HINTS = {
    "data-dependent": BRANCHING,
    "Could not guard": BRANCHING,
    "Constraints violated": "the code fixes the batch size: write x.shape[0] or -1 where the number stands",
    "specialized": "the code fixes the batch size: write x.shape[0] or -1 where the number stands",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """A network as data and the tensors that it reads, by name."""

    graph: Graph
    weights: dict[str, Tensor]

    def simplified(self) -> "Exported":
        """Return what computes the same with less."""
        return Exported(*simplify(self.graph, self.weights))


def export(
    module: nn.Module,
    inputs: Mapping[str, Tensor] | Sequence[Tensor],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Exported:
    """Return the inference graph of `module`; dimension 0 of every input and output is the batch, of any size.

    `inputs` are examples, by name or in order. Raises `ExportError` with the reason and what to change in the module.
    """
    return trace(module, inputs, input_names=input_names, output_names=output_names).simplified()


def trace(
    module: nn.Module,
    inputs: Mapping[str, Tensor] | Sequence[Tensor],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Exported:
    """Do what `export` does, but simplify nothing: with other weights it is another network of the same form."""
    names = _input_names(inputs, input_names)
    rows = tuple(_resize(tensor, EXPORT_BATCH) for tensor in _tensors(inputs))
    was_training = module.training
    module.eval()
    try:
        called = _Flat(module, _keywords(module, inputs))
        outputs = _output_names(_try_run(called, rows), output_names)
        program = _try_export(called, rows)
    finally:
        module.train(was_training)
    return _Reader(program, names, outputs).read()


def run_module(module: nn.Module, inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of the module itself in inference mode, in order: what everything else is compared with."""
    was_training = module.training
    module.eval()
    try:
        with torch.inference_mode():
            found: tuple[Tensor, ...] = _Flat(module, _keywords(module, inputs))(*_tensors(inputs))
        return found
    finally:
        module.train(was_training)


class _Flat(nn.Module):
    """The module with tensors in order as inputs and a flat tuple as output."""

    def __init__(self, module: nn.Module, keywords: tuple[str, ...] | None) -> None:
        super().__init__()
        self.module = module
        self._keywords = keywords

    def call(self, *tensors: Tensor) -> Foreign:
        """Return what the module returns."""
        if self._keywords is None:
            return self.module(*tensors)
        return self.module(**dict(zip(self._keywords, tensors, strict=True)))

    def forward(self, *tensors: Tensor) -> tuple[Any, ...]:
        """Return the module's outputs in a tuple."""
        found = self.call(*tensors)
        if isinstance(found, Mapping):
            return tuple(found.values())
        return tuple(found) if isinstance(found, tuple | list) else (found,)


def _keywords(module: nn.Module, inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> tuple[str, ...] | None:
    """Return the names to call the module with; None has inputs go in order, their names are for clients alone then."""
    if not isinstance(inputs, Mapping):
        return None
    parameters = signature(module.forward).parameters.values()
    unknown = set(inputs) - {parameter.name for parameter in parameters if parameter.kind != parameter.VAR_POSITIONAL}
    if not unknown or any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return tuple(inputs)
    if unknown == set(inputs):
        return None
    takes = ", ".join(parameter.name for parameter in parameters)
    raise ExportError(
        f"the module's forward({takes}) knows no {', '.join(sorted(unknown))}: name all inputs as it does, "
        "or none of them, and they go in order"
    )


def _tensors(inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(inputs.values()) if isinstance(inputs, Mapping) else tuple(inputs)


def _input_names(inputs: Mapping[str, Tensor] | Sequence[Tensor], given: Sequence[str] | None) -> tuple[str, ...]:
    tensors = _tensors(inputs)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or tensor.shape[0] == 0 or tensor.device.type != "cpu":
            raise ExportError(
                "every example input must be a tensor on the CPU with a batch dimension of 1 or more, and one is "
                f"{_described(tensor)}: torch.as_tensor makes one of an array or a list"
            )
        _dtype_name(tensor.dtype)
    default = tuple(inputs) if isinstance(inputs, Mapping) else tuple(f"input_{i}" for i in range(len(tensors)))
    names = tuple(given) if given is not None else (("input",) if default == ("input_0",) else default)
    if not names or len(names) != len(tensors) or len(set(names)) != len(names):
        raise ExportError(f"{len(tensors)} example inputs need as many different names, not {list(names)}")
    return names


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} on {value.device}"
    return f"of type {type(value).__name__}"


def _resize(tensor: Tensor, batch: int) -> Tensor:
    return tensor.detach()[torch.arange(batch) % tensor.shape[0]]


def _try_run(called: _Flat, rows: tuple[Tensor, ...]) -> Foreign:
    try:
        with torch.no_grad():
            return called.call(*rows)
    except Exception as error:  # the module is foreign code: whatever it raises is the reason to report
        raise ExportError(
            f"the module raised on {EXPORT_BATCH} rows of the example inputs: {error!r}. Give rows as its forward "
            "takes them, the batch dimension first, and by name what it takes by name only"
        ) from error


def _output_names(found: Foreign, given: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(found, Mapping):
        names, tensors = tuple(str(key) for key in found), tuple(found.values())
    elif isinstance(found, tuple | list):
        names, tensors = tuple(f"output_{i}" for i in range(len(found))), tuple(found)
    else:
        names, tensors = ("output",), (found,)
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            raise ExportError(f"{name} of the module is a {type(tensor).__name__}: return tensors, a tuple or a dict")
        if tensor.dim() == 0 or tensor.shape[0] != EXPORT_BATCH:
            raise ExportError(
                f"{name} of the module has shape {tuple(tensor.shape)} for {EXPORT_BATCH} rows of input: "
                "return one row for each row of input"
            )
        _dtype_name(tensor.dtype)
    names = tuple(given) if given is not None else names
    if not tensors or len(names) != len(tensors) or len(set(names)) != len(names):
        raise ExportError(f"{len(tensors)} outputs need as many different names, not {list(names)}")
    return names


def _try_export(called: _Flat, rows: tuple[Tensor, ...]) -> ExportedProgram:
    batch = Dim("batch", min=1, max=1 << 20)
    shapes = (tuple({0: batch} for _ in rows),)
    try:
        with torch.no_grad(), warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            warnings.filterwarnings("ignore", "The tensor attributes .* were assigned during export")  # by nn.LSTM
            program = torch.export.export(called, rows, dynamic_shapes=shapes)
            decomposed: ExportedProgram = program.run_decompositions(dict(_decompositions()))
            return decomposed
    except Exception as error:  # as above: export runs the module and raises dozens of kinds of error
        raise ExportError(f"the module cannot be exported{_place(error)}: {_reason(str(error))}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch logs, and prints to standard error, of an export that fails: the error says it in a line."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def _place(error: BaseException) -> str:
    """Return the line of the module that torch was at, where one is known."""
    ours = (str(Path(torch.__file__).parent), __file__, "<")
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""


@cache
def _decompositions() -> Mapping[Foreign, Foreign]:
    """Return how operators are taken apart; to make the table takes a third of an export."""
    table: Foreign = CustomDecompTable()  # type: ignore[no-untyped-call]
    for name in KEPT_WHOLE:
        table.pop(resolve(name), None)
    found: dict[Foreign, Foreign] = table.materialize()
    return found


def _reason(message: str) -> str:
    hint = next((hint for sign, hint in HINTS.items() if sign in message), "rewrite this part with tensor operations")
    first = message.strip().partition("\n")[0].partition(" For more information")[0][:300].rstrip(". ")
    return f"{first}. What to change: {hint}"


class _Reader:
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

    def read(self) -> Exported:
        """Return graph and weights; raises `ExportError` for what cannot be served."""
        self._refuse_side_effects()
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                self._read_placeholder(node)
            elif node.op == "call_function":
                self._read_call(node)
            elif node.op == "output":
                results = node.args[0]
        outputs = tuple((name, self._output(name, found)) for name, found in zip(self._outputs, results, strict=True))
        specs = tuple(self._specs[name] for name in self._inputs.values())
        return Exported(Graph(specs, tuple(self._nodes), outputs), self._weights)

    def _refuse_side_effects(self) -> None:
        for spec in self._signature.output_specs:
            if spec.kind != OutputKind.USER_OUTPUT:
                raise ExportError(
                    f"the module changes {spec.target!r} while it runs: a served model keeps no state between calls"
                )

    def _read_placeholder(self, node: FxNode) -> None:
        name = node.name
        if name in self._inputs:
            value = node.meta["val"]
            self._batch = value.shape[0].node.expr
            self._specs[self._inputs[name]] = TensorSpec(
                self._inputs[name], _dtype_name(value.dtype), tuple(int(size) for size in value.shape[1:])
            )
        elif name in self._signature.inputs_to_parameters:
            self._add_weight(name, self._signature.inputs_to_parameters[name])
        elif name in self._signature.inputs_to_buffers:
            self._add_weight(name, self._signature.inputs_to_buffers[name])
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
        if not is_allowed(op):
            raise ExportError(
                f"the module uses {op!r}, which cannot be served (it is not a pure tensor operation): "
                "replace it, or do that computation outside the model"
            )
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
        return TensorType(_dtype_name(value.dtype), tuple(self._size(size) for size in value.shape))

    def _size(self, size: Foreign) -> int | None:
        if isinstance(size, int):
            return size
        return None if size.node.expr == self._batch else -1

    def _output(self, name: str, found: Foreign) -> str:
        argument = self._argument(found)
        if not isinstance(argument, Value):
            raise ExportError(f"{name} of the module does not depend on its input: leave it out")
        return argument.name


_CONSTANT_TYPES: dict[str, type] = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def _op_name(target: Foreign) -> str:
    found = next((name for name, builtin in BUILTINS.items() if builtin is target), None)
    return found or str(target)


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise ExportError(f"a tensor of the module has dtype {name}: use one of {', '.join(ITEM_BYTES)}")
    return name
