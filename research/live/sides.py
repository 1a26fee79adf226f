"""The sides that are compared on live engines: policy, exits on or off, and the engine's configuration."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from latebind.batching.costs import Estimate
from latebind.bench.subject import Setting
from latebind.domain.config import EngineConfig, PolicyConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder

SLOTS = 4096
SERIAL = "serial"  # the side that takes part wherever the pace is taken

S = TypeVar("S")
Lengths = Sequence[tuple[int, int]]  # of inputs and answers, in steps


@dataclass(frozen=True, slots=True)
class Side:
    """A policy with its settings, on an engine with or without `exits`, and with so many workers of `threads` each.

    Where `granularities` are given there is a worker for each of them.
    """

    policy: PolicyConfig
    exits: bool = False
    workers: int = 1
    threads: int = 1
    granularities: tuple[int, ...] = ()

    def largest_batch(self, spec: ModelSpec) -> int:
        """Return the largest batch that it may form."""
        most = self.policy.max_batch or spec.max_batch
        return min(most, max(self.granularities, default=most))


def chosen(every: Mapping[str, S], wanted: Sequence[str], *, always: Sequence[str] = ()) -> dict[str, S]:
    """Return the sides of these names, all where none are named, besides those that take part `always`.

    Raises `ConfigError` for one that there is not.
    """
    unknown = [side for side in wanted if side not in every]
    if unknown:
        raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(map(repr, every))}")
    kept = {*always, *(wanted or every)}
    return {name: side for name, side in every.items() if name in kept}


async def started(
    stack: AsyncExitStack,
    path: Path,
    side: Side,
    setting: Setting,
    cores: tuple[int, ...] = (),
    log: Path | None = None,
) -> EngineClient:
    """Return an engine of this kind with one model; it ends with the stack. `cores`: else that of the setting.

    Where there is to be a `log` it writes its events there.
    """
    engine = EngineConfig(
        workers=side.workers,
        granularities=side.granularities,
        threads=side.threads,
        cores=cores or (setting.engine_core,),
        slots=SLOTS,
        exits=side.exits,
        backend=setting.backend,
    )
    order = EngineOrder((str(path),), engine=engine, policy=side.policy, event_log=str(log) if log else None)
    return await begun(stack, order)


async def begun(stack: AsyncExitStack, order: EngineOrder) -> EngineClient:
    """Start an engine, which ends with the stack."""
    engine = await EngineClient.start(order)
    stack.push_async_callback(engine.close)
    return engine


def alone(served: ServedModel, lengths: Lengths) -> float:
    """Return the mean seconds that rows of these lengths take alone, by profile."""
    estimate = Estimate(served.spec, served.costs)
    return float(np.mean([estimate.whole(1, inputs, outputs) for inputs, outputs in lengths]))
