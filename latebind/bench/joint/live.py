"""Joint runs on the live engine: for each side an engine of its own on the same core, asked in turn.

All get the same rows at the same times, with the same deadlines, and all exits have the same calibrated thresholds.
With folds, every row meets thresholds that were calibrated on others.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random

from latebind.bench.client import Array
from latebind.bench.exits import Setting
from latebind.bench.folds import Folds, answerable
from latebind.bench.live.contest import Part, Progress
from latebind.bench.live.session import session
from latebind.bench.live.sides import Side
from latebind.bench.server import pinned
from latebind.repository.listing import find_models

KNOWN = 2_000  # rows, at most, that are asked for: the right answers come first, one after another


def on_engines(
    repository: Path,
    model: str,
    inputs: Mapping[str, Array],
    sides: Mapping[str, Side],
    part: Part,
    *,
    setting: Setting,
    folds: Folds | None = None,
    progress: Progress = lambda text, share: None,
) -> None:
    """Have a part ask for rows of `inputs` (arrays `(N, *shape)` by name), once in each fold.

    Without folds the model is taken as it is. Raises `ConfigError`.
    """
    for number, (folder, here) in enumerate(
        answerable(repository, model, inputs, folds, backend=setting.backend, seed=setting.seed, progress=progress)
    ):
        (path,) = find_models(folder, [model])
        rows = {name: array[here[:KNOWN]] for name, array in inputs.items()}
        with pinned(setting.door_cores):
            asyncio.run(_held(path, rows, sides, part, setting, Random(setting.seed + number), progress))


async def _held(
    path: Path,
    inputs: Mapping[str, Array],
    sides: Mapping[str, Side],
    part: Part,
    setting: Setting,
    random: Random,
    progress: Progress,
) -> None:
    progress(f"starting {len(sides)} engines", 0.0)
    async with session(path, sides, inputs, setting, known=KNOWN) as here:
        await part(here, random, progress)
