"""Measures what cutting costs: the chain of stages against the same backend's uncut model, paired. Random weights."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from latebind.bench.statistics import median_interval
from latebind.cli.console import Rows
from latebind.cli.sources import load_function
from latebind.program.backends import compile_graph
from latebind.program.build import RUNS, Candidate, StageLimits, Tuner, chain_over_uncut
from latebind.program.cut import cut_points
from latebind.program.export import export
from latebind.program.measure import median_seconds, with_batch

NETWORKS = {"resnet18": "examples.cifar10.resnet18:resnet18", "resnet56": "examples.cifar10.model:resnet56"}
BATCHES = (1, 16)


def run(
    networks: Sequence[str],
    backends: Sequence[str],
    *,
    minima: Sequence[float],
    max_overhead: float | None,
    runs: int,
) -> Rows:
    """Return a row for each network, backend, least seconds of a stage, and batch of 1 and 16; both sides alternate."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: Rows = []
    for network in networks:
        module, images = make_network(network), (torch.randn(max(BATCHES), 3, 32, 32),)
        tuner = Tuner(export(module, images), images, max(BATCHES), 1)
        for backend in backends:
            uncut = compile_graph(tuner.exported.graph, tuner.exported.weights, backend=backend, threads=1)
            seconds = {batch: median_seconds(partial(uncut, *with_batch(images, batch))) for batch in BATCHES}
            candidate = Candidate(backend, uncut, seconds=seconds[1])
            for minimum in minima:
                chain = tuner.cut(candidate, StageLimits(minimum, max_overhead))
                for batch in BATCHES:
                    inputs, times = with_batch(tuner.rows, batch), max(RUNS, runs // batch)
                    ratios = chain_over_uncut(chain.stages, uncut, inputs, times)
                    rows.append(
                        {
                            "network": network,
                            "backend": backend,
                            "cut points": len(cut_points(tuner.exported.graph)),
                            "min stage ms": f"{minimum * 1e3:g}",
                            "stages": len(chain.stages),
                            "batch": batch,
                            "uncut ms": f"{seconds[batch] * 1e3:.2f}",
                            "chain / uncut": str(median_interval(ratios, seed=batch)),
                        }
                    )
    return rows


def make_network(name: str) -> nn.Module:
    """Return one of the example networks with random weights, in inference mode."""
    network: nn.Module = load_function(NETWORKS[name])()
    return network.eval()
