"""A network with half of the blocks, which learns to answer as the whole one: what people serve in its place.

Blocks are found in the graph of a model directory: pieces between places where it can be cut, in a row that repeats
itself with weights of the same shapes. The first and the last stay, with others evenly between them, and all of the
weights that are left learn the whole network's logits on rows to fit (Hinton et al. 2015; which blocks to begin with is
Sanh et al. 2019). It promises nothing by itself; before the whole network, in a cascade, it gets the same promise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from latebind.bench.rounds import Progress
from latebind.learned.activations import batches
from latebind.learned.samples import Samples
from latebind.learned.train import distillation_loss
from latebind.program.backends import StageFunction, compile_graph
from latebind.program.cut import cut_points, find_carries, split, with_carries
from latebind.program.eager import rebuild
from latebind.program.graph import Graph, Node
from latebind.program.metadata import read_model
from latebind.program.padding import turned
from latebind.program.stored import read_graph
from latebind.repository.directory import WEIGHTS
from latebind.repository.tensors import read_tensors
from research.gati.models import CachedModel

BATCH, RATE, PASSES = 32, 2e-4, 4
FEWEST_STEPS = 500  # over few rows there are more passes

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a graph: `before` the first and behind each is a place to cut, by the name of the value there."""

    before: str
    ends: tuple[str, ...]

    def left_out(self) -> list[tuple[str, str]]:
        """Return the stretches that half of the blocks leave out, each from one place to another."""
        kept = sorted({round(place) for place in np.linspace(0, len(self.ends) - 1, ceil(len(self.ends) / 2))})
        places = (self.before, *self.ends)
        return [(places[one + 1], places[after]) for one, after in pairwise(kept) if after > one + 1]


def find_blocks(graph: Graph, weights: Weights) -> Blocks | None:
    """Return the blocks of a graph that can be cut before each of them; None where there are fewer than three."""
    points = cut_points(graph)
    kinds = [sorted(tuple(weights[name].shape) for name in piece.weights()) for piece in split(graph, points)]
    names = [graph.nodes[point].name for point in points] + [""]  # the last block is never left out
    found, best = None, (0, 0, 0)
    for period in range(1, len(kinds) // 3 + 1):
        for start in range(1, len(kinds) - 3 * period + 1):  # before the first one there has to be a cut
            one, count = kinds[start : start + period], 1
            while kinds[start + count * period : start + (count + 1) * period] == one:
                count += 1
            # Of equally many pieces the shortest blocks, and of these the last: a norm before all blocks is none's.
            rank = (count * period, -period, start)
            if count >= 3 and any(one) and rank > best:
                ends = [names[start + (block + 1) * period - 1] for block in range(count)]
                found, best = Blocks(names[start - 1], tuple(ends)), rank
    return found


def without(graph: Graph, stretches: Sequence[tuple[str, str]]) -> Graph:
    """Return the graph without what it computes between these places to cut, whose values must be of one type."""
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    pieces = split(graph, sorted(places[name] for stretch in stretches for name in stretch))
    nodes, last = list[Node](), ""
    for number, piece in enumerate(pieces[::2]):  # every other piece is left out
        names = {node.name: f"{node.name}.{number}" for node in piece.nodes}
        if number:
            names[piece.inputs[0].name] = last
        nodes += [replace(node.rename_values(names), name=names[node.name]) for node in piece.nodes]
        last = names[piece.outputs[0][1]]
    outputs = tuple([(name, names[value]) for name, value in pieces[-1].outputs])
    return replace(graph, nodes=tuple(nodes), outputs=outputs).needed()


def fewer_blocks(graph: Graph, weights: Weights) -> tuple[Graph, str] | None:
    """Return a graph with half of the blocks, and what it is called; None where no blocks are found."""
    there = {node.name for node in graph.nodes}  # the graph may be cut already
    carries = turned(graph, weights, [carry for carry in find_carries(graph) if carry.name not in there])
    blocks = find_blocks(with_carries(graph, carries), weights)
    if blocks is None:
        return None
    stretches = blocks.left_out()
    names = {name for stretch in stretches for name in stretch}
    cut = with_carries(graph, [carry for carry in carries if carry.name in names])
    types = cut.types()
    if any(types[first] != types[end] for first, end in stretches):
        return None
    return without(cut, stretches), f"{ceil(len(blocks.ends) / 2)} of {len(blocks.ends)} blocks"


def distil(
    base: CachedModel, fit: Samples, *, seed: int, on_progress: Progress
) -> tuple[str, StageFunction, int] | None:
    """Return a network of half of the blocks that has learned the answers of `base`: its name, itself, its bytes.

    None where no blocks are found.
    """
    weights = read_tensors(base.directory, WEIGHTS)
    found = fewer_blocks(read_graph(base.directory, read_model(base.directory)), weights)
    if found is None:
        return None
    graph, name = found
    taught = {one: weights[one].clone() for one in graph.weights()}
    learn(graph, taught, base.uncut, fit, seed=seed, on_progress=on_progress)
    stage = compile_graph(graph, taught, backend=base.program.backend, threads=1)
    return f"{name}, distilled", stage, sum(tensor.nbytes for tensor in taught.values())


def learn(
    graph: Graph, weights: Weights, teacher: StageFunction, fit: Samples, *, seed: int, on_progress: Progress
) -> None:
    """Teach the weights of a graph, in place, to answer rows to `fit` as the `teacher` does."""
    answers, alike = torch.empty(0), list[Tensor]()
    for places, batch in batches(fit):
        rows = places if isinstance(places, Tensor) else torch.arange(places.start, places.stop)
        said = teacher(*batch)[0].float()
        answers = said.new_empty(len(fit), said.shape[1]) if not len(answers) else answers
        answers[rows] = said
        alike.append(rows)
    generator = torch.Generator().manual_seed(seed)
    module = rebuild(graph, weights)
    parameters = list[nn.Parameter]()
    for place, name in enumerate(graph.weights()):
        if weights[name].is_floating_point():
            delattr(module, f"w{place}")
            parameters.append(nn.Parameter(weights[name]))  # which it shares
            module.register_parameter(f"w{place}", parameters[-1])
    each = sum(-(-len(rows) // BATCH) for rows in alike)
    passes = max(PASSES, -(-FEWEST_STEPS // each))
    optimizer = torch.optim.AdamW(parameters, lr=RATE)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=passes * each)
    for number in range(passes):
        drawn = [
            part for rows in alike for part in torch.split(rows[torch.randperm(len(rows), generator=generator)], BATCH)
        ]
        for place, which in enumerate(torch.randperm(len(drawn), generator=generator).tolist()):
            rows = drawn[which]
            loss = distillation_loss(module(*fit.batch(rows))[0], answers[rows], None, share=1.0)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            slower.step()
            on_progress("teaching a network of fewer blocks", (number + place / len(drawn)) / passes)
