"""The history behind the page: rows of what has changed from one snapshot to the next."""

from typing import cast

from latebind.domain.actions import Outcome, Reply
from latebind.domain.metrics import SECONDS_BUCKETS, ModelMetrics
from latebind.server.dashboard.dashboard import Change, History
from latebind.server.gateway import ModelMetrics as Told
from latebind.server.gateway import Snapshot

NONE = [0] * len(SECONDS_BUCKETS)


def model(answered: int = 0, *, pending: int = 0, **others: int) -> Told:
    metrics = ModelMetrics(1)
    metrics.pending = pending
    for outcome, count in {"answered": answered, **others}.items():
        for number in range(count):
            metrics.ended(Reply(number, "net", Outcome[outcome.upper()], 0, 0.0, 0.0001), 0.0)
    return cast(Told, metrics.snapshot())


def snapshot(**models: Told) -> Snapshot:
    return {"models": models}


def test_a_row_tells_what_has_come_since_the_snapshot_before() -> None:
    history = History()
    history.add(snapshot(a=model(10, refused_late=1, expired=2)), 100.0)
    history.add(snapshot(a=model(15, refused_late=2, not_loaded=1, expired=3, failed=1, cancelled=4, pending=7)), 101.5)
    (row,) = history.since(0)
    assert (row.number, row.at, row.seconds) == (1, 101.5, 1.5)
    assert row.models == {"a": Change(answered=5, refused=2, lost=2, cancelled=4, pending=7, latency=[5, *NONE])}


def test_rows_are_forgotten_after_five_minutes() -> None:
    history = History()
    for second in range(1000):
        history.add(snapshot(a=model(second)), float(second))
    rows = history.since(0)
    assert len(rows) == 301
    assert rows[0].at == 699.0


def test_counts_that_begin_anew_count_from_nothing() -> None:
    history = History()
    history.add(snapshot(a=model(100)), 1.0)
    history.add(snapshot(a=model(3)), 2.0)
    assert history.since(0)[0].models["a"].answered == 3
    assert history.since(0)[0].models["a"].latency == [3, *NONE]
