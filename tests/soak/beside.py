"""What happens to a server while the ledger asks it. Each raises where the server does what it must not."""

import asyncio
import http.client
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.faults import Injected
from latebind.bench.ledger.play import Target
from latebind.bench.ledger.questions import WIDTH
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes
from tests.server.hostile.test_framing import ENDS

PATIENCE = 60.0
PAGES = ("/metrics", "/v2/models/stats", "/v2/traces", "/dashboard/data", "/dashboard/picture", "/v2/health/live")
REFUSALS = ("503", "504", "429", "StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")
STREAMED = 8
PREFIX = "/latebind-soak-"  # of shared memory


@dataclass(slots=True)
class Beside:
    """Does one thing again and again, `pause` seconds apart, on a thread; `count` says how often it was done."""

    what: Callable[[], None]
    pause: float
    count: int = 0
    done: list[Injected] = field(default_factory=list)

    async def run(self, requests: int, ledger: Ledger) -> None:
        """Go on until this is cancelled."""
        while True:
            await asyncio.to_thread(self.what)
            self.count += 1
            await asyncio.sleep(self.pause)


def ask(target: Target, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Send one request and return status and body of its reply."""
    connection = http.client.HTTPConnection(target.host, target.http, timeout=PATIENCE)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def figures(target: Target) -> dict[tuple[str, str], float]:
    """Return the figures of `/metrics` by name and model, summed over other labels."""
    status, text = ask(target, "GET", "/metrics")
    assert status in {200, 503}, text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text.decode() if status == 200 else ""):
        for sample in family.samples:
            key = sample.name, sample.labels.get("model", "")
            found[key] = found.get(key, 0.0) + sample.value
    return found


def look(target: Target, random: Random) -> None:
    """Open a page; what is in memory is within the budget."""
    status, text = ask(target, "GET", random.choice(PAGES))
    assert status in {200, 503}, (status, text)
    found = figures(target)
    budget = found.get(("latebind_memory_budget_bytes", ""), 0.0)
    resident = sum(value for (name, _), value in found.items() if name == "latebind_resident_bytes")
    assert not budget or resident <= budget, f"{resident:,.0f} bytes are resident of {budget:,.0f}"


def send_nonsense(target: Target, random: Random) -> None:
    """Send what is no request, and requests that no model can answer: each is the client's fault."""
    with socket.create_connection((target.host, target.http), timeout=PATIENCE) as connection:
        try:
            connection.sendall(random.choice([*ENDS]))
            reply = connection.recv(1 << 16)
        except ConnectionError:
            reply = b""
    assert not reply or reply.startswith(b"HTTP/1.1 4"), reply[:200]
    rows: object = random.choice(([[1.0] * WIDTH] * 99, [1.0], "x", None, [[1e999] * WIDTH], {}))
    tensor = {"name": random.choice(("x", "y")), "shape": random.choice(([1, 3], [-1], [99, WIDTH], "x")), "data": rows}
    body = json.dumps({"inputs": [{**tensor, "datatype": random.choice(("FP32", "BYTES", "INT64"))}]}).encode()
    status, text = ask(target, "POST", f"/v2/models/{random.choice(('affine', 'relay', 'none'))}/infer", body)
    assert status in {400, 404, 413, 503}, (status, text)


def publish(repository: Path, name: str, version: int) -> None:
    """Put version 1 of `affine` there as this version of a model, in one rename."""
    source = ModelDirectory.open(repository / "affine" / "1")
    files = {file: source.read(file) for file in source.files}
    described = msgspec.json.decode(files[MODEL])
    files[MODEL] = json_bytes({**described, "name": name, "version": str(version)})
    ModelDirectory.create(repository / name / str(version), files)


@dataclass(slots=True)
class Operator:
    """Has a model of its own loaded, asked and unloaded, and puts new versions of `affine` into the folder."""

    target: Target
    repository: Path
    random: Random
    version: int = 2

    def __call__(self) -> None:
        """Do one of these."""
        if self.random.random() < 0.4:
            publish(self.repository, "affine", self.version)
            self.version += 1
            self._post("affine/load")
            return
        if not self._post("guest/load"):
            return
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [2.0] * WIDTH}]})
        status, text = ask(self.target, "POST", "/v2/models/guest/infer", body.encode())
        assert status in {200, 503, 504}, (status, text)
        assert status != 200 or json.loads(text)["outputs"][0]["data"] == [5.0] * WIDTH
        if self._post("guest/unload"):
            assert ask(self.target, "POST", "/v2/models/guest/infer", body.encode())[0] in {404, 503}

    def _post(self, verb: str) -> bool:
        """Have it done; False where the engine that was to do it died."""
        status, text = ask(self.target, "POST", f"/v2/repository/models/{verb}", b"{}")
        assert status == 200 or b"the engine" in text, (verb, status, text)
        return status == 200


def share_memory(target: Target, random: Random) -> None:
    """Send rows in shared memory and take the answer there."""
    rows = np.full((2, WIDTH), random.randrange(100), np.float32)
    name, size = f"{random.randrange(1 << 40)}", rows.nbytes
    region = shm.create_shared_memory_region(name, f"{PREFIX}{name}", 2 * size)
    client = triton.InferenceServerClient(f"{target.host}:{target.http}", network_timeout=PATIENCE)
    try:
        shm.set_shared_memory_region(region, [rows])
        client.register_system_shared_memory(name, f"{PREFIX}{name}", 2 * size)
        given, wanted = triton.InferInput("x", [2, WIDTH], "FP32"), triton.InferRequestedOutput("y")
        given.set_shared_memory(name, size)
        wanted.set_shared_memory(name, size, offset=size)
        if answered(lambda: client.infer("affine", [given], outputs=[wanted], timeout=2_000_000)):
            found = shm.get_contents_as_numpy(region, np.float32, [2, WIDTH], offset=size)
            assert (found == 2 * rows + 1).all(), found
        client.unregister_system_shared_memory(name)
    finally:
        client.close()
        shm.destroy_shared_memory_region(region)


def stream(target: Target, random: Random) -> None:
    """Send calls on one stream: each has its answer or a refusal, in their order."""
    client, heard = triton_grpc.InferenceServerClient(target.grpc), list[tuple[object, object]]()
    first = random.randrange(100)
    client.start_stream(lambda result, error: heard.append((result, error)))
    for place in range(STREAMED):
        rows = np.full((1, WIDTH), first + place, np.float32)
        given = triton_grpc.InferInput("x", [1, WIDTH], "FP32")
        given.set_data_from_numpy(rows)
        client.async_stream_infer("affine", [given], request_id=str(place), timeout=2_000_000)
    client.stop_stream()  # waits for the rest
    client.close()
    assert len(heard) == STREAMED, heard
    for place, (result, error) in enumerate(heard):
        if error is None:
            assert isinstance(result, triton_grpc.InferResult)
            assert result.get_response().id == str(place)
            assert (result.as_numpy("y") == 2 * (first + place) + 1).all()


def answered(call: Callable[[], object]) -> bool:
    """Make a call; False where it was refused as it may be."""
    try:
        call()
    except InferenceServerException as error:
        if str(error.status()) not in REFUSALS:
            raise
        return False
    return True
