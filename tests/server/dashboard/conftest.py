"""A browser, and a frontend with a real engine behind it that is under load for as long as a test wants."""

import asyncio
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from latebind.domain.config import EngineConfig
from tests.querying import rows_going
from tests.server.conftest import PATIENCE
from tests.server.real import binary_body, read_reply, real_frontend, written

CHROMIUM = "chromium", "chromium-browser", "google-chrome"
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)
ASKED = ("traffic", "fork", "cars", "cars", "gate")


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

    def wait_for(self, text: str | re.Pattern[str]) -> None:
        """Wait until the view has this text, which may be soft or hard wrapped."""
        self.tab.locator("#view", has_text=text).wait_for(timeout=PATIENCE * 1e3)

    def wait_until(self, script: str) -> None:
        """Wait until a script is true."""
        end = time.monotonic() + 2 * PATIENCE
        while not self.tab.evaluate(script):
            assert time.monotonic() < end, script
            self.tab.wait_for_timeout(50)

    def key(self, name: str) -> str:
        """Return the value of a key figure."""
        return str(self.figure(name).inner_text())

    def figure(self, name: str) -> Any:
        """Return where a key figure stands."""
        return self.tab.locator(".key div", has=self.tab.get_by_text(name, exact=True)).locator("dd")


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


class Busy:
    """A frontend whose engine is asked without a pause between `begin` and `rest`."""

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.port = port
        self._loop = loop
        self._resting = False
        self._asking: list[Future[None]] = []

    def begin(self) -> None:
        """Have clients ask."""
        self._resting = False
        self._asking = [asyncio.run_coroutine_threadsafe(self._ask(name), self._loop) for name in ASKED]

    def rest(self) -> None:
        """Return when nobody asks any more and all have been answered."""
        self._resting = True
        while self._asking:
            self._asking.pop().result(PATIENCE)

    async def _ask(self, name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        turn = 0
        while not self._resting:
            turn += 1
            body, json_bytes = binary_body({"x": rows_going([turn % 3], seed=turn)})
            writer.writelines(written(name, [body], json_bytes, chunked=False))
            assert (await read_reply(reader)).status == 200
            await asyncio.sleep(0.01)
        writer.close()


@pytest.fixture(scope="session")
def engine_frontend(queried: Path) -> Iterator[Busy]:
    """A frontend to `queried` that nobody asks."""
    opened: Future[tuple[int, asyncio.AbstractEventLoop]] = Future()
    done = threading.Event()

    async def serve() -> None:
        async with real_frontend(queried, engine=EngineConfig(workers=2)) as (_, frontend):
            opened.set_result((frontend.port, asyncio.get_running_loop()))
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        yield Busy(*opened.result(200.0))
    finally:
        done.set()
        thread.join(30.0)


@pytest.fixture
def busy(engine_frontend: Busy) -> Iterator[Busy]:
    """A frontend to `queried` under load, for as long as a test takes."""
    engine_frontend.begin()
    try:
        yield engine_frontend
    finally:
        engine_frontend.rest()
