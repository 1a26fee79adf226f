"""Measures what cutting costs: the chain of stages against the same backend's uncut model, paired. Random weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from latebind.bench.statistics import Interval, median_interval
from latebind.cli.sources import load_function
from latebind.program.agreement import DEFAULT_TOLERANCE
from latebind.program.backends import BACKENDS
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS, RUNS, Candidate, StageLimits, Tuner, chain_and_uncut
from latebind.program.cut import cut_points, fusion_safe_points
from latebind.program.export import Exported, export, run_module
from latebind.program.measure import with_batch

NETWORKS = {"resnet18": "examples.cifar10.resnet18:resnet18", "resnet56": "examples.cifar10.model:resnet56"}
BATCHES = (1, 16)
BF16_TOLERANCE = 2e-2


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: `ratio` is chain over uncut time, `uncut` is in seconds."""

    network: str
    backend: str
    min_stage_seconds: float
    max_overhead: float | None
    cut_points: int
    fusion_safe_points: int
    stages: int
    batch: int
    uncut: float
    ratio: Interval


def run(
    networks: Sequence[str] = tuple(NETWORKS),
    backends: Sequence[str] = ("eager", "openvino"),
    *,
    minima: Sequence[float] = (MIN_STAGE_SECONDS,),
    max_overhead: float | None = MAX_OVERHEAD,
    runs: int = 100,
    threads: int = 1,
) -> list[Row]:
    """Return one row per network, backend, minimum and batch size of 1 and 16."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows = []
    for network in networks:
        module = make_network(network)
        inputs = (torch.randn(max(BATCHES), 3, 32, 32),)
        exported = export(module, inputs)
        for backend in backends:
            exact = BACKENDS[backend].exact
            tuner = Tuner(
                exported,
                inputs,
                run_module(module, inputs),
                DEFAULT_TOLERANCE if exact else BF16_TOLERANCE,
                max(BATCHES),
                threads,
            )
            candidate = tuner.time_candidates([tuner.try_backend(backend)])[0]
            if candidate.uncut is not None:
                for minimum in minima:
                    rows += _compare(network, tuner, candidate, minimum=minimum, max_overhead=max_overhead, runs=runs)
    return rows


def make_network(name: str) -> nn.Module:
    """Return one of the example networks with random weights, in inference mode."""
    network: nn.Module = load_function(NETWORKS[name])()
    return network.eval()


def _compare(
    network: str, tuner: Tuner, candidate: Candidate, *, minimum: float, max_overhead: float | None, runs: int
) -> list[Row]:
    chain = tuner.cut(candidate, StageLimits(minimum, max_overhead))
    all_points, good = _points(tuner.exported)
    rows = []
    for batch in BATCHES:
        inputs = with_batch(tuner.rows, batch)
        assert candidate.uncut is not None
        seconds = chain_and_uncut(chain.stages, candidate.uncut, inputs, max(RUNS, runs // batch)).seconds
        ratios = [a / b for a, b in zip(seconds["chain"], seconds["uncut"], strict=True)]
        uncut, ratio = median(seconds["uncut"]), median_interval(ratios, seed=batch)
        stages = len(chain.stages)
        rows.append(
            Row(network, candidate.backend, minimum, max_overhead, all_points, good, stages, batch, uncut, ratio)
        )
    return rows


def _points(exported: Exported) -> tuple[int, int]:
    points = cut_points(exported.graph)
    return len(points), len(fusion_safe_points(exported.graph, points))
