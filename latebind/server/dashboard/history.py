"""The last minutes as rows: how each model's figures changed from one snapshot to the next. Pure."""

from collections import deque

import msgspec

from latebind.server.gateway import ModelMetrics, Snapshot

SECONDS = 300.0  # how long rows are kept
REFUSED = ("refused_full", "refused_late", "refused_loading", "not_loaded")
LOST = ("expired", "failed")


class Change(msgspec.Struct, frozen=True, array_like=True):
    """How a model's requests ended in the time of a row. `latency` counts answers in the buckets of its histogram.

    `pending` is how many requests were accepted and had not ended at the end of the row.
    """

    answered: int
    refused: int
    lost: int
    cancelled: int
    pending: int
    latency: list[int]


class Row(msgspec.Struct, frozen=True):
    """What happened in the `seconds` before `at` (Unix time). Models without any change are left out."""

    number: int
    at: float
    seconds: float
    models: dict[str, Change]


class History:
    """Takes snapshots in order of time and keeps a row for each, for `SECONDS`."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque()
        self._number = 0
        self._before: tuple[float, dict[str, ModelMetrics]] | None = None

    def add(self, snapshot: Snapshot, at: float) -> None:
        """Add a snapshot. The first one, and the first after a pause, only marks the beginning of the next row."""
        models = snapshot["models"]
        if self._before is not None and at > self._before[0]:
            then, before = self._before
            changes = {name: _change(figures, before.get(name)) for name, figures in models.items()}
            self._number += 1
            told = {name: change for name, change in changes.items() if _has_something(change)}
            self._rows.append(Row(self._number, at, at - then, told))
        self._before = at, models
        while self._rows and not at - SECONDS <= self._rows[0].at <= at:  # too old, or the clock was set back
            self._rows.popleft()

    def pause(self) -> None:
        """Begin anew with the next snapshot: what happens until then appears in no row."""
        self._before = None

    def since(self, number: int) -> list[Row]:
        """Return the rows after the one with this number; all rows for 0 or for an unknown number."""
        if number > self._number:
            number = 0
        return [row for row in self._rows if row.number > number]


def _change(now: ModelMetrics, before: ModelMetrics | None) -> Change:
    """Return the change since `before`; everything if the counts have begun anew, as those of a new engine do."""
    ended, latency = now["requests"], now["latency_seconds"]["counts"]
    if before is not None and before["latency_seconds"]["count"] <= now["latency_seconds"]["count"]:
        were, earlier = before["requests"], before["latency_seconds"]["counts"]
        ended = {outcome: max(0, count - were.get(outcome, 0)) for outcome, count in ended.items()}
        latency = [max(0, count - old) for count, old in zip(latency, earlier, strict=True)]
    return Change(
        ended["answered"],
        sum(ended[outcome] for outcome in REFUSED),
        sum(ended[outcome] for outcome in LOST),
        ended["cancelled"],
        now["pending"],
        list(latency),
    )


def _has_something(change: Change) -> bool:
    return any((change.answered, change.refused, change.lost, change.cancelled, change.pending))
