"""The live bench of residency: models are weighed as they are, requests are the same for all, every part prints."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from latebind.domain.errors import ConfigError
from research.__main__ import app
from research.mcache.live import Plan, Zoo, weigh
from research.mcache.traces import drawn
from tests.building import build_stages

WIDTH = 256  # a matrix of a quarter of a megabyte
MATRIX = WIDTH * WIDTH * 4
SIDES = ["--side", "lru", "--side", "late"]
QUICK = ["--seconds", "1", "--warm-up", "0.2", "--rounds", "1", "--speed", "20"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `two`, `three` and `four`, of so many layers."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("zoo")
    for name, layers in (("two", 2), ("three", 3), ("four", 4)):
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).eval()
        build_stages(module, {"input": torch.randn(2, WIDTH)}, root / name / "1", name=name, max_batch=2)
    return root


@pytest.fixture(scope="module")
def weighed(zoo: Path) -> Zoo:
    return weigh(zoo)


def bench(zoo: Path, *words: str) -> dict[str, dict[str, dict[str, list[dict[str, object]]]]]:
    file = zoo / "figures.json"
    result = CliRunner().invoke(app, ["residency-live", str(zoo), *words, "--json", str(file)])
    assert result.exit_code == 0, result.output
    found: dict[str, dict[str, dict[str, list[dict[str, object]]]]] = json.loads(file.read_text())
    return found


def test_models_are_weighed_as_large_as_their_weights(weighed: Zoo) -> None:
    sizes = {name: model.size for name, model in weighed.models.items()}
    assert all(layers * MATRIX <= sizes[name] < (layers + 1) * MATRIX for name, layers in (("two", 2), ("four", 4)))
    assert weighed.largest_first == ["four", "three", "two"]
    assert weighed.size == sum(sizes.values())


def test_requests_of_a_round_are_the_same_each_time_and_within_the_block(weighed: Zoo) -> None:
    plan = Plan(tuple(drawn(Random(0))), (), speed=20.0, seconds=5.0, warm_up=1.0)
    names = weighed.slowest_first
    first = plan.requests(names, 0)
    assert first == plan.requests(names, 0) != plan.requests(names, 1)
    assert all(0.0 <= one.time < 6.0 for one in first)
    assert [one.time for one in first] == sorted(one.time for one in first)


def test_a_block_longer_than_its_hour_is_told(weighed: Zoo) -> None:
    plan = Plan(tuple(drawn(Random(0))), (), speed=1000.0, seconds=5.0)
    with pytest.raises(ConfigError, match="less --speed or --seconds"):
        plan.requests(weighed.slowest_first, 0)


def test_a_trace_is_played_to_every_side_and_nobody_is_lost(zoo: Path) -> None:
    figures = bench(zoo, "--part", "trace", "--share", "0.5", *SIDES, *QUICK, "--page", str(zoo / "page.html"))
    told = figures["trace"]["tables"]
    latency, loads = told.values()
    assert [row["side"] for row in latency] == ["lru", "late"]
    assert {row["lost"] for row in latency} == {0}
    assert len({row["requests"] for row in latency}) == 1
    assert all(row["loads"] for row in loads)
    assert "Latency" in (zoo / "page.html").read_text()


def test_a_crowd_is_answered_and_its_longest_wait_is_told(zoo: Path) -> None:
    figures = bench(zoo, "--part", "crowd", "--share", "0.5", "--clients", "4", *SIDES, *QUICK)
    rows = next(iter(figures["crowd"]["tables"].values()))
    assert [row["side"] for row in rows] == ["lru", "late"]
    assert all(float(str(row["answers a second"])) > 0 and row["lost"] == 0 for row in rows)


def test_models_start_with_nothing_or_a_part_of_them_there(zoo: Path) -> None:
    figures = bench(zoo, "--part", "cold", *QUICK)
    (rows,) = figures["cold"]["tables"].values()
    shares = {str(row["start"]): float(str(row["of it there"]).rstrip("%")) for row in rows if row["model"] == "four"}
    assert shares["all of it loaded, then run"] == shares["run while it loads"] == 0
    assert 0 < shares["part of it there, run while the rest loads"] <= 50


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tier", "tape"), "choose page-cache or disk"),
        (("--share", "1.5"), "more than 0 and at most 1"),
        (("--side", "fifo"), "there is no side 'fifo'"),
        (("--share", "0.1", "--part", "trace"), "give more --memory"),
    ],
)
def test_what_cannot_be_played_is_told(zoo: Path, words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["residency-live", str(zoo), *words])
    assert result.exit_code == 2
    assert message in result.output
