"""The figures of one sequence model: how soon the first token of an answer is written, and how many tokens. Pure."""

from collections.abc import Sequence
from typing import Any

from latebind.domain.histogram import Histogram


class TokenMetrics:
    """Counts runs of a decoder, each of which writes one token of every request in it."""

    def __init__(self) -> None:
        self._arrived: dict[int, float] = {}  # when requests came that have no token yet
        self._running: dict[int, tuple[int, ...]] = {}  # by worker: the requests of its decoder's run
        self._tokens = 0
        self._first = Histogram()

    def arrived(self, requests: Sequence[int], now: float) -> None:
        """Note requests."""
        self._arrived.update(dict.fromkeys(requests, now))

    def begun(self, worker: int, requests: tuple[int, ...]) -> None:
        """Note a run of the decoder."""
        self._running[worker] = requests

    def done(self, worker: int, now: float) -> None:
        """Count the tokens of a run that has ended, if it was the decoder's."""
        requests = self._running.pop(worker, ())
        self._tokens += len(requests)
        for request in requests:
            arrived = self._arrived.pop(request, None)
            if arrived is not None:
                self._first.add(now - arrived)

    def failed(self, worker: int) -> None:
        """Forget a run that raised: it has written nothing."""
        self._running.pop(worker, None)

    def ended(self, request: int) -> None:
        """Forget a request."""
        self._arrived.pop(request, None)

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain types."""
        return {"tokens": self._tokens, "first_token_seconds": self._first.snapshot()}
