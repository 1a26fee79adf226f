"""The network itself in eight bits, as a lookup before it that answers every request that quicker lookups miss.

It needs no training. Its answers are calibrated and watched like those of any other lookup, so it is used only if they
equal the base model's often enough. With exits off, every request gets the base model's own answer.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from latebind.learned.activations import batches
from latebind.learned.compiled import quantise
from latebind.learned.explore import ExplorationResult, Explorer, TrainedLookup, all_cores, first_row
from latebind.learned.head import Head
from latebind.learned.latency import latency_aside, latency_in_place
from latebind.learned.lookup import LookupFunction, compile_lookup_files
from latebind.learned.networks import BYTES
from latebind.learned.plan import Candidate
from latebind.learned.samples import Samples
from latebind.learned.stored import FEATURES, LookupFiles, Rows
from latebind.program.graph import Graph, Value, Weight
from latebind.program.stored import read_graph, read_model
from latebind.repository.directory import WEIGHTS, ModelDirectory
from latebind.repository.tensors import read_tensors

LINEAR = "aten.linear.default"
RANGE_ROWS = 256  # rows that set the quantisation ranges


def eight_bit_lookup(
    directory: ModelDirectory, explorer: Explorer, fit: Samples, found: ExplorationResult
) -> tuple[list[TrainedLookup], str]:
    """Return the network of `directory` in eight bits as a lookup before it, or nothing and why it was left out.

    It takes an empty first stage, a backend that multiplies bytes, convolutions, and a linear layer at the end. Whether
    it pays on this processor is not asked here: it is measured, and composition decides by what it takes. `found` has
    the other lookups: this one keeps features of the same unseen rows as they do.
    """
    program = explorer.program
    if not program.entry:
        return [], "no lookup stands before the network"
    if not program.backend.startswith("openvino"):
        return [], f"the backend {program.backend} computes in floating point; openvino multiplies bytes"
    assert isinstance(fit.inputs, tuple)
    graph = read_graph(directory, read_model(directory))
    files = to_eight_bit_lookup(graph, read_tensors(directory, WEIGHTS), fit.inputs[0][found.unseen[:RANGE_ROWS]])
    if files is None:
        return [], "it takes convolutions and a linear layer at the end"
    function = compile_lookup_files(files, backend=program.backend, threads=program.threads)
    place = (program, first_row(fit), 0, function)
    curve = latency_in_place(*place)
    beside = latency_aside(*place) if explorer.beside else None
    plan = Candidate(0, BYTES, curve.at(1))
    known = found.trained[0].lessons
    assert known is not None
    with all_cores(program.threads):
        features = _features(function, fit.take(found.unseen))
    rows = Rows({plan.name: features}, known.answers, known.classes)
    return [TrainedLookup(plan, files, function, curve, rows, beside)], ""


def to_eight_bit_lookup(graph: Graph, weights: Mapping[str, Tensor], rows: Tensor) -> LookupFiles | None:
    """Return a network with one input that ends in a linear layer as a lookup, its convolutions in eight bits.

    `rows` `(N, ...)` set the quantisation ranges. Returns None if it ends otherwise or has no convolution.
    """
    last = graph.nodes[-1]
    match last.args:
        case (Value(features), Weight(weight), *bias) if last.op == LINEAR and len(graph.outputs) == 1:
            rest = Graph(graph.inputs, graph.nodes[:-1], ((FEATURES, features),))
        case _:
            return None
    coarse, found = quantise(rest, weights, rows)
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
    return LookupFiles(coarse, {name: found[name] for name in coarse.weights()}, Head.of(answer).always_sure())


def _features(function: LookupFunction, rows: Samples) -> Tensor:
    return torch.cat([function.features(batch[0])[0].clone() for _, batch in batches(rows)]).bfloat16()
