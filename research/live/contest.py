"""The protocol that a comparison needs, written once for live engines and simulated ones."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from latebind.bench.rounds import Progress
from research.live.played import Played


class Contest(Protocol):
    """Sides that are ready to answer requests for one model. `Session` is the live one."""

    @property
    def alone(self) -> float:
        """Seconds that the base model takes for one request after another."""

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, tell: Progress
    ) -> dict[str, list[float]]:
        """Return for each side and round the time per request when saturated, in units of `alone`."""

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float
    ) -> Mapping[str, Played]:
        """Return the outcomes of requests at these times, each due `allowed` seconds later, on each side."""


Part = Callable[[Contest, Random, Progress], Coroutine[Any, Any, None]]
