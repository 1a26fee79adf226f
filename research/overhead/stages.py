"""Measures what cutting costs: the chain of stages against the same backend's uncut model, paired. Random weights."""

from collections.abc import Sequence
from statistics import median

import torch
from torch import nn

from latebind.bench.statistics import median_interval
from latebind.cli.console import Rows
from latebind.cli.sources import load_function
from latebind.program.agreement import DEFAULT_TOLERANCE
from latebind.program.backends import BACKENDS
from latebind.program.build import RUNS, StageLimits, Tuner, chain_and_uncut
from latebind.program.cut import cut_points
from latebind.program.export import export, run_module
from latebind.program.measure import with_batch

NETWORKS = {"resnet18": "examples.cifar10.resnet18:resnet18", "resnet56": "examples.cifar10.model:resnet56"}
BATCHES = (1, 16)
BF16_TOLERANCE = 2e-2


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
        exported, points = export(module, images), run_module(module, images)
        for backend in backends:
            tolerance = DEFAULT_TOLERANCE if BACKENDS[backend].exact else BF16_TOLERANCE
            tuner = Tuner(exported, images, points, tolerance, max(BATCHES), 1)
            candidate = tuner.time_candidates([tuner.try_backend(backend)])[0]
            if candidate.uncut is None:
                continue
            for minimum in minima:
                chain = tuner.cut(candidate, StageLimits(minimum, max_overhead))
                for batch in BATCHES:
                    inputs, times = with_batch(tuner.rows, batch), max(RUNS, runs // batch)
                    seconds = chain_and_uncut(chain.stages, candidate.uncut, inputs, times).seconds
                    ratios = [a / b for a, b in zip(seconds["chain"], seconds["uncut"], strict=True)]
                    rows.append(
                        {
                            "network": network,
                            "backend": backend,
                            "cut points": len(cut_points(exported.graph)),
                            "min stage ms": f"{minimum * 1e3:g}",
                            "stages": len(chain.stages),
                            "batch": batch,
                            "uncut ms": f"{median(seconds['uncut']) * 1e3:.2f}",
                            "chain / uncut": str(median_interval(ratios, seed=batch)),
                        }
                    )
    return rows


def make_network(name: str) -> nn.Module:
    """Return one of the example networks with random weights, in inference mode."""
    network: nn.Module = load_function(NETWORKS[name])()
    return network.eval()
