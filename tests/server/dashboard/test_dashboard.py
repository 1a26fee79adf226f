"""The dashboard as any HTTP client sees it: what it tells, what it asks of the engine, and that it may be off."""

import asyncio
import time
from typing import Any

import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import Unavailable
from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.gateway import Snapshot
from latebind.server.service import Service
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import PATIENCE, Site, opened, scalar
from tests.server.test_metrics import value


class Counted(Arithmetic):
    """Counts how often its figures are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self._read = asyncio.Queue[int]()

    async def until_read(self, times: int) -> None:
        """Return once figures have been read so often in all."""
        async with asyncio.timeout(PATIENCE):
            while self.reads < times:
                await self._read.get()

    async def metrics(self) -> Snapshot:
        self.reads += 1
        self._read.put_nowait(self.reads)
        if not self.is_live:
            raise Unavailable("the engine has ended")
        return {"models": {}}


@pytest.mark.parametrize("path", ["", "/", "/data", "/picture", "/main.js"])
def test_a_frontend_without_one_says_how_to_turn_it_on(path: str) -> None:
    with opened(FrontendConfig(port=0, dashboard=False)) as site:
        reply = site.get("/dashboard" + path)
        assert reply.status == 403
        assert "--dashboard" in reply.error


def test_the_page_is_in_a_folder_and_its_paths_are_relative(site: Site) -> None:
    assert site.get("/dashboard").headers["location"] == "dashboard/"
    page = site.get("/dashboard/").body.decode()
    assert 'src="main.js"' in page
    assert "/dashboard" not in page


@pytest.mark.parametrize("name", ["nowhere.js", "..%2ffiles.py", "../files.py", "%2e%2e/watch.py", "page", ".js"])
def test_nothing_but_the_files_of_the_page_is_to_be_had(site: Site, name: str) -> None:
    assert site.get("/dashboard/" + name).status == 404


def test_its_figures_are_those_of_the_metrics() -> None:
    with opened() as site:
        for number in range(3):
            site.post("/v2/models/scalar/infer", {"inputs": [scalar(float(number))]})
        told = site.get("/dashboard/data").json()
        text = site.get("/metrics").body
        model = told["snapshot"]["models"]["scalar"]
        assert model["requests"]["answered"] == 3
        assert model["requests"]["answered"] == value(
            text, "latebind_requests_total", model="scalar", version="1", outcome="answered"
        )
        assert {entry["name"]: entry["state"] for entry in told["models"]}["scalar"] == "READY"
        assert told["server"] == {"version": told["server"]["version"], "live": True, "ready": True}


def test_the_history_goes_on_behind_the_number_that_a_page_knows() -> None:
    with opened() as site:
        site.get("/dashboard/data")
        site.post("/v2/models/scalar/infer", {"inputs": [scalar(1.0)]})
        end, found = time.monotonic() + PATIENCE, list[Any]()
        while not found:
            assert time.monotonic() < end
            time.sleep(0.05)
            rows = site.get("/dashboard/data").json()["rows"]
            found = [row["models"]["scalar"][0] for row in rows if row["models"]]
        assert found == [1]
        last = rows[-1]["number"]
        assert all(row["number"] > last for row in site.get(f"/dashboard/data/{last}").json()["rows"])


def test_when_nobody_looks_any_more_the_watch_ends_and_begins_again_with_the_next_look() -> None:
    async def test() -> None:
        gateway = Counted()
        watch = Dashboard(Service(gateway), every=0.001, linger=0.02)
        await watch.look()
        assert watch.watching is not None
        await asyncio.wait_for(watch.watching, PATIENCE)
        assert watch.watching is None
        reads = gateway.reads
        await watch.look()
        assert gateway.reads == reads + 1
        await watch.close()

    asyncio.run(test())


def test_without_an_engine_the_last_figures_stand_and_the_watch_goes_on() -> None:
    async def test() -> None:
        gateway = Counted()
        watch = Dashboard(Service(gateway), every=0.001)
        await watch.look()
        gateway.is_live = False
        await gateway.until_read(gateway.reads + 3)
        assert watch.snapshot == {"models": {}}
        gateway.is_live = True
        rows = len(watch.history.since(0))
        await gateway.until_read(gateway.reads + 2)  # what was read before that has been kept
        assert len(watch.history.since(0)) > rows
        await watch.close()

    asyncio.run(test())


def test_an_engine_that_does_not_answer_does_not_keep_the_frontend_from_closing() -> None:
    class Silent(Counted):
        async def metrics(self) -> Snapshot:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

    async def test() -> None:
        watch = Dashboard(Service(Silent()), patience=0.01)
        looking = asyncio.create_task(watch.look())
        await asyncio.sleep(0)
        await asyncio.wait_for(watch.close(), PATIENCE)
        await asyncio.wait_for(looking, PATIENCE)
        assert watch.watching is None

    asyncio.run(test())
