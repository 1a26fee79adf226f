"""The page in a browser: every view opens while load runs, what it shows is what is measured, and text stays text."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from latebind.domain.config import FrontendConfig
from tests.server.arithmetic import one_to_one, query
from tests.server.conftest import PATIENCE, opened
from tests.server.dashboard.conftest import Busy, page_of

pytestmark = pytest.mark.browser

VIEWS = {
    "/": "Goodput/s",
    "/model/cars": "stage 12",
    "/query/traffic": "Answered by",
    "/time": "Requests under way",
    "/workers": "Who waits",
    "/requests": "The last that were followed",
}
EIGHT = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1.0] * 8}
FOLLOWED = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
HOSTILE = '<img src=x onerror="window.hacked=1">"\'&amp;'


def fetched(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as reply:
        return str(reply.read().decode())


def metric(text: str, name: str, **labels: str) -> float:
    samples = (sample for family in parse(text) for sample in family.samples)
    return next(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def quantile(text: str, model: str, share: float) -> float:
    """Return a percentile in ms as Prometheus works it out of the buckets."""
    samples = [sample for family in parse(text) for sample in family.samples]
    found = [s for s in samples if s.name == "latebind_latency_seconds_bucket" and s.labels["model"] == model]
    wanted, below, before = share * found[-1].value, 0.0, 0.0
    for bucket in found:
        bound = float(bucket.labels["le"])
        if bucket.value >= wanted:
            return 1e3 * (below + (bound - below) * (wanted - before) / (bucket.value - before))
        below, before = bound, bucket.value
    raise AssertionError("the last bucket has all")


def number(text: str) -> float:
    """Return the number in front; times are in ms."""
    value, *unit = text.split()
    return float(value.replace(",", "")) * (1e3 if unit == ["s"] else 1.0)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_view_opens_under_load_without_an_error_and_fits_its_window(
    browser: Any, busy: Busy, width: int, scheme: str
) -> None:
    with page_of(browser, busy.port, width=width, scheme=scheme) as page:
        for view, text in VIEWS.items():
            page.open(view)
            page.wait_for(text)
            assert page.tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            assert "ready" in page.text("#health")
        page.open("/model/cars")
        page.wait_until("document.querySelectorAll('.plot .main-svg').length > 0")
        assert not page.errors


def test_what_it_shows_is_what_the_metrics_tell(browser: Any, busy: Busy) -> None:
    with page_of(browser, busy.port) as page:
        page.open("/model/cars")
        page.wait_for(re.compile(r"stage 12.*\d+ left", re.S))
        busy.rest()
        text = fetched(busy.port, "/metrics")
        answered = metric(text, "latebind_requests_total", model="cars", outcome="answered")
        page.tab.locator(".key dd", has_text=re.compile(f"^{int(answered):,}$")).first.wait_for(timeout=PATIENCE * 1e3)
        assert number(page.key("Answered")) == answered
        assert number(page.key("Under way")) == metric(text, "latebind_pending_requests", model="cars") == 0
        for share in (0.5, 0.99):
            shown = number(page.key(f"p{100 * share:.0f} since the start"))
            assert shown == pytest.approx(quantile(text, "cars", share), rel=0.005, abs=0.005)
        stages = page.tab.locator(".stage .figures").all_inner_texts()
        left = [metric(text, "latebind_left_at_total", model="cars", stage=str(stage)) for stage in range(13)]
        assert [number(stage) for stage in stages] == left

        page.open("/query/traffic")
        page.wait_for("Answered by")
        row = page.tab.locator("tr", has_text="gate").locator("td").all_inner_texts()
        steps = metric(text, "latebind_query_step_seconds_count", model="traffic", step="gate")
        assert number(row[1]) == steps
        spent = metric(text, "latebind_query_step_seconds_sum", model="traffic", step="gate") / steps
        assert number(row[3]) == pytest.approx(1e3 * spent, rel=0.005, abs=0.005)


def test_one_request_is_explained_from_admission_to_answer(browser: Any, busy: Busy) -> None:
    busy.rest()
    body = json.dumps({"id": HOSTILE, "inputs": [EIGHT]}).encode()
    call = urllib.request.Request(f"http://127.0.0.1:{busy.port}/v2/models/cars/infer", body, FOLLOWED)
    with urllib.request.urlopen(call, timeout=PATIENCE) as reply:
        assert reply.status == 200
    with page_of(browser, busy.port) as page:
        page.open("/requests")
        page.wait_for(re.compile(r"Request \w+ to cars"))
        names = page.tab.locator(".fall > div > span:first-child").all_inner_texts()
        assert names[:2] == ["receive", "wait"]
        assert [name.split()[1] for name in names if name.startswith("stage ")] == [str(i) for i in range(13)]
        assert names[-1] == "reply"
        assert not page.errors


def test_names_are_shown_as_text_whatever_they_are(browser: Any) -> None:
    with opened() as site:
        models = (one_to_one(HOSTILE, "float64"), one_to_one("scalar", "float64"))
        site.gateway.models = {spec.name: spec for spec in (*models, query("traffic" + HOSTILE))}
        site.gateway.answered[HOSTILE] += 1
        with page_of(browser, site.port) as page:
            for view in ("/", f"/model/{urllib.parse.quote(HOSTILE, safe='')}", "/time"):
                page.open(view)
                page.wait_for(HOSTILE)
            assert page.tab.evaluate("window.hacked") is None
            assert page.tab.locator("#view img").count() == 0
            assert not page.errors


def test_where_a_token_is_needed_the_page_asks_for_it(browser: Any, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    token.chmod(0o600)
    with opened(FrontendConfig(port=0, token_file=str(token))) as site, page_of(browser, site.port) as page:
        page.open()
        page.tab.fill("#token", "a-token-of-some-length")
        page.tab.click("form button")
        page.wait_for("Goodput/s")
        page.tab.locator("#token").wait_for(state="detached", timeout=PATIENCE * 1e3)
