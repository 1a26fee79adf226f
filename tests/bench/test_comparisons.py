"""The comparisons of exits off and on, run for real on a model that has no exits: both sides must come out alike."""

from pathlib import Path

import numpy as np
import pytest

from latebind.bench import exits
from latebind.bench.client import Line, decode, encode
from latebind.bench.report import lines, write_plots
from latebind.bench.subject import Setting, Subject
from latebind.domain.errors import ConfigError
from tests.server.conftest import Site, site

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
    kept, anew = Line(f"http://127.0.0.1:{site.port}"), Line(f"http://127.0.0.1:{site.port}", idle=0.0)
    ports = []
    for line in (kept, anew):
        for _ in range(2):
            reply, _ = line.ask(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert reply.status == 200
            ports.append(line.port)
        line.close()
    assert ports[0] == ports[1]
    assert ports[2] != ports[3]


def test_what_is_no_answer_has_no_outputs() -> None:
    answer = decode(503, None, b'{"error": "busy"}', 0.1)
    assert (answer.status, answer.outputs, answer.left_at) == (503, {}, -1)


def test_a_request_says_its_time_out_in_microseconds() -> None:
    assert b'"timeout": 250000' in encode(IMAGES, timeout=0.25).data
