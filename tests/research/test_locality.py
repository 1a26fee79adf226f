"""The comparison with caches that follow the traffic: its arithmetic, and a run on digits with two services."""

import numpy as np
import pytest

from latebind.bench.subject import Setting, Subject
from research.gati import locality
from research.gati.locality import LocalityReport, Service, Traffic
from tests.digits import Built
from tests.research.conftest import quiet

REQUESTS = 4_000


def report(*, begun: int) -> LocalityReport:
    """A side that takes a quarter of the time and errs in every tenth of the first 2,000 requests."""
    classes = np.zeros(REQUESTS, dtype=np.int64)
    erring = classes.copy()
    erring[: REQUESTS // 2 : 10] = 1
    seconds = {"off": np.full(REQUESTS, 0.004), "adapted": np.full(REQUESTS, 0.001)}
    calls = {side: each + 0.001 for side, each in seconds.items()}
    told = {"adapted": {"published": 2.0}}
    return LocalityReport(calls, seconds, {"off": classes, "adapted": erring}, {"adapted": begun}, told, seed=0)


def test_the_worst_window_counts_from_the_first_version_on() -> None:
    assert report(begun=0).windows("adapted").tolist() == pytest.approx([0.9, 0.925, 0.95, 0.975, 1.0])
    assert report(begun=2_000).windows("adapted").tolist() == [1.0]
    assert report(begun=3_000).row("adapted")["worst 2,000"] == ""
    assert report(begun=3_000).row("adapted")["fidelity"] == "0.9500"


def test_services_that_differ_stand_side_by_side(built: Built) -> None:
    rows, labels = built.rows
    found = locality.follow(
        Subject(built.directory.path.parent.parent, "digits", rows, labels),
        Traffic(alpha=2.0, phases=2, length=60, jitter=0),
        setting=Setting(),
        fidelity=0.9,
        services=(Service(), Service(sample=0.5, interval=60.0)),
        progress=quiet,
    )
    adapting = {"adapted, 20%, 900 s", "adapted, 50%, 60 s"}
    assert set(found.calls) == {"off", "built", *adapting}
    assert set(found.begun) == set(found.told) == adapting == {row["side"] for row in found.told_rows()}
    assert all(len(seconds) == 120 for seconds in found.engine.values())
    assert found.same("off").all()
    assert found.same("built").mean() > 0.8
