"""`python -m research lengths-packing`: batches of rows of different lengths, padded and laid end to end."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from typer import Argument, Option

from latebind.bench.rounds import Progress
from latebind.cli.console import Row
from latebind.cli.options import Seed
from latebind.domain.costs import ModelCosts
from latebind.domain.errors import ConfigError
from latebind.program.backends import StageFunction, compile_stages, run_chain
from latebind.program.measure import interleaved
from latebind.program.metadata import read_model, read_profile
from latebind.program.padding import filled_up
from latebind.program.stored import read_stages
from latebind.repository.directory import WEIGHTS, ModelDirectory
from latebind.repository.tensors import read_tensors
from research.evaluation import Found, Output, evaluate
from research.lengths.simulated import long_tail, text_lengths

RUNS = 15
Rows = Sequence[tuple[Tensor, ...]]


def lengths_packing(
    model: Annotated[Path, Argument(help="The directory of a built model whose rows share a batch at any length.")],
    *,
    text: Annotated[list[str] | None, Option(metavar="NAME=FILE", help="A text, a line each. May be repeated.")] = None,
    rows: Annotated[list[int] | None, Option(help="Rows of a batch; may be repeated. Default: 4, 8, 16, 32.")] = None,
    draws: Annotated[int, Option(min=1, help="Batches of each size.")] = 5,
    threads: Annotated[int, Option(min=1, help="Threads for an operator.")] = 1,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare what a batch of drawn lengths takes in four ways, by a token that a client sent.

    Padded to the longest; each row alone; sorted and in the two padded batches that take the least by the model's
    profile; laid end to end for all that works position by position. Lengths are those of texts and a long tail.

    Example: `python -m research lengths-packing models/text/1 --text clinc=clinc150_test.tsv.gz`
    """
    directory = ModelDirectory.open(model)
    stored, weights = read_model(directory), read_tensors(directory, WEIGHTS)
    if not stored.pads:
        raise ConfigError(f"rows of {stored.name} share no batch with longer ones: take another model")
    torch.set_num_threads(threads)
    graphs, costs = read_stages(directory, stored), read_profile(directory).costs()
    make = partial(compile_stages, graphs, weights, backend=stored.backend, threads=threads)
    (dim,) = stored.dims
    mixes = {name: text_lengths(Path(file)) for name, _, file in (one.partition("=") for one in text or ())}
    mixes["long tail"] = long_tail()

    def batch(lengths: Sequence[int]) -> tuple[Tensor, ...]:
        made = []
        for spec in stored.inputs:
            parts = [torch.ones(1, *spec.shape_of({dim.name: n})).to(getattr(torch, spec.dtype)) for n in lengths]
            made.append(filled_up(parts, spec.shape_of({dim.name: max(lengths)}), spec.padding or 0))
        return tuple(made)

    def drawn(mix: Sequence[int], size: int, random: Generator) -> list[int]:
        return sorted(dim.near(length) for length in random.choice(mix, size).tolist())

    def found(on_progress: Progress) -> Found:
        stages, packed, random, table = make(), make(packs=True), default_rng(seed), list[Row]()
        for place, (name, mix) in enumerate(mixes.items()):
            for size in rows or (4, 8, 16, 32):
                on_progress(f"{name}, {size} rows", place / len(mixes))
                each = [_seconds(drawn(mix, size, random), batch, stages, packed, costs) for _ in range(draws)]
                gains = [min(one["padded"], one["alone"], one["two"]) / one["packed"] for one in each]
                table.append(
                    {
                        "mix": name,
                        "rows": size,
                        "tokens run, padded": f"{fmean(one['padding'] for one in each):.2f}",
                        **{f"{way}, us": round(1e6 * fmean(one[way] for one in each)) for way in WAYS},
                        "best other over packed": f"{fmean(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})",
                    }
                )
        return Found({"by a token": table})

    evaluate({"packing": found}, output, {"backend": stored.backend, "stages": len(graphs)})


WAYS = ("padded", "alone", "two", "packed")


def _seconds(
    lengths: list[int],
    batch: Callable[[Sequence[int]], tuple[Tensor, ...]],
    stages: Sequence[StageFunction],
    packed: Sequence[StageFunction],
    costs: ModelCosts,
) -> dict[str, float]:
    """Return the seconds by a token of these ascending lengths in each way, and what padding adds to the tokens."""

    def whole(some: Sequence[int]) -> float:
        return sum(costs.step(stage, len(some), some[-1]) for stage in range(len(stages))) if some else 0.0

    cut = min(range(len(lengths)), key=lambda place: whole(lengths[:place]) + whole(lengths[place:]))
    parts = {"padded": [lengths], "alone": [[one] for one in lengths], "two": [lengths[:cut], lengths[cut:]]}
    given = {way: [batch(some) for some in lists if some] for way, lists in parts.items()}

    def run(way: str) -> None:
        for some in given[way]:
            run_chain(stages, some)

    calls: dict[str, Callable[[], object]] = {way: partial(run, way) for way in parts}
    calls["packed"] = partial(run_chain, packed, given["padded"][0], lengths)
    with torch.inference_mode():
        seconds = interleaved(calls, max(3, min(RUNS, round(4000 / (len(lengths) * lengths[-1])))))
    tokens = sum(lengths)
    return {
        **{way: median(each) / tokens for way, each in seconds.items()},
        "padding": len(lengths) * lengths[-1] / tokens,
    }
