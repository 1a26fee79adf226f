"""Joint runs on live engines: one for each side, on the same core, asked in turn.

All get the same rows at the same times, with the same deadlines, and all exits have the same calibrated thresholds.
With folds, every row is answered by thresholds that were calibrated on other rows.
"""

import asyncio
from collections.abc import Mapping
from random import Random

from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.bench.subject import Folds, Setting, Subject, answerable
from research.live.contest import Part
from research.live.session import session
from research.live.sides import Side

KNOWN = 2_000  # rows, at most, that are asked for: the right answers come first, one after another


def on_engines(
    subject: Subject,
    sides: Mapping[str, Side],
    part: Part,
    *,
    setting: Setting,
    folds: Folds | None = None,
    progress: Progress = lambda text, share: None,
) -> None:
    """Run a part on live engines, once in each fold. Without folds the model is used as it is. Raises `ConfigError`."""

    async def held(here: Subject, random: Random) -> None:
        progress(f"starting {len(sides)} engines", 0.0)
        async with session(here.path, sides, here.rows(0, KNOWN), setting, known=KNOWN) as contest:
            await part(contest, random, progress)

    for number, here in enumerate(answerable(subject, folds, setting, progress)):
        with pinned(setting.door_cores):
            asyncio.run(held(here, Random(setting.seed + number)))
