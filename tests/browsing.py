"""A browser for tests: Chromium, by Playwright, and pages of the dashboard in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

PATIENCE = 60.0  # seconds, with a machine that has much else to do
CHROMIUM = "chromium", "chromium-browser", "google-chrome"
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str:
    """Return what has to be installed before there is a browser, "" where there is one."""
    if find_spec("playwright") is None:
        return "needs Playwright: pip install playwright"
    return "" if _program() else "needs Chromium: none is on the PATH; on Debian, apt-get install chromium"


def _program() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Chromium within the block, where nothing is `missing`.

    Playwright's event loop runs in this thread until the end of the block: nobody else can run one meanwhile.
    """
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_program(), args=list(SWITCHES))
        yield browser
        browser.close()


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

    @property
    def fits(self) -> bool:
        """Whether nothing is wider than the window, nor cut at its edge or at that of a card."""
        return bool(
            self.tab.evaluate(
                "document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('body *')]"
                ".filter((one) => !one.closest('svg') && one.scrollWidth > one.clientWidth && one.clientWidth > 0"
                " && getComputedStyle(one).display !== 'inline').length === 0"
            )
        )


@contextmanager
def page_of(browser: Any, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Page]:
    """Have a page of the dashboard of the server at `url` in a window of its own."""
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = Page(tab, f"{url}/dashboard/")
    tab.on("console", lambda said: page.errors.append(said.text) if said.type in {"error", "warning"} else None)
    tab.on("pageerror", lambda error: page.errors.append(str(error)))
    try:
        yield page
    finally:
        tab.close()
