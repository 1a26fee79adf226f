"""The protocol over HTTP as a plain client sees it: what is answered, what is refused, and that the frontend stands."""

import json
import logging
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from latebind import __version__
from latebind.domain.config import FrontendConfig
from latebind.server.limits import Limits
from latebind.server.service import EXTENSIONS
from tests.server.arithmetic import RAN, WAITED
from tests.server.bodies import DOUBLE, SCALAR, request
from tests.server.conftest import Site, opened


@pytest.fixture(autouse=True)
def the_frontend_still_answers(site: Site) -> Iterator[None]:
    yield
    assert site.is_well()
    assert site.taken == 0


# What is answered ---------------------------------------------------------------------------------------------------


def test_the_server_says_what_it_is_and_only_what_it_can(site: Site) -> None:
    extensions = list(EXTENSIONS)
    assert site.get("/v2").json() == {"name": "latebind", "version": __version__, "extensions": extensions}


HEALTH: dict[str, dict[str, object]] = {
    "/v2/health/live": {"live": True},
    "/v2/health/ready": {"ready": True},
    "/v2/models/double/ready": {"name": "double", "ready": True},
    "/v2/models/double/versions/1/ready": {"name": "double", "ready": True},
}


def test_health_is_a_status_and_says_the_same_in_its_body() -> None:
    with opened() as site:
        for path, body in HEALTH.items():
            assert (site.get(path).status, site.get(path).json()) == (200, body)
        site.gateway.unready.add("double")
        site.gateway.is_live = False
        for path, body in HEALTH.items():
            ill = {key: False if value is True else value for key, value in body.items()}
            assert (site.get(path).status, site.get(path).json()) == (400, ill)
        assert site.get("/v2/models/half/ready").status == 200


def test_models_are_described_with_or_without_their_version(site: Site) -> None:
    described = site.get("/v2/models/pair").json()
    assert described["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2, 2]},
        {"name": "b", "datatype": "INT64", "shape": [-1, 3]},
    ]
    assert site.get("/v2/models/pair/versions/1").json() == described
    assert site.get("/v2/models/%70air").json() == described


def test_json_in_gives_json_out_with_the_id_and_the_stage_it_left_at(site: Site) -> None:
    reply = site.post(DOUBLE, request(id="abc"))
    assert reply.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in reply.headers
    assert reply.json() == {
        "model_name": "double",
        "model_version": "1",
        "id": "abc",
        "parameters": {"left_at": 2, "stages": 3},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 16], "data": [2.0 * i for i in range(16)]}],
    }


def test_the_operator_can_hide_the_stage() -> None:
    with opened(FrontendConfig(port=0, show_exit=False)) as site:
        reply = site.post(DOUBLE, request())
        assert "parameters" not in reply.json()
        assert reply.headers["server-timing"] == "queue;dur=0.000, compute;dur=0.000"


def test_binary_out_carries_its_header_and_its_bytes(site: Site) -> None:
    reply = site.post(DOUBLE, request(parameters={"binary_data_output": True}))
    assert reply.headers["content-type"] == "application/octet-stream"
    size = int(reply.headers["inference-header-content-length"])
    (output,) = json.loads(reply.body[:size])["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    assert struct.unpack("<16f", reply.body[size:]) == tuple(2.0 * i for i in range(16))


def test_a_version_in_the_path_must_be_the_one_that_is_served(site: Site) -> None:
    assert site.post("/v2/models/double/versions/1/infer", request()).status == 200
    refused = site.post("/v2/models/double/versions/2/infer", request())
    assert refused.status == 404
    assert "has no version '2': it has 1" in refused.error


def test_a_chunked_body_is_read_to_its_end(site: Site) -> None:
    body = json.dumps(request()).encode()
    parts = (body[i : i + 7] for i in range(0, len(body), 7))
    assert site.call("POST", DOUBLE, parts).status == 200  # http.client chunks what has no length


def test_the_timeout_is_in_microseconds_and_the_default_is_the_models() -> None:
    with opened(FrontendConfig(port=0, deadline=2.0), Limits(deadline=100.0), {"half": 7.0}) as site:
        half = {"name": "x", "shape": [1, 4], "datatype": "FP16", "parameters": {"binary_data_size": 8}}
        head = json.dumps(request(half, parameters={"binary_data_output": True})).encode()
        cases: list[tuple[float, str, Any]] = [
            (0.25, DOUBLE, request(parameters={"timeout": 250_000})),
            (2.0, DOUBLE, request(parameters={"timeout": 0})),
            (100.0, DOUBLE, request(parameters={"timeout": 2**64 - 1})),
            (7.0, "/v2/models/half/infer", head + bytes(8)),
        ]
        for seconds, path, body in cases:
            before = time.monotonic()
            headers = {"Inference-Header-Content-Length": str(len(head))} if isinstance(body, bytes) else {}
            assert site.post(path, body, headers).status == 200
            assert before + seconds <= site.gateway.deadlines[-1] <= time.monotonic() + seconds


# What the gateway refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "status"), [("full", 503), ("gone", 503), ("late", 504)])
def test_refusals_have_their_status_and_say_when_to_come_back(site: Site, model: str, status: int) -> None:
    given = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    reply = site.post(f"/v2/models/{model}/infer", request(given))
    assert reply.status == status
    assert list(reply.json()) == ["error"]
    assert ("retry-after" in reply.headers) == (status == 503)


@pytest.mark.parametrize("model", ["failing", "crashing"])
def test_a_failure_tells_an_id_and_the_log_tells_the_rest(
    site: Site, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    with caplog.at_level(logging.ERROR):
        reply = site.post(f"/v2/models/{model}/infer", request(given))
    assert reply.status == 500
    text = reply.json()["error"]
    assert text.startswith("internal error, request id ")
    assert "/srv" not in text
    assert text.rpartition(" ")[2] in caplog.text
    assert "/srv" in caplog.text


def test_answers_tell_how_long_the_slowest_row_waited_and_ran(site: Site) -> None:
    reply = site.post(SCALAR, request({"name": "x", "shape": [2], "datatype": "FP64", "data": [1, 2]}))
    assert reply.headers["server-timing"] == f"queue;dur={2e3 * WAITED:.3f}, compute;dur={2e3 * RAN:.3f}"
