"""The ingress before replicas: clients notice nothing of it, whatever they speak, and whoever is lost meanwhile."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from latebind.cluster.rpc import replica_route
from latebind.cluster.upstream import STATUS
from latebind.domain.config import ClusterConfig
from latebind.server.limits import Limits
from latebind.server.rest.infer import Context
from latebind.server.rest.protocol import Held
from latebind.server.service import Service
from tests.cluster.small import SECRET, SERVER, Dead, Small, small, until
from tests.server.arithmetic import Arithmetic
from tests.server.bodies import DOUBLE, SCALAR, request
from tests.server.conftest import read_response, scalar
from tests.server.rpc.conftest import X, tensor
from tests.server.rpc.conftest import request as message
from tests.server.taking import arriving
from tests.server.test_frontend import STUCK_CALL
from tests.server.words import numbers

STUCK = "/v2/models/stuck/infer"
ONE = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Small]:
    with small() as found:
        yield found


@pytest.fixture
def stub(cluster: Small) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(cluster.grpc) as found:
        yield found


def body(*inputs: dict[str, Any], **rest: object) -> bytes:
    return json.dumps(request(*inputs, **rest)).encode()


def answered(cluster: Small, model: str) -> list[int]:
    return [gateway.answered[model] for gateway in cluster.gateways]


def test_a_call_is_answered_as_a_replica_answers_it(cluster: Small, stub: Any) -> None:
    reply = cluster.call("POST", SCALAR, body(scalar(21.0), id="mine"))
    assert reply.status == 200
    assert reply.json()["id"] == "mine"
    assert reply.json()["outputs"][0]["data"] == [42.0]
    assert reply.headers["server-timing"].startswith("queue;dur=")
    assert reply.headers["content-type"] == "application/json"
    answer = stub.infer("double", [tensor(X)], request_id="mine")
    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * X)
    assert answer.get_response().id == "mine"
    assert stub.get_model_metadata("double").name == "double"
    assert stub.is_server_ready()


def test_texts_are_passed_on_and_read_by_the_replica_that_answers(cluster: Small, stub: Any) -> None:
    right = [[sum(numbers(text)), len(numbers(text)), -sum(numbers(text))] for text in ("a b c", "d")]
    texts = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a b c", "d"]}
    reply = cluster.call("POST", "/v2/models/reads/infer", body(texts, outputs=[{"name": "scores"}])).json()
    assert np.array(reply["outputs"][0]["data"]).reshape(2, 3).tolist() == right
    assert reply["parameters"]["tokens"] == [3, 1]
    given = triton_grpc.InferInput("text", [2], "BYTES")
    given.set_data_from_numpy(np.array(["a b c", "d"], np.object_))
    wanted = [triton_grpc.InferRequestedOutput("scores")]
    assert stub.infer("reads", [given], outputs=wanted).as_numpy("scores").tolist() == right
    picture = cluster.call("POST", "/v2/models/views/infer", b"\1\2\3\4", {"Inference-Header-Content-Length": "0"})
    assert np.frombuffer(picture.body[-16:], np.float32).tolist() == [2, 4, 6, 8]
    assert cluster.call("GET", "/v2/models/reads").json()["inputs"][0]["datatype"] == "BYTES"


@pytest.mark.parametrize("length", [1, 5, 9])
def test_rows_of_any_length_are_passed_on_and_what_is_no_length_is_refused_with_the_range(
    length: int, cluster: Small, stub: Any
) -> None:
    rows = np.arange(2 * length, dtype=np.float32).reshape(1, 2, length)
    np.testing.assert_array_equal(stub.infer("sound", [tensor(rows)]).as_numpy("y"), 2 * rows)
    given = {"name": "x", "shape": [1, 2, length], "datatype": "FP32", "data": rows.flatten().tolist()}
    (output,) = cluster.call("POST", "/v2/models/sound/infer", body(given)).json()["outputs"]
    assert (output["shape"], output["data"]) == ([1, 2, length], (2 * rows).flatten().tolist())
    longer = {**given, "shape": [1, 2, 9 + length], "data": [0.0] * 2 * (9 + length)}
    assert f"T={9 + length}: it must be 1 to 9" in cluster.call("POST", "/v2/models/sound/infer", body(longer)).error
    assert stub.get_model_metadata("sound").inputs[0].shape == [-1, 2, -1]


def test_binary_tensors_and_compression_cross_as_they_are(cluster: Small) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{cluster.ingress.port}") as client:
        given = triton_http.InferInput("x", [1, 1024, 1024], "FP32")
        rows = np.random.default_rng(0).standard_normal((1, 1024, 1024), np.float32)
        given.set_data_from_numpy(rows)
        for options in ({}, {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}):
            answer = client.infer("large", [given], **options)
            np.testing.assert_array_equal(answer.as_numpy("y"), 2 * rows)


def test_an_error_of_a_replica_reaches_grpc_clients_with_its_status(stub: Any) -> None:
    with pytest.raises(InferenceServerException, match="there is no model 'nobody'") as caught:
        stub.infer("nobody", [tensor(X)])
    assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_streams_are_carried(stub: Any) -> None:
    answers: list[Any] = []
    stub.start_stream(lambda result, error: answers.append(error or result.as_numpy("y")))
    for _ in range(3):
        stub.async_stream_infer("double", [tensor(X)])
    stub.stop_stream()
    assert len(answers) == 3
    for answer in answers:
        np.testing.assert_array_equal(answer, 2 * X)


def test_what_is_no_call_at_all_is_refused_by_the_ingress(cluster: Small) -> None:
    assert cluster.call("GET", "/nowhere").status == 404
    assert cluster.call("GET", DOUBLE).status == 405
    assert cluster.call("POST", "/rpc/inference.GRPCInferenceService/ServerLive").status == 404


def test_a_replica_answers_nobody_but_the_ingress(cluster: Small) -> None:
    site = dataclasses.replace(cluster.ingress, port=cluster.seen[0].port)
    assert site.call("POST", SCALAR, body(scalar(1.0))).status == 401
    key = {"Authorization": f"Bearer {SECRET}"}
    assert site.call("POST", SCALAR, body(scalar(1.0)), key).status == 200


def test_who_shows_no_token_gets_no_further_than_the_ingress(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-some-length")
    file.chmod(0o600)
    with small(1, server=replace(SERVER, token_file=str(file))) as cluster:
        assert cluster.call("POST", SCALAR, body(scalar(1.0))).status == 401
        assert cluster.gateways[0].answered["scalar"] == 0
        key = {"Authorization": "Bearer a-token-of-some-length"}
        assert cluster.call("POST", SCALAR, body(scalar(1.0)), key).status == 200


def test_calls_of_a_replica_that_stands_still_are_answered_by_another_and_it_gets_no_more() -> None:
    still = Dead(dying=True)  # it takes connections, as a process does that is stopped, and nobody tells it to die
    with small(1, dead=still) as cluster:
        cluster.home("scalar", "dead")
        for _ in range(2):  # the second is not sent there
            reply = cluster.call("POST", SCALAR, body(scalar(21.0)))
            assert (reply.status, reply.json()["outputs"][0]["data"]) == (200, [42.0])
        assert cluster.do(lambda: {peer.name: peer.silent for peer in cluster.fleet.peers})["dead"]
        assert cluster.call("GET", "/metrics").status == 200
        assert cluster.call("GET", "/v2/models/stats").status == 200


def test_where_every_replica_stands_still_calls_are_refused_and_nobody_waits() -> None:
    with small(0, dead=Dead(dying=True)) as cluster:
        assert cluster.call("POST", SCALAR, body(scalar(21.0))).status == 503
        assert cluster.call("POST", SCALAR, body(scalar(21.0))).status == 503
        assert cluster.call("GET", "/v2/health/ready").status == 400
        assert cluster.call("GET", "/v2/models/stats").status == 503


def test_calls_of_a_replica_that_is_lost_are_answered_by_another() -> None:
    dead = Dead()
    with small(1, dead=dead) as cluster:
        cluster.home("scalar", "dead")
        reply = cluster.call("POST", SCALAR, body(scalar(21.0)))
        assert (reply.status, reply.json()["outputs"][0]["data"]) == (200, [42.0])
        assert (dead.called, answered(cluster, "scalar")) == (1, [1])
        text = cluster.call("GET", "/metrics").body.decode()
        assert "latebind_ingress_moved_total 1\n" in text
        called = dead.called
        assert cluster.call("POST", "/v2/repository/models/double/unload").status == 503, "it is not tried elsewhere"
        assert dead.called == called + 1


@pytest.mark.parametrize(
    ("path", "text", "form"),
    [
        ("/v1/embeddings", b'{"input": "a", "model": "double"}', {"error"}),
        ("/v1/rerank", b'{"query": "a", "documents": ["b"], "model": "double"}', {"message", "detail"}),
        ("/models/double", b'{"inputs": "a"}', {"error", "error_type"}),
    ],
)
def test_what_peoples_tools_call_goes_to_a_replica_with_the_model_that_body_or_path_names(
    path: str, text: bytes, form: set[str]
) -> None:
    dead = Dead()
    with small(1, dead=dead) as cluster:
        cluster.home("double", "dead")
        reply = cluster.call("POST", path, text)
        assert dead.called == 1
        assert reply.status == 400
        assert set(reply.json()) == form
        assert "'double' takes only tensors" in reply.body.decode()
        assert {entry["id"] for entry in cluster.call("GET", "/v1/models").json()["data"]} >= {"double"}


def test_a_call_that_another_replica_is_asked_for_has_no_more_time_for_that() -> None:
    dying = Dead(dying=True)
    with small(1, dead=dying) as cluster, ThreadPoolExecutor(1) as pool:
        cluster.home("scalar", "dead")
        text = body(scalar(21.0), parameters={"timeout": 30_000_000})
        call = pool.submit(cluster.call, "POST", SCALAR, text)
        until(lambda: dying.called == 1)
        begun, lost = time.monotonic(), 0.5
        until(lambda: time.monotonic() - begun > lost)
        cluster.do(dying.told.set)
        assert call.result().status == 200
        assert cluster.gateways[0].deadlines[0] < begun + lost + 30.0  # what is on its way has time left to take


def test_what_a_client_says_of_its_wait_the_ingress_keeps(cluster: Small) -> None:
    before = time.monotonic()
    text = body(scalar(1.0), parameters={"timeout": 30_000_000})
    assert cluster.call("POST", SCALAR, text, {"latebind-waited": "20"}).status == 200
    assert max(gateway.deadlines[-1] for gateway in cluster.gateways if gateway.deadlines) > before + 29.0


def test_calls_beyond_what_replicas_take_are_refused_before_their_body_is_read() -> None:
    text = body(ONE)
    head = f"POST {STUCK} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    with small(1, cluster=ClusterConfig(calls=1)) as cluster:
        with cluster.ingress.connect() as connection, cluster.ingress.connect() as another:
            connection.sendall(head + text)
            cluster.wait(cluster.gateways[0].stuck)
            another.sendall(head)
            refused = read_response(another)
            with (
                triton_grpc.InferenceServerClient(cluster.grpc) as stub,
                pytest.raises(InferenceServerException, match="every replica has 1 calls under way") as caught,
            ):
                stub.infer("double", [tensor(X)])
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        until(lambda: cluster.call("POST", SCALAR, body(scalar(1.0))).status == 200)


def test_where_no_replica_is_left_clients_are_told_to_come_again() -> None:
    dead = Dead()
    with small(0, dead=dead) as cluster:
        reply = cluster.call("POST", SCALAR, body(scalar(1.0)))
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert dead.called == 3
        cluster.do(cluster.seen.clear)
        until(lambda: cluster.call("GET", "/v2/health/ready").status == 400)
        assert cluster.call("POST", SCALAR, body(scalar(1.0))).status == 503


def test_a_client_that_hangs_up_while_another_replica_is_asked_ends_the_call_there() -> None:
    with small(1, dead=Dead()) as cluster:
        cluster.home("stuck", "dead")
        with cluster.ingress.connect() as connection:
            connection.sendall(STUCK_CALL)
            cluster.wait(cluster.gateways[0].stuck)
        cluster.wait(cluster.gateways[0].cancelled)
        assert cluster.do(lambda: [peer.under_way for peer in cluster.fleet.peers]) == [0, 0]
        until(lambda: cluster.gateways[0].taken == 0)


def test_a_call_under_way_when_the_ingress_closes_is_refused_once_the_drain_ends() -> None:
    with small(1, limits=Limits(drain_seconds=1)) as cluster:
        connection = cluster.ingress.connect()
        connection.sendall(STUCK_CALL)
        cluster.wait(cluster.gateways[0].stuck)
    reply = read_response(connection)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    connection.close()


def test_a_grpc_call_that_is_cancelled_ends_at_the_replica() -> None:
    with small(1) as cluster, triton_grpc.InferenceServerClient(cluster.grpc) as stub:
        call = stub.async_infer("stuck", [tensor(np.ones((1, 1), np.float32))], lambda result, error: None)
        cluster.wait(cluster.gateways[0].stuck)
        call.cancel()
        cluster.wait(cluster.gateways[0].cancelled)


def test_a_replica_that_starts_later_gets_calls_once_it_is_told_what_was_loaded_and_unloaded() -> None:
    with small() as cluster, triton_grpc.InferenceServerClient(cluster.grpc) as stub:
        assert cluster.call("POST", "/v2/repository/models/half/unload").status == 200
        stub.load_model("half")
        assert ["half" in gateway.models for gateway in cluster.gateways] == [True, True]
        gone = cluster.do(lambda: cluster.seen.pop(1))
        until(lambda: cluster.do(lambda: len(cluster.fleet.peers)) == 1)
        assert cluster.call("POST", "/v2/repository/models/double/unload").status == 200
        stub.unload_model("half")
        assert cluster.call("POST", "/v2/repository/models/invert/unload").status == 200
        stub.load_model("invert")
        for name, verb, status in (("nobody", "unload", 200), ("crashing", "load", 400)):  # what fails is not told
            assert cluster.call("POST", f"/v2/repository/models/{name}/{verb}").status == status
        with pytest.raises(InferenceServerException, match="differs from the manifest"):
            stub.load_model("crashing")
        version = b'{"parameters": {"version": "1"}}'
        assert cluster.call("POST", "/v2/repository/models/large/load", version).status == 200
        assert "double" in cluster.gateways[1].models
        for _ in range(4):
            cluster.call("POST", SCALAR, body(scalar(1.0)))
        assert answered(cluster, "scalar") == [4, 0]
        cluster.do(lambda: cluster.seen.append(gone))
        until(lambda: cluster.do(lambda: len(cluster.fleet.peers)) == 2)
        served = [{*gateway.models} for gateway in cluster.gateways]
        assert served[1] == served[0]
        assert served[0].isdisjoint({"double", "half"})
        assert cluster.shelves[1].versions[-2:] == [("invert", None), ("large", "1")]
        until(lambda: cluster.call("POST", SCALAR, body(scalar(1.0))).status == 200 and answered(cluster, "scalar")[1])


def test_metrics_tell_of_each_replica_and_statistics_of_all() -> None:
    with small() as cluster:
        for home in ("replica-0", "replica-1", "replica-1"):
            cluster.home("scalar", home)
            cluster.call("POST", SCALAR, body(scalar(1.0)))
        text = cluster.call("GET", "/metrics").body.decode()
        families = [family.name for family in text_string_to_metric_families(text)]
        assert len(families) == len(set(families)), "the samples of all replicas stand together"
        labels = 'model="scalar",outcome="answered",version="1"'
        assert f'latebind_requests_total{{replica="replica-0",{labels}}} 1.0\n' in text
        assert f'latebind_requests_total{{replica="replica-1",{labels}}} 2.0\n' in text
        assert cluster.call("GET", "/v2/models/scalar/stats").json()["model_stats"][0]["inference_count"] == 3
        with triton_grpc.InferenceServerClient(cluster.grpc) as stub:
            assert stub.get_inference_statistics("scalar").model_stats[0].inference_count == 3


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_traces_come_from_all_replicas(transport: str) -> None:
    with small() as cluster:
        every = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
        if transport == "http":
            assert cluster.call("POST", "/v2/trace/setting", json.dumps(every).encode()).status == 200
        else:
            with triton_grpc.InferenceServerClient(cluster.grpc) as stub:
                stub.update_trace_settings(settings=every)
        for home in ("replica-0", "replica-1"):
            cluster.home("scalar", home)
            cluster.call("POST", SCALAR, body(scalar(1.0)))
        until(lambda: len(cluster.call("GET", "/v2/traces").json()["traces"]) == 2)
        found = cluster.call("GET", "/v2/traces").json()["traces"]
        assert {trace["replica"] for trace in found} == {"replica-0", "replica-1"}


def test_bodies_that_the_ingress_collects_are_bounded_over_all_connections() -> None:
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" % SCALAR.encode()
    with small(replicas=1) as cluster:
        cluster.ingress.frontend._app.context.held = held = Held(100_000)
        with cluster.ingress.connect() as first:
            first.sendall(head + b" " * 60_000)
            until(lambda: held.bytes == 60_000)
            refused = cluster.ingress.send(head + b" " * 60_000)
            assert refused.status == 503
            assert "more than 100000 bytes" in refused.json()["error"]
        until(lambda: held.bytes == 0)
        assert cluster.ingress.post(SCALAR, request(scalar(21.0))).status == 200
        until(lambda: held.bytes == 0)


@pytest.mark.parametrize(("less", "status"), [(0, b"INVALID_ARGUMENT"), (1, b"RESOURCE_EXHAUSTED")])
def test_messages_that_a_replica_collects_are_counted_with_other_bodies(less: int, status: bytes) -> None:
    call = message(raw=[bytes(64)], inputs=[]).SerializeToString()

    async def test() -> None:
        context = Context(Service(Arithmetic()), Limits(held_bytes=len(call) - less))
        called = arriving([call[:1], call[1:]], context=context, METHOD="inference.GRPCInferenceService/ModelInfer")
        reply = await replica_route().verb(context, called)
        called.release()
        assert dict(reply.headers)[STATUS] == status
        assert context.held.bytes == 0

    asyncio.run(test())
