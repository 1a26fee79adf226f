"""`python -m research lengths` and `lengths-costs`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from typer import Argument, Option

from latebind.bench.rounds import Progress, in_parallel
from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.cli.console import Rows, console, reporting
from latebind.cli.options import Processes
from latebind.domain.errors import ConfigError
from latebind.repository.directory import json_bytes, write_bytes
from research.evaluation import FirstSeed, Found, Load, Output, Seeds, SideName, evaluate
from research.lengths.costs import SHAPES, Backend, measure, read_costs
from research.lengths.simulated import OURS, Result, Scene, Task, long_tail, run, sides, text_lengths
from research.sides import least, most

LOADS = (0.5, 0.8, 1.0, 1.4)  # of what is answered without padding, each length in the batch that suits it best


def lengths(
    costs: Annotated[Path, Argument(help="Measured costs, as `lengths-costs` writes them.")],
    *,
    text: Annotated[
        list[str] | None,
        Option(metavar="NAME=FILE", help="A text, also .gz, a line each: its lengths are a mix. May be repeated."),
    ] = None,
    load: Load = None,
    side: SideName = None,
    max_batch: Annotated[int, Option(min=1, help="The largest batch.")] = 32,
    seeds: Seeds = 20,
    first_seed: FirstSeed = 0,
    requests: Annotated[int, Option(help="How many requests a run has; the first twentieth does not count.")] = 1_000,
    packed: Annotated[bool, Option("--packed", help="Rows run without their padding, as `build` may find.")] = False,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Compare policies on requests of different lengths, simulated on measured costs.

    Loads are multiples of what a worker answers without padding, where each length runs in the batch that suits it
    best. Deadlines are 10 times what a request takes alone on average. The best baseline of a seed is the one that was
    best in all other seeds, with its best setting, by answers in time or by mean latency of what it answers. A mix with
    a long tail, 5 to 400 tokens, is always there.

    Example: `python -m research lengths minilm.json --text clinc=clinc150_test.tsv.gz --load 1.4 --seeds 5`
    """
    with reporting():
        mixes = {name: text_lengths(Path(file)) for name, file in map(_named, text or ())}
        scene = Scene(read_costs(costs), {**mixes, "long tail": long_tail()}, max_batch, packed)
        every = [one for one in sides(max_batch) if OURS in one.kinds or not side or one.label in side]
        if len(every) < 3:
            raise ConfigError("compare with at least one baseline: leave out --side, or name one of the table")
        tasks = [
            Task(mix, share, one, seed, requests)
            for mix in scene.mixes
            for share in load or LOADS
            for one in every
            for seed in range(first_seed, first_seed + seeds)
        ]

        def loads(on_progress: Progress) -> Found:
            name = "{0.mix} at {0.load:g}".format
            found = in_parallel(partial(run, scene=scene), tasks, name=name, progress=on_progress, processes=processes)
            return Found(
                {
                    "against the best baseline": against(found, scene),
                    "every side: answered in time, by quarters of length too": every_side(found),
                }
            )

        told = {
            "costs": scene.costs.told,
            "capacity": {mix: round(scene.capacity(mix), 1) for mix in scene.mixes},
            "why rows are padded": {mix: scene.why_padded(mix) for mix in scene.mixes},
        }
        evaluate({"loads": loads}, output, told)


def lengths_costs(
    file: Annotated[Path, Argument(help="The JSON file to write.")],
    *,
    shape: Annotated[str, Option(help=f"The encoder: {', '.join(SHAPES)}.")] = "minilm",
    backend: Annotated[Backend, Option(help="What runs it.")] = "openvino",
    threads: Annotated[int, Option(min=1, help="Threads for an operator.")] = 1,
) -> None:
    """Measure what batches of an encoder with drawn weights take, by rows and length.

    Example: `python -m research lengths-costs minilm.json --shape minilm`
    """
    with reporting():
        if shape not in SHAPES:
            raise ConfigError(f"there is no shape {shape!r}: take one of {', '.join(SHAPES)}")
        found = measure(shape, backend, threads)
        write_bytes(file, json_bytes(found))
        console.print(f"{file}: {found.told}, {len(found.stages)} stages")


def against(found: Sequence[Result], scene: Scene) -> Rows:
    """Return, by mix, load and side of ours, the ratios to the best baseline and their bound, and what padding adds."""
    rows: Rows = []
    for (mix, load), cell in _cells(found).items():
        baselines = {label: runs for label, runs in cell.items() if OURS not in runs[0].task.side.kinds}
        goodput = most({label: _of(runs, "in_time") for label, runs in baselines.items()})
        mean = least({label: _of(runs, "mean") for label, runs in baselines.items()})
        best = max(baselines, key=lambda label: _of(baselines[label], "in_time").mean())
        for label, runs in cell.items():
            if OURS in runs[0].task.side.kinds:
                rows.append(
                    {
                        "mix": mix,
                        "load": f"{load:g}",
                        "side": label,
                        "in time": f"{_of(runs, 'in_time').mean():.3f}",
                        "over the best baseline's": str(ratio_of_means(_of(runs, "in_time"), goodput)),
                        "at most": f"{scene.bound(mix, load) / goodput.mean():.2f}",
                        "evenly, in batches": f"{scene.in_batches(mix, load) / goodput.mean():.2f}",
                        "mean over its least": str(ratio_of_means(_of(runs, "mean"), mean)),
                        "mean over that of the best in time": str(
                            ratio_of_means(_of(runs, "mean"), _of(baselines[best], "mean"))
                        ),
                        "best in time": best,
                        "tokens run": f"{_of(runs, 'padding').mean():.2f}",
                    }
                )
    return rows


def every_side(found: Sequence[Result]) -> Rows:
    """Return the means of each side by mix and load, the best first."""
    rows: Rows = []
    for (mix, load), cell in _cells(found).items():
        for label, runs in sorted(cell.items(), key=lambda item: -_of(item[1], "in_time").mean()):
            quarters = np.mean([one.figures.quarters for one in runs], axis=0)
            rows.append(
                {
                    "mix": mix,
                    "load": f"{load:g}",
                    "side": label,
                    "in time": mean_interval(_of(runs, "in_time")).written(".3f"),
                    "shortest to longest": " ".join(f"{share:.2f}" for share in quarters),
                    "mean ms": f"{1e3 * _of(runs, 'mean').mean():.1f}",
                    "tokens run": f"{_of(runs, 'padding').mean():.2f}",
                }
            )
    return rows


def _cells(found: Sequence[Result]) -> dict[tuple[str, float], dict[str, list[Result]]]:
    cells: dict[tuple[str, float], dict[str, list[Result]]] = {}
    for one in found:
        cells.setdefault((one.task.mix, one.task.load), {}).setdefault(one.task.side.label, []).append(one)
    return cells


def _of(runs: Sequence[Result], figure: str) -> NDArray[np.float64]:
    return np.array([getattr(one.figures, figure) for one in runs])


def _named(given: str) -> tuple[str, str]:
    name, equals, file = given.partition("=")
    if not (name and equals and file):
        raise ConfigError(f"--text {given} names no mix: write NAME=FILE")
    return name, file
