"""How many cores there are for an engine, and the workers that they make."""

import os
from math import inf
from pathlib import Path

import pytest

from latebind.domain.config import EngineConfig
from latebind.engine import cores
from latebind.engine.cores import MOST_WORKERS, at_once, cpu_quota, usable_cores, with_workers


def quota(folder: Path, own: str, **limits: str) -> float:
    """Return the quota of a process of the group `own`, where groups (`__` stands for /) have these limits."""
    for group, limit in limits.items():
        place = folder / "groups" / group.replace("__", "/").strip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "cpu.max").write_text(f"{limit}\n")
    (folder / "own").write_text(own)
    return cpu_quota(folder / "groups", folder / "own")


def test_the_least_limit_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    limits = {"pods": "400000 100000", "pods__one": "150000 100000", "pods__two": "50000 100000"}
    assert quota(tmp_path, "0::/pods/one\n", **limits) == 1.5
    assert quota(tmp_path, "0::/pods/three\n", **limits) == 4.0
    assert quota(tmp_path, "12:cpu:/pods/two\n0::/\n", **limits) == inf


@pytest.mark.parametrize("limit", ["max 100000", "", "nonsense", "1 2 3"])
def test_what_is_no_limit_sets_none(limit: str, tmp_path: Path) -> None:
    assert quota(tmp_path, "0::/pod\n", pod=limit) == inf


def test_a_limit_on_time_counts_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    there = len(os.sched_getaffinity(0))
    for limit, expected in ((inf, there), (there + 0.5, there), (1.9, 1), (0.2, 1)):
        monkeypatch.setattr(cores, "cpu_quota", lambda limit=limit: limit)
        assert usable_cores(EngineConfig()) == expected
        assert usable_cores(EngineConfig(cores=(0, 1, 2))) == 3


@pytest.mark.parametrize(
    ("there", "threads", "expected"),
    [
        (1, None, (1, 1)),
        (3, None, (3, 1)),
        (8, None, (8, 1)),
        (9, None, (4, 2)),
        (15, None, (7, 2)),
        (63, None, (7, 8)),
        (3, 2, (1, 2)),
        (1, 2, (1, 2)),
        (63, 1, (8, 1)),
    ],
)
def test_workers_share_the_cores(there: int, threads: int | None, expected: tuple[int, int]) -> None:
    found = with_workers(EngineConfig(), there, threads=threads)
    assert (found.workers, found.threads) == expected
    assert found.workers <= MOST_WORKERS


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (EngineConfig(cores=(0, 1)), 1),
        (EngineConfig(cores=(0, 1), workers=4), 2),
        (EngineConfig(cores=(0, 1, 2, 3), granularities=(1, 2, 4)), 3),
        (EngineConfig(cores=(0, 1, 2, 3), granularities=(1, 2, 4), threads=2), 2),
        (EngineConfig(cores=(0, 1), granularities=(1, 2, 4), threads=3), 1),
    ],
)
def test_as_many_workers_run_at_once_as_have_cores_for_their_threads(config: EngineConfig, count: int) -> None:
    assert at_once(config) == count
    assert usable_cores(config) == len(config.cores)
