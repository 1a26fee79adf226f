"""A server whose URLs all begin with a prefix, behind a proxy that passes it on."""

import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from tests.server.conftest import opened, scalar

BODY = {"inputs": [scalar(21.0)]}


def test_every_path_begins_with_the_prefix_and_none_is_there_without_it() -> None:
    with opened(FrontendConfig(port=0, prefix="/ml/v1.0", dashboard=True)) as site:
        reply = site.post("/ml/v1.0/v2/models/scalar/infer", BODY)
        assert (reply.status, reply.json()["outputs"][0]["data"]) == (200, [42.0])
        assert site.get("/ml/v1.0/v2/health/ready").status == 200
        assert site.get("/ml/v1.0/v2/cudasharedmemory/status").json() == []  # which answers by its path
        for path in ("/v2/health/ready", "/ml/v1.0", "/ml/v1.0v2/health/ready", "/ml/v1x0/v2", "/", "/ml/v2"):
            reply = site.get(path)
            assert (reply.status, "/ml/v1.0/" in reply.error) == (404, True), path
        assert site.get("/ml/v1.0/nowhere").error.startswith("no such path: /v2/openapi.json")


def test_the_page_and_the_description_say_where_they_are() -> None:
    with opened(FrontendConfig(port=0, prefix="/ml", dashboard=True)) as site:
        moved = site.get("/ml/dashboard")
        assert (moved.status, moved.headers["location"]) == (307, "dashboard/")  # below where it was asked for
        page = site.get("/ml/dashboard/").body.decode()
        assert 'src="main.js"' in page
        assert site.get("/ml/dashboard/main.js").status == 200
        assert site.get("/ml/v2/openapi.json").json()["servers"] == [{"url": "/ml"}]
    with opened() as site:
        assert "servers" not in site.get("/v2/openapi.json").json()


@pytest.mark.parametrize("prefix", ["ml", "/ml/", "/", "/ml//v1", "/m l", "/ml?x", "/%6dl"])
def test_what_is_no_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.prefix is"):
        FrontendConfig(prefix=prefix)
