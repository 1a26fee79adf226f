"""The page in a browser: views open without an error, and text stays text."""

import shutil
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from latebind.domain.config import FrontendConfig
from tests.server.arithmetic import one_to_one, query
from tests.server.conftest import PATIENCE, opened

pytestmark = pytest.mark.browser

VIEWS = {"/": "Goodput/s", "/time": "Requests under way", "/workers": "Who waits"}
HOSTILE = '<img src=x onerror="window.hacked=1">"\'&amp;'
CHROMIUM = "chromium", "chromium-browser", "google-chrome"
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, by Playwright; tests that want it are skipped where either is missing.

    Playwright's event loop runs in this thread until the last test of the module: nobody else can run one meanwhile.
    """
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("needs Chromium: none is on the PATH")
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=list(SWITCHES))
        yield chromium
        chromium.close()


@dataclass
class Page:
    """A page of the dashboard in a window; what goes wrong in it is in `errors`."""

    tab: Any
    url: str
    errors: list[str] = field(default_factory=list)

    def open(self, view: str = "/") -> None:
        self.tab.goto(f"{self.url}#{view}")

    def text(self, selector: str) -> str:
        return str(self.tab.inner_text(selector))

    def wait_for(self, text: str) -> None:
        """Wait until the view has this text, which may be soft or hard wrapped."""
        self.tab.locator("#view", has_text=text).wait_for(timeout=PATIENCE * 1e3)


@contextmanager
def page_of(browser: Any, port: int, *, width: int = 1280, scheme: str = "light") -> Iterator[Page]:
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = Page(tab, f"http://127.0.0.1:{port}/dashboard/")
    tab.on("console", lambda said: page.errors.append(said.text) if said.type in {"error", "warning"} else None)
    tab.on("pageerror", lambda error: page.errors.append(str(error)))
    try:
        yield page
    finally:
        tab.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_views_open_without_an_error_and_fit_their_window(browser: Any, width: int, scheme: str) -> None:
    with opened() as site, page_of(browser, site.port, width=width, scheme=scheme) as page:
        site.gateway.answered["double"] += 1
        for view, text in VIEWS.items():
            page.open(view)
            page.wait_for(text)
            assert page.tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            assert "ready" in page.text("#health")
        assert not page.errors


def test_models_whose_rows_differ_in_size_say_how_much_was_padded(browser: Any) -> None:
    with opened() as site, page_of(browser, site.port) as page:
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
    with opened() as site, page_of(browser, site.port) as page:
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
