"""The model repository extension over HTTP: what there is, and who may change it."""

from collections.abc import Iterator

import pytest

from latebind.domain.config import FrontendConfig
from tests.server.bodies import SCALAR
from tests.server.conftest import Site, opened
from tests.server.shelf import BROKEN

SCALAR_MODEL = "/v2/repository/models/scalar"
HALF_MODEL = "/v2/repository/models/half"


@pytest.fixture
def managed() -> Iterator[Site]:
    with opened(FrontendConfig(port=0, manage=True)) as site:
        yield site


def states(site: Site, asked: bytes = b"") -> dict[str, str]:
    entries = site.post("/v2/repository/index", asked).json()
    return {entry["name"]: entry["state"] for entry in entries}


def test_a_model_that_the_engine_does_not_answer_for_is_not_listed_as_ready() -> None:
    with opened(FrontendConfig(port=0)) as site:
        site.gateway.unready.add("half")
        told = {name: state for name, state in states(site).items() if state != "READY"}
        assert told == {"half": "UNAVAILABLE"}
        listed = states(site, b'{"ready": true}')
        assert "half" not in listed
        assert "double" in listed
        site.gateway.unready.clear()
        assert states(site)["half"] == "READY"


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (f"{HALF_MODEL}/load", {"parameters": {"config": "{}"}}, 400, "send no 'config'"),
        (f"{HALF_MODEL}/load", {"parameters": {"file:1/model.pt": "AAAA"}}, 400, "send no 'file:1/model.pt'"),
        (f"{HALF_MODEL}/load", {"parameters": {"version": 3}}, 400, "the version is 3"),
        (f"{HALF_MODEL}/load", {"parameters": {"version": "../1"}}, 400, "the version is '../1'"),
        (f"{HALF_MODEL}/load", {"parameters": []}, 400, "not what this call takes"),
        ("/v2/repository/models/crashing/load", {}, 400, BROKEN),
        ("/v2/repository/models/nobody/load", {}, 404, "no model 'nobody'"),
        ("/v2/repository/models/../load", {}, 404, "no such path"),
        (f"{SCALAR_MODEL}/unload", {}, 400, "traffic needs scalar"),
        (f"{SCALAR_MODEL}/unload", {"parameters": {"unload_dependents": "yes"}}, 400, "not what this call takes"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    managed: Site, path: str, body: dict[str, object], status: int, text: str
) -> None:
    reply = managed.post(path, body)
    assert (reply.status, text in reply.error) == (status, True), reply.error


def test_a_model_that_is_down_answers_503_with_the_reason_and_is_not_ready(site: Site) -> None:
    site.shelf.down["scalar"] = "the engine died 3 times in 60 s while it ran"
    specs, site.gateway.models = site.gateway.models, {}
    reply = site.post(SCALAR, {})
    assert (reply.status, reply.json()["error"]) == (503, "the engine died 3 times in 60 s while it ran")
    assert reply.headers["retry-after"]
    assert site.get("/v2/models/scalar/ready").status == 400
    site.shelf.down.clear()
    site.gateway.models = specs


def test_whoever_asks_for_a_model_that_is_being_loaded_is_not_told_to_load_it(managed: Site) -> None:
    managed.post("/v2/repository/models/half/unload", b"")
    managed.shelf.loading.add("half")
    try:
        reply = managed.get("/v2/models/half")
        assert (reply.status, reply.error) == (404, "model 'half' is not served (loading): ask again when it is ready")
    finally:
        managed.shelf.loading.clear()
        assert managed.post("/v2/repository/models/half/load", b"").status == 200
