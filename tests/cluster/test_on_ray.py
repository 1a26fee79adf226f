"""The application on Ray itself: two replicas behind an ingress, as `latebind serve --on ray` starts them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import torch
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from latebind.child import GRPC_READY, READY
from latebind.domain.sizes import Dim
from latebind.forks.client import VARIABLE
from latebind.program.build import build_program
from latebind.sequence.build import build_sequence
from research.cluster.ray import busiest_replica, known
from tests.cluster.small import until
from tests.networks import Judge
from tests.sequences import Backwards, backwards, rows_of, some_sentences
from tests.versions import WIDTH, add_version

pytestmark = pytest.mark.slow
PATIENCE = 90.0
ROWS = np.ones((1, WIDTH), np.float32)
SENTENCES = rows_of(some_sentences(4))
QUERY = """
[nodes.first]
models = ["scale"]
[nodes.second]
models = ["twice"]
inputs.x = "first.output"
[outputs]
y = "second.output"
"""


@dataclass(frozen=True)
class Served:
    """A server on Ray: its process, and where it listens."""

    process: subprocess.Popen[str]
    http: str
    grpc: str

    @property
    def port(self) -> int:
        return int(self.http.rpartition(":")[2])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("ray")
    root = tmp_path_factory.mktemp("on-ray")
    build(root)
    words = (str(root), "--on", "ray", "--replicas", "2", "--port", "0", "--grpc-port", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "latebind", "serve", *words, "--deadline-ms", "30000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={name: value for name, value in os.environ.items() if name != VARIABLE},  # what it lends is its own
    )
    try:
        grpc = told(process, GRPC_READY)  # the line before the other
        yield Served(process, told(process, READY).removeprefix("http://"), grpc)
    finally:
        process.terminate()
        assert process.wait(60.0) == 0
        assert process.stdout is not None
        process.stdout.close()


def build(root: Path) -> None:
    """Make two models, a query over them, a sequence model, and one whose rows differ in size."""
    add_version(root, "scale", 1, 3.0)
    add_version(root, "twice", 1, 2.0)
    (root / "both.query.toml").write_text(QUERY)
    place = root / "backwards" / "1"
    build_sequence(Backwards(), SENTENCES, directory=place, name="backwards", backends=["eager"], max_batch=2)
    build_program(
        Judge(),
        {"tags": torch.randn(2, 6, 3)},
        directory=root / "judge" / "1",
        name="judge",
        backends=["eager"],
        max_batch=2,
        dims=(Dim("L", 1, 40),),
        sizes={"tags": ("L", 3)},
    )


def told(process: subprocess.Popen[str], word: str) -> str:
    """Return what the server says behind this word; gRPC's place comes first."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word).strip()
    raise AssertionError("the server ended before it was ready")


def exposed(process: psutil.Process) -> list[int]:
    """Return the ports at which a process listens to other machines."""
    places = [each.laddr for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return [place.port for place in places if not ip_address(place.ip.removeprefix("::ffff:")).is_loopback]


def infer(client: Any, triton: Any, model: str, name: str, rows: Any, datatype: str = "FP32") -> Any:
    given = triton.InferInput(name, list(rows.shape), datatype)
    given.set_data_from_numpy(rows)
    return client.infer(model, [given])


def test_clients_of_http_and_grpc_are_answered_by_models_queries_and_sequence_models(served: Served) -> None:
    for triton, place in ((triton_http, served.http), (triton_grpc, served.grpc)):
        with triton.InferenceServerClient(place) as client:
            scaled = infer(client, triton, "scale", "x", ROWS).as_numpy("output")
            np.testing.assert_array_equal(scaled, 3 * ROWS)
            np.testing.assert_array_equal(infer(client, triton, "both", "x", ROWS).as_numpy("y"), 6 * ROWS)
            spoken = infer(client, triton, "backwards", "tokens", SENTENCES.numpy(), "INT64").as_numpy("tokens")
            for said, heard in zip(spoken.tolist(), some_sentences(4), strict=True):
                assert said[: len(heard) + 1] == backwards(heard)
            for length in (1, 17, 40):
                tags = torch.randn(2, length, 3)
                found = infer(client, triton, "judge", "tags", tags.numpy()).as_numpy("output")
                with torch.inference_mode():
                    np.testing.assert_allclose(found, Judge()(tags).numpy(), rtol=1e-4, atol=1e-5)
            with pytest.raises(triton.InferenceServerException, match="L=41: it must be 1 to 40"):
                infer(client, triton, "judge", "tags", np.zeros((1, 41, 3), np.float32))


def test_nobody_notices_that_a_replica_is_killed_and_another_takes_its_place(served: Served) -> None:
    until(lambda: len(known(served.port)) == 2, seconds=PATIENCE, pause=0.1)
    before, ended = known(served.port), threading.Event()

    def call() -> int:
        answers = 0
        with triton_http.InferenceServerClient(served.http) as client:
            while not ended.is_set():
                np.testing.assert_array_equal(
                    infer(client, triton_http, "scale", "x", ROWS).as_numpy("output"), 3 * ROWS
                )
                answers += 1
        return answers

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(call) for _ in range(4)]
        try:
            busiest_replica(served.process.pid).kill()
            until(lambda: len(known(served.port) - before) == 1, seconds=PATIENCE, pause=0.1)
        finally:
            ended.set()
        assert all(caller.result() > 0 for caller in callers)
    assert len(known(served.port) & before) == 1


def test_ray_listens_on_loopback_and_where_it_does_not_it_asks_for_its_token(served: Served) -> None:
    server, ports = psutil.Process(served.process.pid), dict[int, str]()
    for process in (server, *server.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # some of Ray's last for a moment
            ports |= {port: process.name() for port in exposed(process)}
    assert {name.startswith("ray::ServeRepl") for name in ports.values()} <= {True}
    for port in ports:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(b"", timeout=10.0)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
