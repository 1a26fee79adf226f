"""Planners of queries: GATI's traffic application simulated as the paper tells it, and the same sides live."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from latebind.domain.config import PolicyConfig
from latebind.domain.query import PlannerConfig
from research.__main__ import app
from research.gati.queries import (
    BY_LOAD,
    FACES,
    OBJECTS,
    OPTIONS,
    STEPS,
    TABLE_5,
    VEHICLES,
    Played,
    Task,
    exits_of,
    floor_sides,
    replanned,
    run,
    side_rows,
    sides,
    static,
)
from research.gati.queries_live import BETWEEN, find_query, with_planner
from tests.building import build_stages

UNSHED = sides(PolicyConfig("late", max_batch=1, shed=False))


def play(side: str, deadline: float, requests: int = 1000, load: float = 0.0) -> Played:
    every = sides(PolicyConfig("late", max_batch=1)) if load else UNSHED
    return run(Task(every[side], deadline, requests, load))


def points(ours: Played, theirs: Played) -> float:
    return 100 * float((ours.right - theirs.right).mean())


@pytest.mark.parametrize(("gate", "gain"), [("ResNet-18", 1.72), ("ResNet-34", 1.835), ("ResNet-50", 1.95)])
def test_table_6_caches_make_a_gate_as_much_quicker_as_reported(gate: str, gain: float) -> None:
    (timed,) = [one for one in TABLE_5[OBJECTS] if one.name == gate]
    ends, shares = exits_of(timed)
    assert timed.seconds / np.dot(ends, shares) == pytest.approx(gain)
    assert sum(shares) == pytest.approx(1.0)
    assert ends == sorted(ends)


def test_section_7_with_80_ms_four_fifths_get_the_larger_models() -> None:
    planned, found = play(static("equal"), 0.080).models, play(replanned("equal"), 0.080).models
    assert planned[STEPS[FACES]] == {"SE-LResNet18E-IR": 1.0}
    assert planned[STEPS[VEHICLES]] == {"ResNet-18": 1.0}
    assert found[STEPS[FACES]]["SE-LResNet50E-IR"] == pytest.approx(0.79, abs=0.05)
    assert found[STEPS[VEHICLES]]["ResNet-50"] == pytest.approx(0.80, abs=0.05)


def test_a_model_at_a_level_as_one_option_is_worth_more_than_levels_by_the_load_alone() -> None:
    policy = PolicyConfig("late", max_batch=1, shed=False)
    found = {side: run(Task(one, 0.075, 200, curve=True)) for side, one in floor_sides(policy, 0.96).items()}
    assert points(found[OPTIONS], found[BY_LOAD]) > 1.0
    assert points(found[OPTIONS], found[replanned("expected")]) > 0.5
    assert found[BY_LOAD].models[STEPS[OBJECTS]] == found[OPTIONS].models[STEPS[OBJECTS]] == {"ResNet-50": 1.0}
    row = side_rows(found, block=100, seed=0)[2]
    assert str(row["right in time, times levels by the load"]).startswith("1.01")


def test_accuracy_and_latency_gain_at_once_where_deadlines_are_tight_and_our_planner_is_above_both_splits() -> None:
    ours, theirs = play(replanned("expected"), 0.075), play(static("expected"), 0.075)
    assert points(ours, theirs) > 1.0
    assert theirs.seconds.mean() > 1.15 * ours.seconds.mean()
    (row,) = side_rows({static("expected"): theirs, replanned("expected"): ours}, block=100, seed=0)[1:]
    assert str(row["points over static"]).startswith(f"{points(ours, theirs):+.2f}")
    for deadline in (0.08, 0.12):
        best = max(points(play(replanned(name), deadline), theirs) for name in ("equal", "proportional"))
        assert points(play(replanned("expected"), deadline), theirs) >= best - 0.2


# Live -----------------------------------------------------------------------------------------------------------------

TEXT = """deadline_ms = 1000
planner = "expected"
version = "1"
[nodes.gate]
models = ["gate"]
accuracy = [1.0]
[nodes.odd]
models = ["quick", "slow"]
accuracy = [0.5, 0.9]
when = "argmax(gate.output) == 1"
[outputs]
scores = "odd.output"
"""
ROWS = 60


class Same(nn.Module):
    """Answers with what it is given, after so many layers that do nothing."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 2) float32` to itself."""
        found: Tensor = self.layers(x)
        return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query `parity` whose second step runs for odd rows, and rows that are even and odd in turn."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("queries")
    for name, layers in (("gate", 2), ("quick", 1), ("slow", 3)):
        build_stages(Same(layers).eval(), {"x": torch.randn(2, 2)}, root / name / "1", name=name, max_batch=2)
    (root / "parity.query.toml").write_text(TEXT)
    labels = np.arange(ROWS) % 2
    np.savez(root / "rows.npz", x=np.eye(2, dtype=np.float32)[labels], labels=labels)
    np.savez(root / "bare.npz", x=np.zeros((3, 2), np.float32))
    return root


def bench(repository: Path, *words: str) -> Mapping[str, list[dict[str, Any]]]:
    file = repository / "figures.json"
    given = ["--data", str(repository / "rows.npz"), "--json", str(file), *words]
    result = CliRunner().invoke(app, ["queries-live", str(repository), *given])
    assert result.exit_code == 0, result.output
    tables: Mapping[str, list[dict[str, Any]]] = json.loads(file.read_text())["replanning"]["tables"]
    return tables


def test_a_planner_takes_the_place_of_the_one_in_the_file_and_nothing_else_changes() -> None:
    lines = with_planner(TEXT, PlannerConfig("proportional", replan=False)).splitlines()
    assert lines[:3] == ['planner = "proportional"', "replan = false", "deadline_ms = 1000"]
    assert lines[3:] == TEXT.splitlines()[2:]


def test_all_sides_answer_all_rows_rightly_at_a_deadline_and_at_random_times(repository: Path) -> None:
    assert {path.parent.name for path in find_query(repository, None).directories} == {"gate", "quick", "slow"}
    tables = bench(repository, "--requests", "40", "--deadline-ms", "20000", "--side", replanned("expected"))
    (rows,) = tables.values()
    assert [row["side"] for row in rows] == [static("proportional"), replanned("proportional"), replanned("expected")]
    assert {row["right in time %"] for row in rows} == {"100.00"}  # zeros where no step ran: class 0
    assert all(row["odd"] == {"slow": 1.0} and row["gate"] == {"gate": 1.0} for row in rows)
    (rows,) = bench(repository, "--requests", "25", "--rate", "200", "--deadline-ms", "20000").values()
    assert len(rows) == 6


def test_useful_deadlines_follow_from_what_the_query_takes(repository: Path) -> None:
    tables = bench(repository, "--requests", "25", "--side", static("proportional"))
    assert [title.startswith("due after") for title in tables] == [True] * len(BETWEEN)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--query", "other"), "there is no query 'other'"),
        (("--deadline-ms", "0"), "give more than 0"),
        (("--data", "bare.npz"), "gives no labels"),
    ],
)
def test_what_cannot_be_asked_is_told(repository: Path, words: tuple[str, ...], message: str) -> None:
    given = ["--data", str(repository / "rows.npz")]
    if words[0] == "--data":
        given, words = [], ("--data", str(repository / words[1]))
    result = CliRunner().invoke(app, ["queries-live", str(repository), *given, *words])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
