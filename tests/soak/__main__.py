"""`python -m tests.soak`: random settings, all clients at once, faults; then nothing may be lost, wrong or left.

Each seed is a server of its own, which is asked for some rounds, told to end under load and started again on its
folder. It says with which seed it failed.
"""

import argparse
import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import psutil
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from latebind.bench.client import poisson
from latebind.bench.ledger.books import Ledger
from latebind.bench.ledger.faults import Fault, Injected, Injector
from latebind.bench.ledger.networks import build
from latebind.bench.ledger.play import Played, Target, play, taken
from latebind.bench.ledger.questions import KINDS, LONGEST, MARKS, WIDTH, WORDS, Mix, Protocol, Questions
from latebind.bench.server import tree
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes
from research.peers.servers import free_port, running
from tests.server.hostile.test_framing import ENDS

MODELS = ("affine", "chain", "relay", "words")
IN_FLIGHT = 16
END_SECONDS, QUIET_SECONDS, CLOSE_SECONDS = 90.0, 60.0, 15.0  # a frontend closes idle connections after 10
DESCRIPTORS = 6  # beyond those behind the first round: connections of clients that have just gone
OFTEN = "[generations]\ncrashes = 1000000\n"  # else a model that all this happens to would be left out
PATIENCE = 60.0
PAGES = ("/metrics", "/v2/models/stats", "/v2/traces", "/dashboard/data", "/dashboard/picture", "/v2/health/live")
REFUSALS = ("503", "504", "429", "StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")
STREAMED = 8
PREFIX = "/latebind-soak-"  # of shared memory
LEAVING = 0.3  # share of the clients of sentences that hang up


def options(random: Random, folder: Path) -> list[str]:
    """Return settings of `latebind serve`."""
    words = ["--manage", "--shared-memory", PREFIX, "--trace-rate", random.choice(("0", "0.05"))]
    words += ["--policy", random.choice(("late", "late", "lazy+", "graph")), "--watch", "2"]
    words += ["--slots", random.choice(("16", "64", "256")), "--config", str(folder / "often.toml")]
    words += ["--workers", random.choice(("1", "2"))]
    words += ["--memory", random.choice(("8MB", "30MB"))] if random.random() < 0.5 else []
    return words


def soak(seed: int, built: Path, rounds: int, requests: int, rate: float) -> None:
    """Play one seed. Raises `AssertionError`."""
    random = Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch) / "log"
        shutil.copytree(built, folder / "models")
        (folder / "often.toml").write_text(OFTEN)
        words = options(random, folder)
        print(f"seed {seed}: {' '.join(words)}", flush=True)
        try:
            _serve(random, folder, words, rounds, requests, rate)
            _serve(random, folder, words, 1, requests // 10, rate)  # again, on the folder as it was left
            _, *found = log.read_text().partition("Traceback")
            assert not found[0], "".join(found)[:4000]
        except BaseException:
            print(log.read_text()[-8000:], flush=True)
            raise


def _serve(random: Random, folder: Path, words: Sequence[str], rounds: int, requests: int, rate: float) -> None:
    port, grpc = free_port(), free_port()
    command = [sys.executable, "-m", "latebind", "serve", str(folder / "models"), "--port", str(port)]
    command += ["--grpc-port", str(grpc), *words]
    shared = set(Path("/dev/shm").iterdir())
    with running(command, http=port, grpc=grpc, ready="/v2/models/words/ready", log=folder / "log") as served:
        target, open_then = Target("127.0.0.1", port, f"127.0.0.1:{grpc}", served.process), 0
        for number in range(rounds):
            _round(random, target, folder / "models", requests, rate)
            opened = _open_files(target.process, open_then)
            memory = taken(target.process) / 1e6
            print(f"  round {number}: {len(opened)} descriptors of the frontend, {memory:.0f} MB", flush=True)
            assert not number or len(opened) <= open_then + DESCRIPTORS, opened
            open_then = open_then or len(opened)
        _end_under_load(target)
    left = [one for one in set(Path("/dev/shm").iterdir()) - shared if one.name.startswith("latebind")]
    assert not left, left


def _open_files(process: int, wanted: int) -> list[str]:
    """Return what a process has open, once that is about as much as it was, or does not fall to that."""
    until = time.monotonic() + CLOSE_SECONDS
    while True:
        found = sorted(os.readlink(one) for one in Path(f"/proc/{process}/fd").iterdir() if os.path.islink(one))
        if (wanted and len(found) <= wanted + DESCRIPTORS) or time.monotonic() > until:
            return found
        time.sleep(0.5)


def _round(random: Random, target: Target, repository: Path, requests: int, rate: float) -> None:
    mix = Mix(
        MODELS, tuple(Protocol), deadlines=(0.05, 0.5, 5.0), leave=0.08, break_off=0.04, seed=random.randrange(99)
    )
    seeds = partial(Random, random.randrange(1 << 30))
    operator = Operator(target, repository, seeds(), next(VERSIONS))
    beside = [
        Beside(lambda: look(target, random), 0.3),
        Beside(lambda: send_nonsense(target, random), 0.05),
        Beside(operator, 1.0),
        Beside(lambda: share_memory(target, random), 0.2),
        Beside(lambda: stream(target, random), 0.2),
        Beside(partial(say, target, seeds()), 0.1),
    ]
    faults = [
        Injector(fault, target.process, target.http, random.randint(0, 2), MODELS[:2], place=place, places=3)
        for place, fault in enumerate(Fault)
    ]

    async def run() -> Played:
        times = poisson(rate, Random(mix.seed))
        return await play(target, Questions(mix), times, requests, inject=[*beside, *faults], patience=60.0)

    played = asyncio.run(run())
    print(f"  {dict(played.ledger.faults)} {[one.count for one in beside]} {[one.what for one in played.injected]}")
    assert played.ledger.whole, played.ledger.evidence
    asyncio.run(_quiet(target))


VERSIONS = count(100, 100)  # of `affine`, for each operator


async def _quiet(target: Target) -> None:
    """Wait until nothing is pending; then answers and latencies are as many, whoever counted them."""
    async with asyncio.timeout(QUIET_SECONDS):
        while any(value for (name, _), value in figures(target).items() if name == "latebind_pending_requests"):
            await asyncio.sleep(0.1)
    found = figures(target)
    for model in MODELS:
        left = found.get(("latebind_left_at_total", model), 0.0)
        counted = found.get(("latebind_latency_seconds_count", model), 0.0)
        assert left in {0.0, counted}, f"{model}: {left:g} left at a stage, {counted:g} were answered"


def _end_under_load(target: Target) -> None:
    """Tell the server to end with calls in flight: those accepted are answered, it ends with 0, no process is left."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [4, WIDTH], "data": [1.0] * 4 * WIDTH}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 30_000_000}}).encode()
    every, process = tree(target.process), psutil.Process(target.process)
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        calls = [threads.submit(ask, target, "POST", "/v2/models/relay/infer", body) for _ in range(IN_FLIGHT)]
        calls[0].result()
        process.send_signal(signal.SIGTERM)
        for call in calls:
            with suppress(ConnectionRefusedError, ConnectionResetError):  # no frontend had accepted it when that closed
                assert call.result()[0] in {200, 503}, call.result()
    code = process.wait(END_SECONDS)
    assert code == 0, f"the server ended with {code}"
    _, left = psutil.wait_procs(every, timeout=10)
    assert not left, left


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
            connection.sendall(random.choice(ENDS))
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


def say(target: Target, random: Random) -> None:
    """Ask for a sentence whose tokens come as they are written; some clients hang up between two."""
    length, leaves = random.randint(2, LONGEST), random.random() < LEAVING
    row = np.array([[random.randrange(MARKS, WORDS) for _ in range(length)]], np.int64)
    connection = http.client.HTTPConnection(target.host, target.http, timeout=PATIENCE)
    try:
        call = {"tokens": row[0].tolist(), "parameters": {"timeout": 2_000_000}}
        connection.request("POST", "/v2/models/words/generate_stream", json.dumps(call))
        reply = connection.getresponse()
        if reply.status != http.HTTPStatus.OK:
            assert reply.status in {503, 504}, (reply.status, reply.read())
            return
        said = list[int]()
        for line in reply:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    return
                said += event["tokens"]
                if leaves:
                    return
        assert said == KINDS["words"].right(row)[0].tolist(), (row, said)
    finally:
        connection.close()


def main() -> None:
    """Play seeds, or as many as fit into some seconds."""
    parser = argparse.ArgumentParser(description="Everything at once, by seeds.")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=4, help="how many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1500, help="a round")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        built = build(Path(scratch) / "models", MODELS)
        publish(built, "guest", 1)
        for seed in range(asked.seed, asked.seed + asked.seeds):
            try:
                soak(seed, built, asked.rounds, asked.requests, asked.rate)
            except BaseException:
                print(f"failed with --seed {seed} --seeds 1", flush=True)
                raise
            print(f"seed {seed}: all is well", flush=True)


if __name__ == "__main__":
    main()
