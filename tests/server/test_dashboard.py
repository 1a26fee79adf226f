"""The dashboard as any HTTP client sees it: what it tells, what it asks of the engine, and that it may be off."""

import asyncio
import time
from itertools import count
from typing import Any

import pytest

from latebind.domain.config import FrontendConfig
from latebind.server.dashboard import Shared
from tests.server.conftest import PATIENCE, Site, opened, scalar, until
from tests.server.test_metrics import value


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


@pytest.mark.parametrize(
    "name", ["nowhere.js", "..%2fdashboard.py", "../dashboard.py", "%2e%2e/dashboard.py", "page", ".js"]
)
def test_nothing_but_the_files_of_the_page_is_to_be_had(site: Site, name: str) -> None:
    assert site.get("/dashboard/" + name).status == 404


def test_its_figures_are_those_of_the_metrics() -> None:
    with opened() as site:
        for number in range(3):
            site.post("/v2/models/scalar/infer", {"inputs": [scalar(float(number))]})
        told: dict[str, Any] = {}

        def has_all() -> bool:  # figures may be half a second old
            told.update(site.get("/dashboard/data").json())
            return bool(told["snapshot"]["models"].get("scalar", {}).get("requests", {}).get("answered") == 3)

        until(has_all)
        text = site.get("/metrics").body
        assert (told["troubles"], told["minute"]["ended"]) == ([], {"scalar": 3})
        assert value(text, "latebind_requests_total", model="scalar", version="1", outcome="answered") == 3
        assert {entry["name"]: entry["state"] for entry in told["models"]}["scalar"] == "READY"
        assert told["server"] == {"version": told["server"]["version"], "live": True, "ready": True}


def test_all_who_look_at_about_the_same_time_share_one_question_to_the_engine() -> None:
    async def test() -> None:
        asked = count()

        async def ask() -> int:
            await asyncio.sleep(0)
            return next(asked)

        shared = Shared(ask, PATIENCE)
        assert await asyncio.gather(*(shared.get() for _ in range(5))) == [0] * 5
        often = Shared(ask, 0.0)
        assert [await often.get() for _ in range(2)] == [1, 2]
        assert abs(time.time() - often.at) < PATIENCE

    asyncio.run(test())


def test_what_is_refused_before_the_engine_is_a_trouble_and_a_figure() -> None:
    with opened() as site:
        site.gateway.rows["scalar"] = site.gateway.slots  # every place is taken
        rows = {"inputs": [scalar(1.0)], "parameters": {"timeout": 1000}}
        statuses = {site.post("/v2/models/scalar/infer", rows).status for _ in range(3)}
        assert statuses == {504}
        text = site.get("/metrics").body
        assert value(text, "latebind_turned_away_total", model="scalar", version="1", reason="no_place") == 3
        until(lambda: bool(site.get("/dashboard/data").json()["troubles"]))
        (trouble,) = site.get("/dashboard/data").json()["troubles"]
        assert trouble["what"].startswith("3 refused in ")
        assert "--slots" in trouble["cure"]
