"""The live bench of queries: deadlines are stated by a rule, sides get the same rows, every part prints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.query import Node, PlannerConfig, Query
from research.__main__ import app
from research.gati.queries_live import (
    BETWEEN,
    BY_CLIENTS,
    MOST,
    QUERY,
    Carried,
    Overhead,
    between,
    find_query,
    longest,
    slower,
    step_name,
    throughput_rows,
    with_planner,
)
from tests.building import build_stages

TEXT = """deadline_ms = 1000
planner = "expected"
price = 3
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
PARITY = [0.0, 1.0]


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
    return root


def bench(repository: Path, *words: str) -> dict[str, list[dict[str, Any]]]:
    file = repository / "figures.json"
    given = ["--data", str(repository / "rows.npz"), "--json", str(file), *words]
    result = CliRunner().invoke(app, ["queries-live", str(repository), *given])
    assert result.exit_code == 0, result.output
    figures = json.loads(file.read_text())
    return {title: rows for part in Part for title, rows in figures.get(part, {"tables": {}})["tables"].items()}


Part = ("replanning", "overhead")


def query(*nodes: Node) -> Query:
    tensors = (TensorSpec("x", "float32", (1,)),)
    return Query(ModelSpec("q", "1", tensors, tensors, len(nodes), 1), nodes)


def test_the_longest_path_goes_through_the_slower_of_two_branches() -> None:
    diamond = [
        Node(name, (name,), (1.0,), after) for name, after in (("a", ()), ("b", (0,)), ("c", (0,)), ("d", (1, 2)))
    ]
    assert longest(query(*diamond), [1.0, 5.0, 2.0, 3.0]) == 9.0


def test_deadlines_are_too_short_for_a_plan_by_less_than_caches_save_and_than_models_differ() -> None:
    gate = Node("gate", ("gate",), (1.0,))
    family = Node("family", ("small", "medium", "large"), (0.1, 0.2, 0.3), (0,))
    differ = slower(query(gate, family), {"gate": 10.0, "small": 1.0, "medium": 2.0, "large": 6.0})
    assert differ == 4.0
    assert between(17.0, saved=2.0, slower=differ) == (15.5, 16.0, 16.5)
    assert between(17.0, saved=8.0, slower=differ) == (14.0, 15.0, 16.0)
    assert between(17.0, saved=0.0, slower=differ) == (14.0, 15.0, 16.0)
    assert between(17.0, saved=0.001, slower=differ) == pytest.approx((16.49, 16.66, 16.83))


def test_a_planner_takes_the_place_of_the_one_in_the_file_and_nothing_else_changes() -> None:
    lines = with_planner(TEXT, PlannerConfig("proportional", replan=False)).splitlines()
    assert lines[:3] == ['planner = "proportional"', "replan = false", "deadline_ms = 1000"]
    assert lines[3:] == TEXT.splitlines()[3:]


def test_the_only_query_of_a_folder_need_not_be_named(repository: Path) -> None:
    served = find_query(repository, None)
    assert served.name == "parity"
    assert {path.parent.name for path in served.directories} == {"gate", "quick", "slow"}


def test_all_sides_answer_all_rows_rightly_at_each_deadline(repository: Path) -> None:
    page = repository / "page.html"
    words = ["--part", "replanning", "--requests", "40", "--deadline-ms", "20000", "--deadline-ms", "30000"]
    tables = bench(repository, *words, "--page", str(page))
    for title in ("due after 20000.000 ms", "due after 30000.000 ms"):
        assert [row["side"] for row in tables[title]] == ["static", "replanned", "expected"]
        assert {row["accuracy"] for row in tables[title]} == {"1.0000"}  # zeros where no step ran: class 0
        assert {row["points more than static"] for row in tables[title]} == {"+0.00 [+0.00, +0.00]"}
    chosen = tables["which models answered"]
    assert all(row["odd"] == {"slow": 1.0} and row["gate"] == {"gate": 1.0} for row in chosen)
    assert "Accuracy against latency" in page.read_text()


def test_deadlines_follow_from_what_models_take_and_requests_may_come_at_random_times(repository: Path) -> None:
    tables = bench(repository, "--part", "replanning", "--requests", "25", "--rate", "200")
    timed = {row["model"]: row["median ms in the engine"] for row in tables["models by themselves, to their ends"]}
    assert {"gate", "quick", "slow", "(the query, beyond its models)"} < set(timed)
    assert min(timed[model] for model in ("gate", "quick", "slow")) > 0
    deadlines = [rows for title, rows in tables.items() if title.startswith("due after")]
    assert len(deadlines) == len(BETWEEN)
    # On a machine that is held up, steps of some requests do not begin before such deadlines.
    assert min(float(row["accuracy"]) for rows in deadlines for row in rows) > 0.5


def test_a_query_is_held_against_its_models_alone(repository: Path) -> None:
    words = ["--part", "overhead", "--requests", "60", "--rounds", "2", "--clients", "3"]
    latency, through, cpu = bench(repository, *words).values()
    assert [row["seconds"] for row in latency] == ["at the client", "in the engine"]
    assert all(float(row["its models, added, mean ms"]) > 0 for row in latency)
    asked = ["query", "its models, called by clients", "its steps alone", "query", *["the slower step alone"] * 2]
    assert [str(row["asked for"]).split(", a")[0] for row in through] == [*asked, "its steps alone"]
    assert [row["workers"] for row in through] == [1, 1, 1, 2, 1, 2, 2]
    assert all(float(row["answers a second"]) > 0 for row in through)
    assert [row["asked for"] for row in cpu] == ["query", "step 1 alone", "step 2 alone"] * 2


def carried(rounds: int = 3, **answers: float) -> Carried:
    """What takes a core so many seconds an answer, by the clock and by CPU time."""
    seconds = {QUERY: answers["query"], step_name(0): answers["first"], step_name(1): answers["second"]}
    rates = {name: [1.0 / one] * rounds for name, one in seconds.items()} | {BY_CLIENTS: [1.0] * rounds}
    cpu, outside = ({name: [one] * rounds for name, one in seconds.items()} for _ in range(2))
    return Carried(rates, cpu, outside)


def ratios(found: Overhead) -> dict[tuple[str, object], str]:
    return {
        (str(row["asked for"]), row["workers"]): str(row["the query has of it"])
        for row in throughput_rows(found, seed=0)
    }


def test_the_most_that_one_worker_carries_counts_each_step_by_how_many_rows_run_it() -> None:
    one = carried(query=0.0125, first=0.005, second=0.01)  # 5 ms, and half the time 10 ms more
    found = Overhead(one=one, each=carried(query=0.01, first=0.0025, second=0.005), shares=(1.0, 0.5))
    assert ratios(found)[MOST, 1].startswith("0.800 ")
    assert ratios(found)[MOST, 2].startswith("0.500 ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--query", "other"), "there is no query 'other'"),
        (("--deadline-ms", "0"), "give more than 0"),
    ],
)
def test_what_cannot_be_asked_is_told(repository: Path, words: tuple[str, ...], message: str) -> None:
    given = ["queries-live", str(repository), "--data", str(repository / "rows.npz"), *words]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_rows_without_labels_are_told(repository: Path) -> None:
    np.savez(repository / "bare.npz", x=np.zeros((3, 2), np.float32))
    result = CliRunner().invoke(app, ["queries-live", str(repository), "--data", str(repository / "bare.npz")])
    assert result.exit_code == 2
    assert "gives no labels" in result.output
