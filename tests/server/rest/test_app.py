"""The protocol over HTTP as a plain client sees it: what is answered, what is refused, and that the frontend stands."""

import json
import struct
from collections.abc import Iterator

import pytest

from latebind import __version__
from latebind.server.service import EXTENSIONS
from tests.server.bodies import DOUBLE, request
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


def test_binary_out_carries_its_header_and_its_bytes(site: Site) -> None:
    reply = site.post(DOUBLE, request(parameters={"binary_data_output": True}))
    assert reply.headers["content-type"] == "application/octet-stream"
    size = int(reply.headers["inference-header-content-length"])
    (output,) = json.loads(reply.body[:size])["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    assert struct.unpack("<16f", reply.body[size:]) == tuple(2.0 * i for i in range(16))


def test_a_chunked_body_is_read_to_its_end(site: Site) -> None:
    body = json.dumps(request()).encode()
    parts = (body[i : i + 7] for i in range(0, len(body), 7))
    assert site.call("POST", DOUBLE, parts).status == 200  # http.client chunks what has no length
