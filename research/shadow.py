"""`python -m research shadow`: what clients wait longer because a version is asked aside."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.request import Request, urlopen

import numpy as np
from typer import Option

from latebind.bench.client import encode, past
from latebind.bench.rounds import Progress
from latebind.bench.server import launched
from latebind.bench.statistics import ratio_of_means
from latebind.cli.bench.options import Data, Model, Repository, ServeWords
from latebind.cli.console import Row, reporting
from latebind.cli.options import DataOption, Seed
from latebind.cli.sources import load_rows
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research import live
from research.before import SETTLE, Block, Call, at_times, in_a_loop
from research.evaluation import Found, Output, Rounds, Seconds, evaluate

PATIENCE = 30.0  # seconds that a call may take
SIDES = {"alone": "1:100,2:0", "beside a shadow": "1:100,2:shadow"}


def shadow(
    repository: Repository,
    model: Model,
    *,
    data: Data = None,
    data_option: DataOption = None,
    load: Annotated[
        float, Option(help="Requests a second, as a share of what the server answers to 16 clients.")
    ] = 0.5,
    serve: ServeWords = None,
    rounds: Rounds = 10,
    seconds: Seconds = 4.0,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare latencies of a model with and without a shadow: a copy of it, as version 2, which is asked aside.

    One server has both versions all the time; in turns, version 2 is a shadow or has nothing to do. Requests come at
    Poisson times, the same in both turns of a round.

    Example: python -m research shadow models --model resnet56 --rounds 20
    """
    with reporting():
        (path,) = find_models(repository, [model])
        spec, _ = read_spec_and_costs(ModelDirectory.open(path))
        rows = live.Rows.made_up(spec, Random(seed)) if data is None else live.Rows(load_rows(data, data_option)[0])
        calls = [(model, encode(rows.given(row, spec), timeout=PATIENCE)) for row in range(min(rows.count, 500))]

    def compare(on_progress: Progress) -> Found:
        with TemporaryDirectory() as folder:
            for version in ("1", "2"):
                shutil.copytree(path, Path(folder) / model / version, copy_function=os.link)
            words = ("--split", f"{model}={SIDES['alone']}", "--manage", *(serve or ()))
            with launched(Path(folder), *words) as server:
                return asyncio.run(_compared(server.url, calls, load, rounds, seconds, seed, on_progress))

    evaluate({"shadow": compare}, output)


async def _compared(
    url: str, calls: Sequence[Call], load: float, rounds: int, seconds: float, seed: int, on_progress: Progress
) -> Found:
    """Ask the server in turns, with a shadow and without, and return a table."""
    model = calls[0][0]
    await in_a_loop(url, 1, cycle(calls), SETTLE)
    rate = load * (await in_a_loop(url, 16, cycle(calls), seconds)).rate
    blocks: dict[str, list[Block]] = {side: [] for side in SIDES}
    for turn in range(rounds):
        on_progress(f"round {turn + 1}", turn / rounds)
        times = past(seconds, rate, Random(f"{seed} {turn}"))
        for side in sorted(SIDES, reverse=bool(turn % 2)):
            _split(url, model, SIDES[side])
            blocks[side].append(await at_times(url, list(islice(cycle(calls), len(times))), times, PATIENCE))
    alone, beside = blocks.values()
    mean, high = (
        ratio_of_means([getattr(one, of) for one in beside], [getattr(one, of) for one in alone])
        for of in ("mean", "high")
    )
    rows: list[Row] = [
        {
            "version 2": side,
            "mean ms": f"{np.mean([one.mean for one in found]) * 1e3:.3f}",
            "p99 ms": f"{np.mean([one.high for one in found]) * 1e3:.3f}",
        }
        for side, found in blocks.items()
    ]
    asked = _asked_aside(url, model)
    return Found(
        {
            f"{rate:.0f} requests a second, {load:g} of what 16 clients get, {rounds} rounds of {seconds:g} s": rows,
            "beside a shadow / alone": [{"mean": mean.change(), "p99": high.change()}],
            "rows that the shadow was asked for": [asked],
        },
        problems=[] if asked.get("same") else ["the shadow has answered nothing: there is nothing to compare"],
    )


def _split(url: str, model: str, split: str) -> None:
    """Change the shares of a model's versions."""
    body = json.dumps({"parameters": {"split": split}}).encode()
    with urlopen(Request(f"{url}/v2/repository/models/{model}/load", body), timeout=PATIENCE):  # noqa: S310  (the server's)
        pass


def _asked_aside(url: str, model: str) -> Row:
    """Return how many rows the shadow answered, and how, from the server's figures."""
    with urlopen(f"{url}/metrics", timeout=PATIENCE) as reply:  # noqa: S310
        text = reply.read().decode()
    of_model = re.compile(rf'latebind_shadow_rows_total\{{model="{re.escape(model)}",outcome="(\w+)",.*\}} ([\d.]+)')
    return {outcome: int(float(rows)) for outcome, rows in of_model.findall(text)}
