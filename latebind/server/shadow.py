"""Shadow versions (`domain.split`): they answer copies of requests, and only the metrics show it.

Clients wait for none of it, but workers are shared: a request that comes while a shadow runs waits for it. So shadows
are asked one call at a time, and run for at most `MOST_SHARE` of the time. Requests that are not copied are counted.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from latebind.adaptation.controller import COMPARED
from latebind.domain.errors import LatebindError
from latebind.domain.model import ModelSpec
from latebind.domain.split import Chooser
from latebind.server.gateway import Answer, Array, Gateway, as_numbers

logger = logging.getLogger(__name__)

MOST_SHARE: Final = 0.02
"""The share of the time that shadows may run. At half load, a request that meets one waits half of it on average."""
SAVED: Final = 1.0  # seconds of running that may be saved up for while none runs
CALL_SECONDS: Final = 1e-3  # that a call costs frontend and engine beside running, a generous estimate
SECONDS: Final = 10.0  # that a shadow has to answer
OUTCOMES: Final = ("same", "other", "failed", "passed_over")

Rows = Mapping[str, Sequence[Array]]


class Shadows:
    """Sends shadows of `splits` what other versions have answered, and compares. Used only on the event loop."""

    def __init__(self, gateway: Gateway, splits: Mapping[str, Chooser]) -> None:
        self._gateway = gateway
        self._splits = splits
        self._counts: dict[str, Counter[str]] = {}
        self._last: dict[str, deque[bool]] = {}  # whether the last rows that were compared were answered alike
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._credit = SAVED  # seconds that shadows may run for
        self._then = time.monotonic()

    def follow(self, spec: ModelSpec) -> bool:
        """Return whether a model has shadows, so that its answers are to be reported."""
        chooser = self._splits.get(spec.public_name)
        return chooser is not None and bool(chooser.split.shadows)

    def counts(self, model: str) -> Mapping[str, int]:
        """Return how many rows a shadow, by the name that it is served by, has answered, and how (`OUTCOMES`)."""
        return self._counts.get(model, {})

    def compared(self, model: str) -> tuple[bool, ...]:
        """Return for the last `COMPARED` rows whether the shadow answered like the version that clients got.

        `learned.promise.bounded` makes a share of it, as for learned caches compared with their full network.
        """
        return tuple(self._last.get(model, ()))

    def answered(self, spec: ModelSpec, rows: Rows, answer: Answer) -> None:
        """Send rows that a model has answered to its shadows; copies what it needs."""
        split = self._splits[spec.public_name].split
        for version in split.shadows:
            name = split.served[version]
            if spec.name == name:
                continue
            shadow, counts = self._gateway.models.get(name), self._counts.setdefault(name, Counter())
            if shadow is None or shadow.inputs != spec.inputs or name in self._tasks or not self._may_run():
                counts["passed_over"] += len(answer.left_at)
                continue
            own = {tensor: [row.copy() for row in each] for tensor, each in rows.items()}
            self._tasks[name] = task = asyncio.create_task(self._ask(shadow, own, answer, counts))
            task.add_done_callback(partial(self._ended, name))

    async def close(self) -> None:
        """Cancel what is under way."""
        for task in [*self._tasks.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            logger.error("the shadow %s could not be compared", name, exc_info=task.exception())

    def _may_run(self) -> bool:
        now = time.monotonic()
        self._credit = min(SAVED, self._credit + MOST_SHARE * (now - self._then))
        self._then = now
        return self._credit > 0.0

    async def _ask(self, spec: ModelSpec, rows: Rows, answer: Answer, counts: Counter[str]) -> None:
        """Get a shadow's answers, and count how they compare."""
        count, deadline = len(answer.left_at), time.monotonic() + SECONDS
        try:
            dims = spec.dims_of({name: each[0].shape for name, each in rows.items()}) if spec.dims else {}
            claim = await self._gateway.claim(spec.name, count, deadline=deadline, dims=dims)
            try:
                for name, places in claim.rows.items():
                    for place, row in zip(places, rows[name], strict=True):
                        place[...] = row
                found = await claim.send(deadline=deadline)
            finally:
                claim.release()
        except LatebindError as error:
            counts["failed"] += count
            logger.debug("the shadow %s did not answer: %s", spec.name, error)
            return
        self._credit -= CALL_SECONDS + max(found.ran, default=0.0)
        compared = [alike(spec, answer, found, row) for row in range(count)]
        self._last.setdefault(spec.name, deque(maxlen=COMPARED)).extend(compared)
        counts["same"] += sum(compared)
        counts["other"] += count - sum(compared)


def alike(spec: ModelSpec, one: Answer, other: Answer, row: int) -> bool:
    """Return whether two answers to a row agree: on the class where an output has scores, else on all values.

    Floating-point outputs are scores or vectors: they agree if their largest value is at the same place. Integer
    outputs, such as tokens, have to be equal.
    """
    for tensor in spec.outputs:
        if tensor.name not in one.outputs or tensor.name not in other.outputs:
            return False
        a, b = (as_numbers(answer.outputs[tensor.name][row], tensor.dtype) for answer in (one, other))
        if a.shape != b.shape:
            return False
        if np.issubdtype(a.dtype, np.floating) and a.size > 1:
            if a.argmax() != b.argmax():
                return False
        elif not np.array_equal(a, b, equal_nan=bool(np.issubdtype(a.dtype, np.floating))):
            return False
    return True
