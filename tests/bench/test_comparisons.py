"""Comparisons of exits off and on: for real on a model without any, so both come out alike; what is made of answers."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from latebind.bench import exits
from latebind.bench.client import Answered, Caller, decode, encode
from latebind.bench.exits import Compared, Side
from latebind.bench.report import lines, write_plots
from latebind.bench.statistics import ratio_of_means
from latebind.bench.subject import Setting, Subject
from latebind.cli.main import app
from latebind.domain.errors import ConfigError
from tests.building import made_once
from tests.server.conftest import Site, site
from tests.server.test_lengths import built

__all__ = ["site"]

RANDOM = np.random.default_rng(0)
IMAGES = {"image": RANDOM.standard_normal((60, 3, 8, 8)).astype(np.float32)}
LABELS = RANDOM.integers(0, 5, 60)


def test_without_learned_caches_both_servers_give_the_same_bits(models: Path) -> None:
    report = exits.closed(Subject(models, "chain", IMAGES, LABELS), setting=Setting())
    assert report.identical
    assert report.fidelity == 1.0
    off, on = report.rows()
    assert off["accuracy"] == on["accuracy"] != ""
    assert len(report.on.seconds) == len(report.off.seconds) == 60
    gain = report.gain(seed=0)
    assert gain.low <= gain.value <= gain.high


def test_a_load_run_answers_every_request(models: Path) -> None:
    report, rate = exits.open_loop(Subject(models, "chain", IMAGES, LABELS), requests=80, rate=200, seed=1)
    assert rate == 200
    assert [row["answered"] for row in report.rows()] == ["100.0%", "100.0%"]
    assert report.fidelity == 1.0
    assert sum(report.on.left_at.values()) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def varying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose rows differ in size: a tagger of L=1..40, and one of images, H=4..24:4 and W=1..9."""
    return made_once(tmp_path_factory, "lengths", built)


def load(folder: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "load", str(folder), "--requests", "60", "--rate", "200", *words])
    return result.exit_code, " ".join(result.output.split())


def test_rows_of_drawn_sizes_are_sent_and_latencies_told_by_length(varying: Path, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    code, output = load(varying, "--model", "tagger", "--dim", "L=3..30", "--json", str(told))
    assert code == 0, output
    assert "latency by length" in output
    rows = json.loads(told.read_text())["lengths"]
    assert sum(row["requests"] for row in rows) == 60
    assert {row["answered"] for row in rows} == {"100.0%"}
    ends = [int(end) for row in rows for end in row["length"].split(" to ")]
    assert ends == sorted(ends)
    assert 3 <= ends[0] < ends[-1] <= 30


def test_rows_of_sizes_in_a_file_are_sent(varying: Path, tmp_path: Path) -> None:
    told, sizes = tmp_path / "told.json", tmp_path / "sizes.txt"
    sizes.write_text("8 3\n\n24, 9\n")
    code, output = load(varying, "--model", "enlarges", "--lengths", str(sizes), "--json", str(told))
    assert code == 0, output
    assert [row["length"] for row in json.loads(told.read_text())["lengths"]] == ["24", "216"]


@pytest.mark.parametrize(
    ("words", "lines", "said"),
    [
        ("--model tagger --dim K=3..9", "", "K=3..9: tagger has L=1..40"),
        ("--model tagger --dim L=3..41", "", "L=3..41: tagger has L=1..40"),
        ("--model enlarges --dim H=6..24:2", "", "enlarges has H=4..24:4, W=1..9"),
        ("--model tagger --lengths FILE", "7\nseven\n", "line 2: 'seven': write L of 1 to 40"),
        ("--model enlarges --lengths FILE", "6 3\n", "write H of 4 to 24 in steps of 4 and W of 1 to 9"),
        ("--model tagger --lengths FILE", "\n", "has no sizes"),
        ("--model tagger --lengths FILE --dim L=3..9", "7\n", "give one of them"),
        ("--model tagger --data FILE --dim L=3..9", "", "leave --dim and --lengths out"),
    ],
)
def test_sizes_that_cannot_be_sent_are_refused(
    varying: Path, tmp_path: Path, words: str, lines: str, said: str
) -> None:
    file = tmp_path / "sizes.txt"
    file.write_text(lines)
    code, output = load(varying, *words.replace("FILE", str(file)).split())
    assert code == 2
    assert said in output


def test_a_model_whose_rows_are_alike_is_asked_for_rows_of_data(models: Path) -> None:
    code, output = load(models, "--model", "chain")
    assert code == 2
    assert "give rows to send, --data" in output


def test_a_page_of_plots_fetches_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    figure = lines("a <plot>", {"one": ([1, 2], [3, 4])}, x="x", y="y")
    write_plots(page, "a <title>", "text", [[{"a <cell>": 1.5}]], [figure])
    text = page.read_text()
    assert "a &lt;title&gt;" in text
    assert "a &lt;cell&gt;" in text
    assert 'src="http' not in text
    assert "Plotly.newPlot" in text


def test_data_that_the_model_does_not_take_is_told(models: Path) -> None:
    with pytest.raises(ConfigError, match="does not answer the data given"):
        exits.open_loop(Subject(models, "chain", {"picture": IMAGES["image"]}), requests=4, rate=100)


def test_a_connection_that_was_idle_for_long_is_made_anew(site: Site) -> None:
    kept, anew = Caller(f"http://127.0.0.1:{site.port}"), Caller(f"http://127.0.0.1:{site.port}", idle=0.0)
    ports = []
    for line in (kept, anew):
        for _ in range(2):
            reply, _ = line.ask(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert reply.status == 200
            ports.append(line.port)
        line.close()
    assert ports[0] == ports[1]
    assert ports[2] != ports[3]


def test_what_is_no_answer_has_no_outputs_and_a_request_says_its_time_out_in_microseconds() -> None:
    answer = decode(503, None, b'{"error": "busy"}', 0.1)
    assert (answer.status, answer.outputs, answer.left_at) == (503, {}, -1)
    assert b'"timeout":250000' in encode(IMAGES, timeout=0.25).data


def side(classes: list[int], stages: list[int]) -> Side:
    """Return answers of these classes that left at these stages; what has class -1 was refused."""
    scores = np.eye(3, dtype=np.float32)
    return Side(
        [
            Answered(503, 0.001, {}, -1) if one < 0 else Answered(200, 0.001, {"y": scores[None, one]}, stage)
            for one, stage in zip(classes, stages, strict=True)
        ],
        took=1.0,
    )


def test_what_the_other_side_refused_is_not_counted_against_an_exit() -> None:
    found = Compared(side([1, 1, -1, -1], [3, 3, -1, -1]), side([1, 2, 1, -1], [0, 0, 0, -1]), np.array([1, 1, 1, 1]))
    assert found.fidelity == pytest.approx(0.5)
    (row,) = found.exit_rows()
    assert (row["share"], row["fidelity"]) == ("100.0%", "0.500")
    assert [(row["answered"], row["accuracy"]) for row in found.rows()] == [("50.0%", "1.0000"), ("75.0%", "0.6667")]


def test_an_exit_of_which_the_other_side_answered_none_has_no_fidelity() -> None:
    found = Compared(side([-1, 1], [-1, 3]), side([1, 1], [0, 3]))
    assert [row["fidelity"] for row in found.exit_rows()] == ["nan", "1.000"]


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        above, below = random.gamma(4, 0.5, 400), random.gamma(4, 0.25, 400)
        interval = ratio_of_means(above, below, block=10, seed=seed)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= 2.0 <= interval.high
    assert covered >= 88


@pytest.mark.filterwarnings("error")
def test_where_some_draws_have_nothing_below_the_interval_has_no_upper_end() -> None:
    interval = ratio_of_means(np.ones(3), np.array([3.0, 0.0, 0.0]))
    assert (interval.value, interval.low, interval.high) == pytest.approx((1.0, 1 / 3, inf))
