"""Pages of other sites, as their browsers ask for them: which may call, and what they may read (Fetch, 3.2)."""

import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from tests.server.bodies import DOUBLE
from tests.server.conftest import Response, opened, scalar

APP = "https://app.example"
SHARED = FrontendConfig(port=0, allow_origins=(APP, "http://localhost:3000"))
BODY = {"inputs": [scalar(21.0)]}


def is_shared_with(reply: Response, origin: str) -> bool:
    """Return whether a browser would let a page of this origin read the reply."""
    headers = reply.headers
    assert headers.get("vary") == ("Origin" if "access-control-allow-origin" in headers else None)
    assert "access-control-allow-credentials" not in headers
    return headers.get("access-control-allow-origin") == origin


def test_a_page_of_a_site_that_is_allowed_calls_and_reads_answers_and_errors() -> None:
    with opened(SHARED) as site:
        for origin in (APP, "http://localhost:3000"):
            reply = site.post("/v2/models/scalar/infer", BODY, {"Origin": origin})
            assert (reply.status, reply.json()["outputs"][0]["data"]) == (200, [42.0])
            assert is_shared_with(reply, origin)
            for path, status in ((DOUBLE, 400), ("/v2/models/none/infer", 404), ("/nowhere", 404)):
                reply = site.post(path, {}, {"Origin": origin})
                assert reply.status == status
                assert is_shared_with(reply, origin)
        assert is_shared_with(site.call("GET", "/v2/health/ready", headers={"Origin": APP}), APP)


@pytest.mark.parametrize(
    "origin", ["https://app.example.evil", "http://app.example", "https://app.example:8443", "null", "app.example", ""]
)
def test_a_page_of_any_other_site_is_refused_and_reads_nothing(origin: str) -> None:
    with opened(SHARED) as site:
        reply = site.post("/v2/models/scalar/infer", BODY, {"Origin": origin})
        assert reply.status == 403
        assert "page of another site" in reply.error
        assert "access-control-allow-origin" not in reply.headers
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        reply = site.call("OPTIONS", "/v2/models/scalar/infer", headers=asked)
        assert (reply.status, "access-control-allow-origin" in reply.headers) == (405, False)


def test_a_browser_that_asks_first_is_told_what_a_page_may_send() -> None:
    with opened(SHARED) as site:
        asked = {
            "Origin": APP,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        reply = site.call("OPTIONS", "/v2/models/scalar/infer", headers=asked)
        assert (reply.status, reply.body) == (200, b"")
        assert is_shared_with(reply, APP)
        assert reply.headers["access-control-allow-methods"] == "POST"
        assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
        assert int(reply.headers["access-control-max-age"]) > 0
        for changed in ({"Access-Control-Request-Method": "DELETE"}, {"Access-Control-Request-Method": ""}):
            assert site.call("OPTIONS", "/v2/models/scalar/infer", headers=asked | changed).status == 405
        assert site.call("OPTIONS", "/nowhere", headers=asked).status == 404


def test_without_a_list_nothing_is_shared() -> None:
    with opened() as site:
        reply = site.post("/v2/models/scalar/infer", BODY, {"Origin": APP})
        assert (reply.status, "access-control-allow-origin" in reply.headers) == (403, False)
        same = site.post("/v2/models/scalar/infer", BODY, {"Origin": f"http://127.0.0.1:{site.port}"})
        assert (same.status, "access-control-allow-origin" in same.headers) == (200, False)


def test_a_page_that_is_allowed_still_needs_the_name_of_the_host() -> None:
    with opened(SHARED) as site:
        reply = site.post("/v2/models/scalar/infer", BODY, {"Origin": APP, "Host": "evil.example"})
        assert (reply.status, "--allow-host" in reply.error) == (403, True)


@pytest.mark.parametrize("origin", ["*", "app.example", "https://app.example/", "https://app.example/page", "null"])
def test_what_is_no_origin_is_refused_as_a_setting(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.allow_origins has"):
        FrontendConfig(allow_origins=(origin,))
