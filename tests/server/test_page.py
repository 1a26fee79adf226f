"""The page in a browser: troubles first, views open without an error, nothing is cut, and text stays text."""

import re
import urllib.parse
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.model import StepInputs, StepSpec
from latebind.forks.client import VARIABLE
from tests.browsing import Page, chromium, missing, page_of
from tests.building import made_once
from tests.server.arithmetic import one_to_one, query
from tests.server.conftest import PATIENCE, Site, opened
from tests.server.screens import SCHEMES, SIZES, TORN, build, torn, troubled

pytestmark = pytest.mark.browser

VIEWS = {"/": "All is well", "/time": "Requests under way", "/workers": "Who waits"}
HOSTILE = '<img src=x onerror="window.hacked=1">"\'&amp;'
NAMED = [  # how each trouble of the server that is `troubled` begins
    rf"{re.escape(TORN)}: not served",
    r"bulk: [\d,]+ refused in .*; one call had more rows than it has slots",
    r"large: [\d,]+ (refused|late|refused or late) in .*; it needs \d+\sMB of \d+\sMB",
    r"The engine died once in ",
    r"[\d,]+ calls were invalid \(400\) in ",
]
SEEN = """item => { const {top, bottom, left, right} = item.getBoundingClientRect();
return top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth }"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, by Playwright; tests that want it are skipped where either is missing."""
    if told := missing():
        pytest.skip(told)
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def in_trouble(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server with several troubles, which forks its own engine, so that this can be found."""
    models = torn(made_once(tmp_path_factory, "screens", build), tmp_path_factory.mktemp("torn") / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE)
        with troubled(models) as url:
            yield url


def page_at(browser: Any, site: Site, **window: Any) -> AbstractContextManager[Page]:
    return page_of(browser, f"http://127.0.0.1:{site.port}", **window)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_trouble_is_named_with_its_cure_on_the_first_screen(
    browser: Any, in_trouble: str, size: str, scheme: str
) -> None:
    width, height = SIZES[size]
    with page_of(browser, in_trouble, width=width, height=height, scheme=scheme) as page:
        page.open()
        for begins in NAMED:
            item = page.tab.locator(".troubles li", has_text=re.compile(f"^{begins}")).first
            item.wait_for(timeout=PATIENCE * 1e3)
            assert item.evaluate(SEEN), begins
            assert len(item.locator("p").inner_text()) > 20, begins
        assert page.fits
        assert "troubles" in page.text("#health")
        assert {*page.tab.locator("section.card tbody a").all_inner_texts()[:2]} == {"bulk", "large"}
        assert not page.errors


def test_what_nobody_asks_is_folded_on_a_narrow_page(browser: Any) -> None:
    for width, is_open in ((390, False), (1280, True)):
        with opened() as site, page_at(browser, site, width=width) as page:
            site.gateway.answered["double"] += 1
            page.open()
            page.wait_for("models without requests")
            page.tab.locator("section.card a", has_text="double").wait_for(timeout=PATIENCE * 1e3)
            assert page.tab.locator("details tr", has_text="scalar").is_visible() is is_open
            assert page.fits


def test_the_worst_models_come_first_and_say_how_requests_ended_by_kind(browser: Any) -> None:
    with opened() as site, page_at(browser, site) as page:
        site.gateway.answered.update({"double": 900, "half": 5, "scalar": 5})
        page.open()
        page.wait_for("All is well: 910 requests in the last")
        first = page.tab.locator("section.card tbody tr").first
        assert first.inner_text().startswith("double")
        assert "refuses" not in page.text("#view")
        site.gateway.ends["half"] = {"refused_late": 70, "refused_full": 3}
        site.gateway.beyond.add("scalar")
        site.gateway.answered["scalar"] += 5
        page.wait_for("half: 70 refused in")
        page.wait_for("half: 3 refused in")
        first.filter(has_text="half").wait_for(timeout=PATIENCE * 1e3)
        assert "refuses" in first.inner_text()
        assert page.text("#health").startswith("2 troubles")
        page.wait_for(">0.01 s")
        page.open("/model/half")
        page.wait_for("Refused, would be late")
        assert "70 refused in" in page.text(".troubles")
        assert "Failed\n" not in page.text("dl")
        assert not page.errors


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_views_open_without_an_error_and_fit_their_window(browser: Any, width: int, scheme: str) -> None:
    with opened() as site, page_at(browser, site, width=width, scheme=scheme) as page:
        site.gateway.answered["double"] += 1
        for view, text in VIEWS.items():
            page.open(view)
            page.wait_for(text)
            assert page.fits, view
            assert "all is well" in page.text("#health")
        assert not page.errors


def test_models_whose_rows_differ_in_size_say_how_much_was_padded(browser: Any) -> None:
    with opened() as site, page_at(browser, site) as page:
        site.gateway.answered["double"] += 1
        page.open()
        page.wait_for("Goodput/s")
        assert "Padding" not in page.text("#view thead")
        site.gateway.answered["text"] += 1
        page.tab.locator("tr", has_text="1.50").wait_for(timeout=PATIENCE * 1e3)
        assert "Padding" in page.text("#view thead")
        page.open("/model/text")
        page.wait_for("Padding ratio")
        page.wait_for("1.50")
        assert not page.errors


def test_requests_that_were_followed_say_how_large_their_rows_are(browser: Any) -> None:
    with opened() as site, page_at(browser, site) as page:
        rows = {"inputs": [{"name": "x", "shape": [1, 2, 7], "datatype": "FP32", "data": [0.5] * 14}]}
        sampled = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        assert site.post("/v2/models/sound/infer", rows, sampled).status == 200
        page.open("/requests")
        page.wait_for("of T=7")
        assert not page.errors


def test_names_are_shown_as_text_whatever_they_are(browser: Any) -> None:
    with opened() as site:
        models = (one_to_one(HOSTILE, "float64"), one_to_one("scalar", "float64"))
        site.gateway.models = {spec.name: spec for spec in (*models, query("traffic" + HOSTILE))}
        site.gateway.answered[HOSTILE] += 1
        with page_at(browser, site) as page:
            for view in ("/", f"/model/{urllib.parse.quote(HOSTILE, safe='')}", "/time"):
                page.open(view)
                page.wait_for(HOSTILE)
            assert page.tab.evaluate("window.hacked") is None
            assert page.tab.locator("#view img").count() == 0
            assert not page.errors


def test_what_was_served_after_the_figures_were_taken_is_shown_as_soon_as_it_has_some(browser: Any) -> None:
    with opened() as site, page_at(browser, site) as page:
        for view, name, text in (("/query/traffic", "traffic", "gate"), ("/model/double", "double", "stage 0")):
            page.open(view)
            page.wait_for(f"{name} is not served")
            site.gateway.answered[name] += 1
            page.wait_for(text)
            assert page.text("#view h2").startswith(name)
            assert "not served" not in page.text("#view")
        assert not page.errors


def test_a_model_that_went_while_the_page_was_open_ends_nothing(browser: Any) -> None:
    with opened() as site, page_at(browser, site) as page:
        site.gateway.answered.update({"double": 5, "half": 5})
        page.open()
        rows = page.tab.locator("section.card tbody tr")
        rows.filter(has_text="half").wait_for(timeout=PATIENCE * 1e3)
        site.gateway.answered["half"] += 5
        rows.filter(has_text=re.compile("half.* ms")).wait_for(timeout=PATIENCE * 1e3)  # its rows have a rate and p50
        del site.gateway.answered["half"]
        page.tab.locator("tr", has=page.tab.locator("span:not(:has(a))", has_text=re.compile("^half"))).wait_for(
            timeout=PATIENCE * 1e3
        )
        site.gateway.answered["double"] += 1234
        page.tab.locator("tr", has_text="1,239").wait_for(timeout=PATIENCE * 1e3)
        assert not page.errors


def test_figures_that_a_page_fails_to_show_are_reported_and_the_next_are_shown(browser: Any) -> None:
    with opened() as site, page_at(browser, site) as page:
        site.gateway.answered["double"] += 1
        broken = site.get("/dashboard/data").json()
        broken["snapshot"]["models"]["double"] = {}
        page.tab.route("**/dashboard/data", lambda route: route.fulfill(json=broken))
        page.open("/model/double")
        page.tab.locator("#health", has_text="this page failed to show them").wait_for(timeout=PATIENCE * 1e3)
        assert page.errors
        page.tab.unroute("**/dashboard/data")
        page.wait_for("stage 0")
        page.tab.locator("#health", has_text="all is well").wait_for(timeout=PATIENCE * 1e3)


def test_long_names_of_steps_wrap_within_their_boxes(browser: Any) -> None:
    with opened() as site:
        name = "sentiment-of-product-reviews-in-any-language"
        steps = [StepSpec(name + str(step), ("scalar",), (), (StepInputs(("x",)),)) for step in range(2)]
        site.gateway.models = {spec.name: spec for spec in (one_to_one("scalar", "float64"), query("asking", *steps))}
        site.gateway.answered["asking"] += 1
        with page_at(browser, site, width=390) as page:
            page.open("/query/asking")
            page.tab.locator("svg text", has_text=name[:10]).first.wait_for(timeout=PATIENCE * 1e3)
            boxes = page.tab.evaluate(
                "[...document.querySelectorAll('svg > g')].filter((one) => one.querySelector('.box')).map((one) => ["
                "one.querySelector('.box').getBoundingClientRect().right,"
                "Math.max(...[...one.querySelectorAll('text')].map((text) => text.getBoundingClientRect().right)),"
                "[...one.querySelectorAll('text')].map((text) => text.textContent).join('')])"
            )
            assert len(boxes) == len(steps)
            for step, (right, text, said) in zip(steps, boxes, strict=True):
                assert text <= right
                assert said.startswith(step.name)
            assert page.fits


def test_where_a_token_is_needed_the_page_asks_for_it(browser: Any, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    token.chmod(0o600)
    with opened(FrontendConfig(port=0, token_file=str(token))) as site, page_at(browser, site) as page:
        page.open()
        page.tab.fill("#token", "a-token-of-some-length")
        page.tab.click("form button")
        page.wait_for("Goodput/s")
        page.tab.locator("#token").wait_for(state="detached", timeout=PATIENCE * 1e3)
