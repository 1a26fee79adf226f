"""Hostile inputs of every kind from many clients at once, through a whole server of models from folders.

Texts, pictures, sounds, tokens and bodies that are random, altered or nearly right, over HTTP and gRPC: each gets an
answer or a refusal that tells nothing of the server's inside. Afterwards every model answers as the folder's own
pipeline does, nothing has ended or grown, and the log has no traceback.
`HYPOTHESIS_PROFILE=thorough pytest tests/server/test_hostile_folders.py` sends 10,000.
"""

import http.client
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from latebind.bench.server import launched, tree
from latebind.child import Child
from latebind.forks.client import VARIABLE
from tests.folders.making import made_case, pictures, reference, sounds, texts
from tests.preprocessing.making import HARD
from tests.preprocessing.test_fuzz import altered
from tests.server.conftest import PATIENCE
from tests.server.hostile.wire import LEAKS, LONGEST
from tests.server.tasks.test_hostile import NOTHING, broken, changed

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
COUNT, CLIENTS = (10_000, 24) if THOROUGH else (400, 12)
NAMES = {"text": "bert_mean", "image": "vit", "sound": "wav2vec2"}  # what a model reads, and its name
GROWTH = 1 << 30  # bytes that the largest of a process may be above what it was when all was loaded
REFUSED = {400, 404, 408, 413, 415, 422, 429, 503, 504}
CODES = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "OUT_OF_RANGE"}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Site:
    """A server, where its folders are, and its log."""

    child: Child
    folders: Mapping[str, Path]
    log: Path

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.child.url.removeprefix("http://"), timeout=PATIENCE)

    def peaks(self) -> dict[int, int]:
        """Return the most bytes that each of its processes has ever had in memory."""
        found = {}
        for one in tree(self.child.process.pid):
            lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
            found[one.pid] = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("hostile")
    folders = {name: made_case(tmp_path_factory, name) for name in NAMES.values()}
    for name, made in folders.items():
        copytree(made / "models" / name, place / "models" / name)
    options = ("--grpc-port", "0", "--deadline-ms", str(int(PATIENCE * 1e3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE)  # nobody lends it processes: all that it has are its own, and counted
        with launched(place / "models", *options, log=place / "log") as child:
            yield Site(child, {name: made / "folder" for name, made in folders.items()}, place / "log")


# What is right --------------------------------------------------------------------------------------------------------


def binary(kind: str, element: bytes, **more: Any) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a v2 call with one element."""
    blob = len(element).to_bytes(4, "little") + element
    about = {"name": kind, "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(blob)}, **more}
    head = json.dumps({"inputs": [about], "parameters": {"truncate": True}}).encode()
    return head + blob, {"Inference-Header-Content-Length": str(len(head))}


def all_answer_rightly(site: Site) -> None:
    some: dict[str, Sequence[Any]] = {"text": texts(5), "image": pictures(5), "sound": sounds(5)}
    connection = site.connect()
    for kind, name in NAMES.items():
        wanted = reference(name, site.folders[name])(some[kind], [])
        for given, (right, *_) in zip(some[kind], wanted, strict=True):
            body, headers = binary(kind, given.encode() if isinstance(given, str) else given)
            connection.request("POST", f"/v2/models/{name}/infer", body, headers)
            reply = connection.getresponse()
            told = json.loads(reply.read())
            assert reply.status == 200, told
            np.testing.assert_allclose(told["outputs"][0]["data"], right.ravel().numpy(), rtol=1e-3, atol=1e-4)
    connection.close()


# What is not ----------------------------------------------------------------------------------------------------------


def text(random: Random) -> bytes:
    match random.randrange(4):
        case 0:
            return "".join(chr(random.randrange(0xD800)) for _ in range(random.choice((0, 1, 40, 3_000)))).encode()
        case 1:
            return random.randbytes(random.choice((0, 1, 5, 300)))
        case 2:
            return altered(random.choice(HARD).encode(), random)
        case _:
            return random.choice(("a", "é", "漢", " ", "\u0301", "\U0001f469\u200d")).encode() * random.choice(
                (1, 5_000)
            )


def file_of(good: Sequence[bytes]) -> Callable[[Random], bytes]:
    return lambda random: altered(random.choice(good), random) if random.random() < 0.9 else random.randbytes(200)


ELEMENTS: dict[str, Callable[[Random], bytes]] = {
    "text": text,
    "image": file_of(pictures(6, seed=1)),
    "sound": file_of(sounds(6, seed=1)),
}
TEXT, IMAGE = NAMES["text"], NAMES["image"]
INPUT = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
TOKENS = [{"name": name, "shape": [1, 3], "datatype": "INT64", "data": [2, 9, 3]} for name in ("input_ids",)]
BODIES: list[tuple[str, dict[str, Any]]] = [
    (f"/v2/models/{TEXT}/infer", {"inputs": [INPUT], "parameters": {"truncate": True}}),
    (f"/v2/models/{TEXT}/infer", {"inputs": [*TOKENS, {**TOKENS[0], "name": "attention_mask", "data": [1, 1, 1]}]}),
    (f"/v2/models/{IMAGE}/infer", {"inputs": [{**INPUT, "name": "image", "data": ["QUJD", "!"]}]}),
    (f"/v2/models/{TEXT}/generate", {"text": "a b"}),
    ("/v1/embeddings", {"model": TEXT, "input": ["a", "b"], "dimensions": 4, "encoding_format": "float"}),
    ("/v1/embeddings", {"model": TEXT, "input": [[5, 6], [7]], "truncate": True}),
    ("/embed", {"inputs": ["a", "b"], "normalize": True, "truncate": True}),
    ("/rerank", {"query": "a", "texts": ["b"]}),
]


def over_http(connection: http.client.HTTPConnection, random: Random) -> str:
    headers: dict[str, str] = {}
    if random.random() < 0.6:
        kind = random.choice([*NAMES])
        path = f"/v2/models/{NAMES[kind]}/infer"
        body, headers = binary(kind, ELEMENTS[kind](random))
        if random.random() < 0.2:
            body = altered(body, random)  # and the head with it
    else:
        path, good = random.choice(BODIES)
        body = json.dumps(changed(good, random) if random.random() < 0.7 else good).encode()
        body = broken(body, random) if random.random() < 0.3 else body
        body = random.choice(NOTHING) if random.random() < 0.1 else body
    connection.request("POST", path, body, headers)
    reply = connection.getresponse()
    told = reply.read()
    assert reply.status == 200 or reply.status in REFUSED, (reply.status, told[:300])
    if reply.status != 200:
        assert len(told) < 4 * LONGEST
        assert not LEAKS.search(told.decode()), told
    return str(reply.status)


def over_grpc(client: triton.InferenceServerClient, random: Random) -> str:
    kind = random.choice([*NAMES])
    count = random.choice((1, 1, 3))
    given = triton.InferInput(kind, [count], "BYTES")
    given.set_data_from_numpy(np.array([ELEMENTS[kind](random) for _ in range(count)], np.object_))
    try:
        client.infer(NAMES[kind], [given], parameters={"truncate": random.random() < 0.8})
        return "OK"
    except InferenceServerException as error:
        code, told = str(error.status()).removeprefix("StatusCode."), str(error.message())
    assert code in CODES, told
    assert not LEAKS.search(told), told
    return code


def test_whatever_comes_is_answered_or_refused_and_every_model_answers_rightly_afterwards(site: Site) -> None:
    def client(seed: int) -> Counter[str]:
        random, seen = Random(seed), Counter[str]()
        connection = site.connect()
        with triton.InferenceServerClient(site.child.grpc) as stub:
            for _ in range(COUNT // CLIENTS + 1):
                over_wire = random.random() < 0.7
                seen[over_http(connection, random) if over_wire else over_grpc(stub, random)] += 1
        connection.close()
        return seen

    all_answer_rightly(site)
    before = site.peaks()
    with ThreadPoolExecutor(CLIENTS) as clients:
        seen = sum(clients.map(client, range(CLIENTS)), Counter[str]())
    all_answer_rightly(site)
    after = site.peaks()
    assert len(after) > 1, "the engine is a process of its own"
    assert after.keys() == before.keys(), "a process has ended, or another begun"
    assert max(after[process] - before[process] for process in after) < GROWTH
    assert "Traceback" not in site.log.read_text()
    assert seen.total() >= COUNT
    assert min(seen["200"] + seen["OK"], seen["400"], seen["INVALID_ARGUMENT"]) > COUNT / 40, seen
    print(seen, {process: (before[process] >> 20, after[process] >> 20) for process in after})


def test_lists_of_2048_texts_against_a_busy_engine_are_answered_or_refused_and_all_end(site: Site) -> None:
    known = texts(64, seed=2)
    many = known * 32

    def client(number: int) -> int:
        connection = site.connect()
        headers = {"Latebind-Timeout": "0.3"} if number % 3 == 2 else {}
        body = json.dumps({"model": TEXT, "input": many, "truncate": True})
        connection.request("POST", "/v1/embeddings", body, headers)
        reply = connection.getresponse()
        told = json.loads(reply.read())
        connection.close()
        assert reply.status in {200, 429, 503, 504}, told
        if reply.status == 200:
            found = np.array([one["embedding"] for one in told["data"]], np.float32).reshape(32, 64, -1)
            np.testing.assert_allclose(found, np.broadcast_to(found[:1], found.shape), rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(np.linalg.norm(found[0], axis=-1), 1.0, rtol=1e-4)
        return reply.status

    count = 24 if THOROUGH else 6
    with ThreadPoolExecutor(count) as clients:
        seen = Counter(clients.map(client, range(count)))
    assert seen[200] >= 2, seen
    assert seen.total() == count
    all_answer_rightly(site)
    assert "Traceback" not in site.log.read_text()
    print(seen)
