"""What cutting costs: the chain of stages against the same backend's uncut model, paired. Random weights will do."""

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import nn

from latebind.bench.statistics import Interval
from latebind.program.backends import BACKENDS
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS
from latebind.program.cut import cut_points, good_points
from latebind.program.export import Exported, export, run_module
from latebind.program.measure import with_batch
from latebind.program.tuning import RUNS, Candidate, Tuner, chain_and_uncut
from latebind.program.verify import DEFAULT_TOLERANCE

NETWORKS = {"resnet18": "examples.cifar10.resnet18", "resnet56": "examples.cifar10.model"}
BATCHES = (1, 16)
SWEEP = (0.0, 1e-4, 3e-4, 1e-3, 3e-3)
BF16_TOLERANCE = 2e-2


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: `ratio` is chain over uncut time, `uncut` is in seconds."""

    network: str
    backend: str
    min_stage_seconds: float
    max_overhead: float | None
    cut_points: int
    good_points: int
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
    network: nn.Module = getattr(importlib.import_module(NETWORKS[name]), name)()
    return network.eval()


def _compare(
    network: str, tuner: Tuner, candidate: Candidate, *, minimum: float, max_overhead: float | None, runs: int
) -> list[Row]:
    chain = tuner.cut(candidate, minimum, max_overhead)
    all_points, good = _points(tuner.exported)
    rows = []
    for batch in BATCHES:
        inputs = with_batch(tuner.rows, batch)
        assert candidate.uncut is not None
        seconds = chain_and_uncut(chain.stages, candidate.uncut, inputs, max(RUNS, runs // batch))
        ratios = [a / b for a, b in zip(seconds["chain"], seconds["uncut"], strict=True)]
        uncut, ratio = median(seconds["uncut"]), median_interval(ratios, seed=batch)
        stages = len(chain.stages)
        rows.append(
            Row(network, candidate.backend, minimum, max_overhead, all_points, good, stages, batch, uncut, ratio)
        )
    return rows


def median_interval(values: Sequence[float], *, seed: int) -> Interval:
    """Return the median and the 95 % interval of its bootstrap."""
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (2000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Interval(median(values), float(low), float(high))


def _points(exported: Exported) -> tuple[int, int]:
    points = cut_points(exported.graph)
    return len(points), len(good_points(exported.graph, points))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="latebind bench stages", description=__doc__)
    parser.add_argument("--network", action="append", choices=list(NETWORKS), help="default: all")
    parser.add_argument("--backend", action="append", choices=list(BACKENDS), help="default: eager and openvino")
    parser.add_argument("--sweep", action="store_true", help="try several minima without the limit on the overhead")
    parser.add_argument("--runs", type=int, default=100, help="pairs at batch 1 (default: 100)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    rows = run(
        options.network or tuple(NETWORKS),
        options.backend or ("eager", "openvino"),
        minima=SWEEP if options.sweep else (MIN_STAGE_SECONDS,),
        max_overhead=None if options.sweep else MAX_OVERHEAD,
        runs=options.runs,
        threads=options.threads,
    )
    print(table(rows))
    return 0


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    head = "network   backend        points  min stage  stages  batch   uncut ms  chain / uncut"
    lines = [
        f"{row.network:9} {row.backend:14} {row.cut_points:6d} {row.min_stage_seconds * 1e3:7.2f} ms {row.stages:7d} "
        f"{row.batch:6d} {row.uncut * 1e3:10.2f}  {row.ratio}"
        for row in rows
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    raise SystemExit(main())
