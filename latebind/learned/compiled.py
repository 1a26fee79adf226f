"""Prepares a trained network to run after a stage: exports it, quantizes it where that is faster, compiles it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median

import torch
from torch import Tensor, nn

from latebind.learned.head import Head
from latebind.learned.lookup import LookupFunction, compile_lookup_files
from latebind.learned.networks import Predictor, Selector, make_predictor
from latebind.learned.stored import FEATURES, LookupFiles
from latebind.program.eager import rebuild
from latebind.program.export import Exported, trace
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight
from latebind.program.measure import interleaved
from latebind.program.openvino import GROUP
from latebind.program.program import Program
from latebind.program.simplify import simplify

RUNS = 25
FORMS = 64  # graphs of predictors that are cached, by kind and shape
CONVOLUTION, LINEAR = "aten.convolution.default", "aten.linear.default"
PER_TENSOR = "aten.fake_quantize_per_tensor_affine_cachemask.default"  # returns the numbers and which were not clipped
PER_CHANNEL = "aten.fake_quantize_per_channel_affine_cachemask.default"

FEWEST_CHANNELS = 8  # input channels of a convolution to quantise: colours stay exact and cost little
LARGEST_WEIGHT = 127


@dataclass(frozen=True, slots=True)
class Compiled:
    """A lookup as data, as a function, and the median seconds of a call at batch 1, in a loop of its own."""

    files: LookupFiles
    function: LookupFunction
    seconds: float


def compile_lookup(predictor: Predictor, selector: Selector, rows: Tensor, program: Program) -> Compiled:
    """Return a trained lookup in its fastest form for the backend of `program`.

    `rows` `(N, ...) float32` are activations like those that it will see: they set the quantization ranges.
    """
    one = rows[:1].contiguous()
    exported = export_features(predictor, tuple(one.shape[1:]))
    plain = LookupFiles(exported.graph, exported.weights, Head.of(predictor.answer, selector))
    forms = {"plain": (plain, _compile(plain, program))}
    if program.backend.startswith("openvino"):  # other backends compute the rounded numbers in float32
        quantised = LookupFiles(*quantise(plain.graph, plain.weights, rows), plain.head)
        if quantised.graph != plain.graph:
            forms["bytes"] = (quantised, _compile(quantised, program))
    rounds = interleaved({name: partial(function, one) for name, (_, function) in forms.items()}, RUNS)
    fastest = min(forms, key=lambda name: median(rounds[name]))
    return Compiled(*forms[fastest], median(rounds[fastest]))


def export_features(predictor: Predictor, shape: tuple[int, ...]) -> Exported:
    """Return the graph and weights that compute a predictor's features from activations `(B, *shape)`.

    Predictors of a kind differ only in their weights, so only the first is traced, which takes a second.
    """
    form = _form(predictor.kind, shape)
    own = {name: tensor.detach().contiguous() for name, tensor in predictor.features.state_dict().items()}
    return Exported(*simplify(form.graph, form.weights | own))


@lru_cache(FORMS)
def _form(kind: str, shape: tuple[int, ...]) -> Exported:
    """Return the graph of a kind, with the tensors that are the same in all predictors of that kind."""
    with torch.random.fork_rng():
        features = make_predictor(shape, 1, kind).features.eval()
    features.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as it is trained
    traced = trace(features, (torch.zeros(1, *shape),), output_names=(FEATURES,))
    return Exported(
        traced.graph, {name: traced.weights[name] for name in traced.weights.keys() - features.state_dict()}
    )


def _compile(files: LookupFiles, program: Program) -> LookupFunction:
    return compile_lookup_files(files, backend=program.backend, threads=program.threads)


def quantise(graph: Graph, weights: Mapping[str, Tensor], rows: Tensor) -> tuple[Graph, dict[str, Tensor]]:
    """Return the graph with its convolutions in eight bits, and its weights: a third of the time with VNNI.

    The ranges of sample rows become fake quantization (Jacob et al. 2018, section 3), with one scale for an activation
    and one for each output channel of a weight. Compilers that can turn it into integer arithmetic do; others compute
    the same numbers in float32. Calibration, not the precision of the arithmetic, bounds the errors of a lookup.

    `rows` `(N, ...)` are samples of its one input. A graph without convolutions is returned unchanged.
    """
    ranges = _ranges(graph, weights, rows, {_source(node) for node in graph.nodes if _is_wide(node, weights)})
    nodes: list[Node] = []
    found = dict(weights)
    done: set[Value | Weight] = set()
    for node in graph.nodes:
        if not _is_wide(node, weights):
            nodes.append(node)
            continue
        source, weight = _source(node), node.args[1]
        assert isinstance(weight, Weight)
        if Value(source) not in done:
            nodes += _first(_activation(source, *ranges[source]), f"{source}_bytes", _type_of(graph, source))
            done.add(Value(source))
        if weight not in done:  # a convolution that is called several times has one weight
            made, scales = _weight(weight.name, weights[weight.name])
            found |= scales
            nodes += _first(made, f"{weight.name}_bytes", None)
            done.add(weight)
        args = (Value(f"{source}_bytes"), Value(f"{weight.name}_bytes"), *node.args[2:])
        nodes.append(replace(node, args=args))
    return Graph(graph.inputs, tuple(nodes), graph.outputs), found


def with_small_weights(graph: Graph, weights: Mapping[str, Tensor]) -> tuple[Graph, dict[str, Tensor]]:
    """Return the graph with the weights of linear layers in eight bits, and its weights: a scale for each output.

    The backend `openvino-int8` then multiplies bytes, others the same numbers in float32. Layers that read fewer
    numbers than `GROUP` stay unchanged.
    """
    nodes: list[Node] = []
    found = dict(weights)
    for node in graph.nodes:
        weight = node.args[1] if node.op == LINEAR else None
        if not isinstance(weight, Weight) or weights[weight.name].shape[1] < GROUP:
            nodes.append(node)
            continue
        small, scales, cast, wide = (f"{weight.name}_{part}" for part in ("bytes", "scales", "cast", "wide"))
        if small not in found:  # a layer that is called several times has one weight
            tensor = weights[weight.name]
            found[scales] = (tensor.abs().amax(dim=1, keepdim=True) / LARGEST_WEIGHT).clamp(min=1e-12)
            found[small] = (tensor / found[scales]).round().to(torch.int8)
            kind, to = TensorType("float32", tuple(tensor.shape)), (("dtype", Constant("dtype", "float32")),)
            nodes.append(Node(cast, "aten._to_copy.default", (Weight(small),), to, kind))
            nodes.append(Node(wide, "aten.mul.Tensor", (Value(cast), Weight(scales)), (), kind))
        nodes.append(replace(node, args=(node.args[0], Value(wide), *node.args[2:])))
    return replace(graph, nodes=tuple(nodes)), found


def to_eight_bit_lookup(graph: Graph, weights: Mapping[str, Tensor], rows: Tensor | None = None) -> LookupFiles | None:
    """Return a network with one input that ends in a linear layer as a lookup, in eight bits, without any training.

    Calibration and watch bound its errors as those of any other lookup, and with exits off every request gets the base
    model's own answer. With `rows` `(N, ...)`, which set the ranges of its convolutions, it is always sure and answers
    every request. Otherwise only linear layers are in eight bits, and a request is answered if the odds of its class
    are high enough.

    Returns None if it ends in another operator or has nothing that is computed in eight bits.
    """
    last = graph.nodes[-1]
    match last.args:
        case (Value(features), Weight(weight), *bias) if last.op == LINEAR and len(graph.outputs) == 1:
            rest = Graph(graph.inputs, graph.nodes[:-1], ((FEATURES, features),), graph.dims)
        case _:
            return None
    coarse, found = with_small_weights(rest, weights) if rows is None else quantise(rest, weights, rows)
    if coarse == rest:
        return None
    classes, width = weights[weight].shape
    answer = nn.Linear(width, classes)
    with torch.no_grad():
        answer.weight.copy_(weights[weight])
        answer.bias.zero_()
        for one in bias:
            assert isinstance(one, Weight)
            answer.bias.copy_(weights[one.name])
    head = Head.of(answer)
    head = head if rows is None else head.always_sure()
    return LookupFiles(coarse, {name: found[name] for name in coarse.weights()}, head)


def _is_wide(node: Node, weights: Mapping[str, Tensor]) -> bool:
    if node.op != CONVOLUTION or not isinstance(node.args[0], Value) or not isinstance(node.args[1], Weight):
        return False
    return weights[node.args[1].name].shape[1] >= FEWEST_CHANNELS


def _source(node: Node) -> str:
    source = node.args[0]
    assert isinstance(source, Value)
    return source.name


def _type_of(graph: Graph, name: str) -> TensorType:
    types = {spec.name: TensorType(spec.dtype, (None, *spec.shape)) for spec in graph.inputs}
    types |= {node.name: node.type for node in graph.nodes if node.type is not None}
    return types[name]


def _first(node: Node, name: str, kind: TensorType | None) -> list[Node]:
    return [node, Node(name, "getitem", (Value(node.name), 0), type=kind)]


def _activation(name: str, low: float, high: float) -> Node:
    """Return the node that quantizes an activation; one that is never negative, as after a ReLU, gets all 256 steps."""
    if low >= 0.0:
        scale, least, most = high / 255, 0, 255
    else:
        scale, least, most = max(-low, high) / LARGEST_WEIGHT, -LARGEST_WEIGHT - 1, LARGEST_WEIGHT
    return Node(f"{name}_quantised", PER_TENSOR, (Value(name), max(scale, 1e-12), 0, least, most))


def _weight(name: str, tensor: Tensor) -> tuple[Node, dict[str, Tensor]]:
    scales = (tensor.abs().amax(dim=tuple(range(1, tensor.dim()))) / LARGEST_WEIGHT).clamp(min=1e-12)
    tensors = {f"{name}.scales": scales, f"{name}.zeros": torch.zeros(len(scales), dtype=torch.int32)}
    args: tuple[Argument, ...] = (Weight(name), *map(Weight, tensors), 0, -LARGEST_WEIGHT, LARGEST_WEIGHT)
    return Node(f"{name}_quantised", PER_CHANNEL, args), tensors


def _ranges(
    graph: Graph, weights: Mapping[str, Tensor], rows: Tensor, names: Iterable[str]
) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest number that `rows` lead to in each of the values `names`."""
    watched = replace(graph, outputs=tuple((name, name) for name in sorted(names)))
    if not watched.outputs:
        return {}
    with torch.inference_mode():
        found = rebuild(watched, weights)(rows.contiguous())
    return {name: (float(t.min()), float(t.max())) for (name, _), t in zip(watched.outputs, found, strict=True)}
