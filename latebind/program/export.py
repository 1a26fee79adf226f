"""Exports a `torch.nn.Module` to a `Graph` and its weights, with `torch.export`. Runs the module: a trusted step.

Refuses what cannot be served, and says what to change in the module.
"""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from inspect import signature
from io import StringIO
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.export import Dim as TorchDim
from torch.export import ExportedProgram
from torch.export.decomp_utils import CustomDecompTable
from torch.fx import GraphModule
from torch.nn.utils.rnn import PackedSequence

from latebind.domain.errors import ConfigError, ExportError
from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Dim, Size
from latebind.program.exported import FIXED, Reader, SizeFixed, dtype_name
from latebind.program.graph import Graph, Weight
from latebind.program.lengths import buckets_of, distinct, input_specs, resized, sizes_of, tried_sizes
from latebind.program.operators import KEPT_WHOLE, resolve
from latebind.program.simplify import simplify
from latebind.program.symbols import Fixing, export_for_all_sizes, layers_of_any_length, torch_dim

Foreign = Any  # an object of torch or the module, of any type
Tensors = Mapping[str, Tensor] | Sequence[Tensor]  # inputs, by name or in order
FURTHER_SIZES = 6  # besides both ends, at which the module is run before anything is compared
EXPORT_BATCH = 3  # torch.export treats 0 and 1 specially, so examples have another size

BRANCHING = (
    "the control flow depends on a tensor's values: express it with torch.where, or make two modules of it and branch "
    "between them in a query (docs/query-files.md)"
)
PACKED = (
    "packed sequences cannot be exported: give padded rows to the LSTM or GRU as they are, and select what belongs to "
    "the length of each row from its outputs, with torch.where or gather"
)
RANGED = "the code takes another branch, or raises, at other sizes: declare a range without them, or compute all alike"
HINTS = {
    "generated guard": RANGED,
    "data-dependent": BRANCHING,
    "Could not guard": BRANCHING,
    "Constraints violated": FIXED,
    "specialized": FIXED,
}
ONE_ROW = "dimension 0 of examples counts rows, so give a single row as x[None]"
QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")


class Exported(NamedTuple):
    """A graph and the weights that it reads, by name."""

    graph: Graph
    weights: dict[str, Tensor]


class Names(TypedDict, total=False):
    """Names of inputs and outputs for clients; `outputs` are those of a dictionary to keep (None: all).

    `dims` are the named dimensions, and `sizes` those of a row of some inputs, by name, in terms of these.
    """

    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    outputs: Sequence[str] | None
    dims: Sequence[Dim]
    sizes: Mapping[str, Sequence[Size]] | None


def export(module: nn.Module, inputs: Tensors, **names: Unpack[Names]) -> Exported:
    """Return the inference graph of `module`; dimension 0 of every input and output is the batch, of any size.

    `inputs` are examples. Raises `ExportError` with the reason and what to change in the module.
    """
    return Exported(*simplify(*trace(module, inputs, **names)))


def trace(module: nn.Module, inputs: Tensors, **given: Unpack[Names]) -> Exported:
    """Export without simplifying: with other weights, the module gives another graph of the same form."""
    if (kind := made_of_another(module)) is not None:
        raise ExportError(f"the module is {kind}: build the nn.Module that it was made of")
    names, tensors = input_names(inputs, given.get("input_names")), tensors_of(inputs)
    dims, rows = tuple(given.get("dims", ())), dict(zip(names, tensors, strict=True))
    types = {name: (dtype_name(tensor.dtype, name), tensor.shape[1:]) for name, tensor in rows.items()}
    specs = input_specs(types, dims, given.get("sizes"))
    sizes = distinct(dims, sizes_of(specs, dims, {name: shape for name, (_, shape) in types.items()}), EXPORT_BATCH)
    tensors = resized(tuple(tensor.detach() for tensor in tensors), specs, sizes)
    tensors = tuple(tensor[torch.arange(EXPORT_BATCH) % tensor.shape[0]] for tensor in tensors)
    with _for_inference(module):
        called = _Flat(module, _keywords(module, inputs), given.get("outputs"))
        found = _output_names(_try_run(called, tensors, sizes), given.get("output_names"))
        program = _try_export(called, tensors, specs, dims)
        for each in tried_sizes(dims, FURTHER_SIZES) if dims else ():
            _try_run(called, resized(tensors, specs, each), each)
    return Exported(*Reader(program, specs, found, dims).read())


def export_any_size(module: nn.Module, inputs: Tensors, **names: Unpack[Names]) -> tuple[Exported, str]:
    """Return what `export` does and "", or, if the module's code fixes sizes, a graph for each of a few and why.

    The reason says where in the code. Weights that are equal in several graphs are stored once.
    """
    try:
        return export(module, inputs, **names), ""
    except SizeFixed as error:
        try:
            return _export_buckets(module, inputs, names), str(error)
        except ExportError as other:  # it cannot be served at these sizes either: the first reason says where
            raise error from other
        except ConfigError as other:
            raise ExportError(f"{error}. With a graph for each size: {other}") from other


def _export_buckets(module: nn.Module, inputs: Tensors, names: Names) -> Exported:
    dims = names["dims"]
    fixed: Names = {**names, "dims": (), "sizes": None}
    named, tensors = input_names(inputs, names.get("input_names")), tensors_of(inputs)
    given = {name: (dtype_name(one.dtype, name), one.shape[1:]) for name, one in zip(named, tensors, strict=True)}
    specs = input_specs(given, dims, names["sizes"])
    found: dict[str, Exported] = {}
    for sizes in buckets_of(dims):
        rows = resized(tensors, specs, sizes)
        some: Tensors = dict(zip(inputs, rows, strict=True)) if isinstance(inputs, Mapping) else rows
        found["x".join(map(str, sizes.values()))] = export(module, some, **fixed)
    graphs, weights = merged(found)
    buckets = tuple(graphs.values())
    graph = Graph(specs, (), buckets[-1].outputs, tuple(dims), buckets)
    graph.output_specs()  # raises where they do not follow from the sizes
    return Exported(graph, weights)


def merged(exported: Mapping[str, Exported]) -> tuple[dict[str, Graph], dict[str, Tensor]]:
    """Return graphs over one set of weights: those that are equal in several graphs are stored once.

    Weights are equal if they have one name, or share memory under several names.
    """
    graphs: dict[str, Graph] = {}
    weights: dict[str, Tensor] = {}
    lies: dict[tuple[Any, ...], str] = {}
    for part, one in exported.items():
        names: dict[str, str] = {}
        for name, tensor in one.weights.items():
            there = weights.get(name)
            same = there is None or (there.shape == tensor.shape and torch.equal(there, tensor))
            own = name if same else f"{part}.{name}"
            place = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
            names[name] = lies.setdefault(place, own) if tensor.numel() else own
            weights[names[name]] = tensor
        graphs[part] = one.graph.map_arguments(
            lambda argument, names=names: Weight(names[argument.name]) if isinstance(argument, Weight) else argument  # type: ignore[misc]
        )
    return graphs, weights


def made_of_another(module: object) -> str | None:
    """Return what `module` is, if it was made of a module that should be built instead; else None."""
    if isinstance(module, ExportedProgram) or (isinstance(module, GraphModule) and "eval" in vars(module)):
        return "a program of torch.export, in which the size of the batch may be fixed"
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript, which is compiled already"
    if isinstance(module, nn.Module):
        for part in module.modules():
            kind = type(part)
            if kind.__module__.startswith(QUANTISED):
                return (
                    f"quantised ({kind.__module__}.{kind.__qualname__}): its weights are packed for PyTorch's own "
                    "kernels, and quantize_dynamic takes one scale for all rows of a batch"
                )
    return None


def runner(
    module: nn.Module, examples: Tensors, *, outputs: Sequence[str] | None = None
) -> Callable[..., tuple[Tensor, ...]]:
    """Return a call of the module itself in inference mode, which takes tensors in the order of the examples.

    It is the reference for all comparisons. `outputs` names those of a dictionary to return (None: all).
    """
    called = _Flat(module, _keywords(module, examples), outputs)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        with _for_inference(module), torch.inference_mode():
            return called.forward(*tensors)

    return run


def run_module(module: nn.Module, inputs: Tensors, *, outputs: Sequence[str] | None = None) -> tuple[Tensor, ...]:
    """Return the outputs of the module itself in inference mode, in order; for `outputs` see `runner`."""
    return runner(module, inputs, outputs=outputs)(*tensors_of(inputs))


@contextmanager
def _for_inference(module: nn.Module) -> Iterator[None]:
    was_training, was_fast = module.training, torch.backends.mha.get_fastpath_enabled()
    module.eval()
    # The fast path of nn.TransformerEncoder leaves masked words out, with nested tensors: it raises if all are masked,
    # and returns 0 for those that are. The usual path is exported.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)
        module.train(was_training)


class _Flat(nn.Module):
    """Wraps the module to take tensors in order and to return a flat tuple."""

    def __init__(self, module: nn.Module, keywords: tuple[str, ...] | None, wanted: Sequence[str] | None) -> None:
        super().__init__()
        self.module, self._keywords, self._wanted = module, keywords, wanted

    def call(self, *tensors: Tensor) -> Foreign:
        """Return what the module returns, or only the wanted entries of its dictionary.

        It gets copies, which it may write to: the rows are used elsewhere too.
        """
        tensors = tuple(tensor.clone() for tensor in tensors)
        named = dict(zip(self._keywords or (), tensors, strict=False))
        found = self.module(**named) if named else self.module(*tensors)
        if self._wanted is None:
            return found
        there = tuple(found) if isinstance(found, Mapping) else ()
        unknown = [name for name in self._wanted if name not in there]
        if unknown or not self._wanted:
            has = f"of {', '.join(map(str, there))}" if there else "no names: it returns no dictionary, so name none"
            raise ExportError(f"the module has no output {(*unknown, '')[0]!r}, its outputs have {has}")
        return {name: found[name] for name in self._wanted}

    def forward(self, *tensors: Tensor) -> tuple[Any, ...]:
        """Return the module's outputs in a tuple."""
        return tuple(_named(self.call(*tensors)).values())


def _named(found: Foreign) -> dict[str, Foreign]:
    """Return what a module returns by name."""
    if isinstance(found, Mapping):
        return {str(name): tensor for name, tensor in found.items()}
    if isinstance(found, tuple | list):
        return {f"output_{place}": tensor for place, tensor in enumerate(found)}
    return {"output": found}


def _keywords(module: nn.Module, inputs: Tensors) -> tuple[str, ...] | None:
    """Return the names to call the module with; None to pass inputs in order, when names are only for clients."""
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
        f"the module's forward({takes}) has no {', '.join(sorted(unknown))}: name all inputs as it does, or none of "
        "them, and they are passed in order"
    )


def tensors_of(inputs: Tensors) -> tuple[Tensor, ...]:
    """Return inputs, which may have names, in order."""
    return tuple(inputs.values()) if isinstance(inputs, Mapping) else tuple(inputs)


def in_order(data: Tensors, examples: Tensors) -> tuple[Tensor, ...]:
    """Return rows of data in the order and the dtypes of the examples, by name where both have the same names.

    Raises `ConfigError` for rows of another shape.
    """
    rows, wanted = tensors_of(data), tensors_of(examples)
    if isinstance(data, Mapping) and isinstance(examples, Mapping) and set(data) == set(examples):
        rows = tuple(data[name] for name in examples)
    if [tensor.shape[1:] for tensor in rows] != [tensor.shape[1:] for tensor in wanted]:
        shapes = [[list(tensor.shape[1:]) for tensor in tensors] for tensors in (rows, wanted)]
        raise ConfigError(
            f"the data has rows of shapes {shapes[0]}, and the examples of {shapes[1]}: give both the same shapes"
        )
    return tuple(tensor.to(one.dtype) for tensor, one in zip(rows, wanted, strict=True))


def input_names(inputs: Tensors, given: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the names of example inputs for clients. Raises `ExportError` if they are no example inputs."""
    tensors = tensors_of(inputs)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.shape[:1] in {(), (0,)} or tensor.device.type != "cpu":
            what = (
                f"of shape {list(tensor.shape)} on {tensor.device}" if isinstance(tensor, Tensor) else f"{tensor!r:.80}"
            )
            raise ExportError(
                "every example input must be a tensor on the CPU with a batch dimension of 1 or more, and one is "
                f"{what}: torch.as_tensor makes one of an array or a list; {ONE_ROW}"
            )
        dtype_name(tensor.dtype, "an input")
    default = tuple(inputs) if isinstance(inputs, Mapping) else tuple(f"input_{i}" for i in range(len(tensors)))
    names = tuple(given) if given is not None else (("input",) if default == ("input_0",) else default)
    if not names or len(names) != len(tensors) or len(set(names)) != len(names):
        raise ExportError(f"{len(tensors)} example inputs need as many different names, not {list(names)}")
    return names


def _try_run(called: _Flat, rows: tuple[Tensor, ...], sizes: Mapping[str, int]) -> Foreign:
    try:
        with torch.no_grad():
            found = called.call(*rows)
    except ExportError:  # raised by `_Flat`
        raise
    except Exception as error:  # the module is foreign code: whatever it raises is the reason to report
        message = f"the module raised on {EXPORT_BATCH} rows of the example inputs"
        if sizes:
            own = ", ".join([f"{name}={size}" for name, size in sizes.items()])
            message += f" with {own}{_place(extract_tb(error.__traceback__))}: {error!r}. It has to take every size"
            raise ExportError(
                f"{message} that is declared: write x.shape[1] where the code has a number, declare the range that it "
                "takes, or give examples whose numbers are valid in rows of any size, such as 0 for a position"
            ) from error
        raise ExportError(
            f"{message}: {error!r}. Give rows as its forward takes them, and keyword-only arguments by name; {ONE_ROW}"
        ) from error
    if isinstance(found, PackedSequence):
        raise ExportError(f"the module returns a PackedSequence: {PACKED}")
    return found


def _output_names(found: Foreign, given: Sequence[str] | None) -> tuple[str, ...]:
    outputs = _named(found)
    for name, tensor in outputs.items():
        if not isinstance(tensor, Tensor):
            raise ExportError(f"{name} of the module is a {type(tensor).__name__}: {_instead(found)}")
        if tensor.dim() == 0 or tensor.shape[0] != EXPORT_BATCH:
            raise ExportError(
                f"{name} of the module has shape {tuple(tensor.shape)} for {EXPORT_BATCH} rows of input: "
                f"return one row for each row of input; {ONE_ROW}"
            )
        dtype_name(tensor.dtype, name)
    names = tuple(given if given is not None else outputs)
    if not outputs or len(names) != len(outputs) or len(set(names)) != len(names):
        raise ExportError(f"{len(outputs)} outputs need as many different names, not {list(names)}")
    return names


def _instead(found: Foreign) -> str:
    """Return what to do about an output that is not a tensor."""
    if not isinstance(found, Mapping):
        return "return tensors, a tuple or a dict"
    good = [str(name) for name, tensor in found.items() if isinstance(tensor, Tensor)]
    if not good:
        return "return tensors, a tuple or a dict of them"
    return f"name the outputs to serve (--output {good[0]}, or outputs=[{good[0]!r}]), of {', '.join(good)}"


def _try_export(
    called: _Flat, rows: tuple[Tensor, ...], specs: Sequence[TensorSpec], dims: Sequence[Dim]
) -> ExportedProgram:
    batch = TorchDim("batch", min=1, max=1 << 20)
    named = {dim.name: torch_dim(dim) for dim in dims}
    shapes = tuple(
        {0: batch, **{axis: named[size] for axis, size in enumerate(spec.sizes, 1) if isinstance(size, str)}}
        for spec in specs
    )
    fixing = Fixing()
    try:
        with torch.no_grad(), warnings.catch_warnings(), _quiet(), fixing, layers_of_any_length():
            warnings.simplefilter("ignore", FutureWarning)  # torch's warnings about itself
            warnings.filterwarnings(
                "ignore", "The tensor attributes .* were assigned during export"
            )  # caused by nn.LSTM
            program = export_for_all_sizes(called, rows, (shapes,))
            decomposed: ExportedProgram = program.run_decompositions(dict(_decompositions()))
            return decomposed
    except Exception as error:  # as above: export runs the module and raises dozens of kinds of error
        frames = extract_tb(error.__traceback__)
        # An LSTM or GRU of torch fails on packed sequences only; the error names neither.
        packs = any(frame.filename.endswith("nn/modules/rnn.py") for frame in frames)
        reason = PACKED if packs else _reason(str(error))
        place = _place(frames) or _place(fixing.frames)
        if dims and FIXED in reason:
            raise SizeFixed(f"the module cannot be exported for all sizes{place}: {reason}") from error
        raise ExportError(f"the module cannot be exported{place}: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what torch logs and prints when an export fails: the error gives it in one line."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def _place(frames: Sequence[FrameSummary]) -> str:
    """Return the line of the module that torch had reached, if known."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
    found = [frame for frame in frames if not frame.filename.startswith(ours)]
    return f" ({found[-1].filename}, line {found[-1].lineno}: {found[-1].line})" if found else ""


@cache
def _decompositions() -> Mapping[Foreign, Foreign]:
    """Return torch's decomposition of operators, cached: making the table takes a third of an export."""
    table: Foreign = CustomDecompTable()  # type: ignore[no-untyped-call]
    for name in KEPT_WHOLE:
        table.pop(resolve(name), None)
    found: dict[Foreign, Foreign] = table.materialize()
    return found


def _reason(message: str) -> str:
    hint = next((hint for sign, hint in HINTS.items() if sign in message), "rewrite this part with tensor operations")
    first, _, rest = message.strip().partition("\n")
    first = first.partition(" For more information")[0][:300].rstrip(". ")
    if first.startswith("Constraints violated"):  # which ones, the next line says
        first = rest.partition("\n")[0].partition(" If you're using")[0].lstrip(" -")
        for name, size in re.findall(r"(\w+) = (L\['tensors'\]\[\d+\]\.size\(\)\[\d+\])", first):
            first = first.replace(f"{name} = {size}", name).replace(size, name)
        first = first[:300].rstrip(". ")
    return f"{first}. What to change: {hint}"
