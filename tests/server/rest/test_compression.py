"""Compressed bodies and replies: as tritonclient sends and reads them, and what a bomb comes to."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from hypothesis import given
from hypothesis import strategies as st

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.server.limits import Limits
from latebind.server.rest.compression import Inflater, accepted
from tests.server.bodies import DOUBLE, request
from tests.server.conftest import Site, opened

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
LARGE = np.tile(np.arange(1024, dtype=np.float32), (1, 1024, 1))


def undone(parts: list[bytes], encoding: str = "gzip", limits: Limits | None = None) -> bytes:
    messages = iter([{"type": "http.request", "body": part, "more_body": True} for part in parts])
    end = {"type": "http.request", "body": b"", "more_body": False}

    async def receive() -> Any:
        return next(messages, end)

    async def read() -> bytes:
        inflating = Inflater(receive, encoding.encode(), limits or Limits())
        found = bytearray()
        while True:
            message = await inflating()
            assert len(message["body"]) <= 1 << 18
            found += message["body"]
            if not message["more_body"]:
                return bytes(found)

    return asyncio.run(read())


@given(st.binary(max_size=2000), st.integers(1, 400), st.sampled_from(["gzip", "deflate"]))
def test_a_body_comes_out_as_it_was_however_it_was_cut(body: bytes, cut: int, encoding: str) -> None:
    sent = PACK[encoding](body)
    assert undone([sent[start : start + cut] for start in range(0, len(sent), cut)], encoding) == body


@pytest.mark.parametrize("size", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 1 << 19, 1_000_000])
def test_a_body_larger_than_a_step_is_whole(size: int) -> None:
    body = np.random.default_rng(0).integers(0, 4, size, np.uint8).tobytes()
    assert undone([gzip.compress(body, 1)]) == body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("more", [1, 100, 257, 258, 259, 600])
def test_what_is_made_of_the_last_bytes_is_not_lost_where_a_step_ends_there(encoding: str, more: int) -> None:
    body = bytes((1 << 18) + more)
    sent = PACK[encoding](body)
    for cut in range(1, 12):
        assert undone([sent[:-cut], sent[-cut:]], encoding) == body


BROKEN: dict[str, list[bytes]] = {
    "no gzip": [b"hello"],
    "half of it": [gzip.compress(b"a" * 100)[:-9]],
    "bytes behind it": [gzip.compress(b"a") + b"b"],
    "bytes behind it later": [gzip.compress(b"a"), b"b"],
    "a second one": [gzip.compress(b"a") * 2],
    "a wrong sum": [gzip.compress(b"a")[:-8] + bytes(8)],
    "a zlib stream": [zlib.compress(b"a")],
}


@pytest.mark.parametrize("parts", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_stream_of_its_encoding_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(InvalidRequest):
        undone(parts)


@pytest.mark.parametrize("bomb", [gzip.compress(bytes(50 << 20)), gzip.compress(bytes(1100 << 10) * 2)[:-8]])
def test_a_bomb_is_refused_once_it_has_made_too_much(bomb: bytes) -> None:
    with pytest.raises(TooLarge, match="more than 200 times"):
        undone([bomb])


def test_a_stream_that_makes_nothing_is_refused_once_too_much_has_come() -> None:
    nothing = zlib.compressobj(wbits=31)
    start = nothing.compress(b"a") + nothing.flush(zlib.Z_FULL_FLUSH)
    with pytest.raises(TooLarge, match="more than 10000 bytes"):
        undone([start, *[b"\0\0\0\xff\xff" * 100] * 100], limits=Limits(body_bytes=10_000))


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        (None, None),
        (b"", None),
        (b"gzip", b"gzip"),
        (b"GZIP", b"gzip"),
        (b"deflate", b"deflate"),
        (b"br, deflate;q=0.5, gzip ; q = 0.1", b"gzip"),
        (b"gzip;q=0, deflate", b"deflate"),
        (b"gzip;q=0.000", None),
        (b"br", None),
        (b"identity", None),
        (b"gzip;q=x,,;", None),
        (b"gzip;level=9", None),
    ],
)
def test_the_reply_takes_an_encoding_that_the_client_takes(header: bytes | None, encoding: bytes | None) -> None:
    assert accepted(header) == encoding


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_may_compress_both_ways(site: Site, encoding: str, binary: bool) -> None:
    model, x = ("large", LARGE) if binary else ("double", np.arange(1024, dtype=np.float32).reshape(64, 16))
    given_input = triton.InferInput("x", list(x.shape), "FP32")
    given_input.set_data_from_numpy(x, binary_data=binary)
    with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
        wanted = triton.InferRequestedOutput("y", binary_data=binary)
        both = {f"{way}_compression_algorithm": encoding for way in ("request", "response")}
        found = client.infer(model, [given_input], outputs=[wanted], **both).as_numpy("y")
    np.testing.assert_array_equal(found, x * 2)


def test_the_asynchronous_client_may_compress_too(site: Site) -> None:
    given_input = triton.InferInput("x", [1, 1024, 1024], "FP32")
    given_input.set_data_from_numpy(LARGE)

    async def ask() -> Any:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
            assert await client.get_model_config("pair")
            return await client.infer("large", [given_input], request_compression_algorithm="gzip")

    np.testing.assert_array_equal(asyncio.run(ask()).as_numpy("y"), LARGE * 2)


def test_the_length_of_the_json_counts_uncompressed_bytes_in_the_reply(site: Site) -> None:
    async def ask() -> tuple[Any, bytes]:
        async with aiohttp.ClientSession() as session:
            body = json.dumps({**json_of(LARGE), "parameters": {"binary_data_output": True}}).encode()
            async with session.post(f"http://127.0.0.1:{site.port}/v2/models/large/infer", data=body) as reply:
                return reply.headers, await reply.read()

    headers, body = asyncio.run(ask())
    assert headers["content-encoding"] in ("gzip", "deflate")
    assert headers["vary"] == "accept-encoding"
    head = int(headers["inference-header-content-length"])
    assert json.loads(body[:head])["outputs"][0]["parameters"]["binary_data_size"] == len(body) - head == 4 << 20


def json_of(x: Any) -> dict[str, object]:
    return {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}


def test_what_is_small_or_noise_goes_as_it_is(site: Site) -> None:
    small = site.post(DOUBLE, request(), {"Accept-Encoding": "gzip"})
    noise = np.random.default_rng(0).random((1, 1024, 1024), np.float32)
    tensor = {"name": "x", "shape": [1, 1024, 1024], "datatype": "FP32", "parameters": {"binary_data_size": 4 << 20}}
    head = json.dumps(request(tensor, parameters={"binary_data_output": True})).encode()
    headers = {"Accept-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    large = site.post("/v2/models/large/infer", head + noise.tobytes(), headers)
    for reply in (small, large):
        assert reply.status == 200
        assert "content-encoding" not in reply.headers


def test_other_calls_take_compressed_bodies_and_answer_plainly(site: Site) -> None:
    body = gzip.compress(b'{"ready": true}')
    reply = site.post("/v2/repository/index", body, {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"})
    assert len(reply.json()) > 1
    assert site.post("/v2/repository/index", b"", {"Content-Encoding": "gzip"}).status == 200


def test_a_bomb_leaves_the_door_standing() -> None:
    with opened(limits=Limits(body_bytes=2 << 20)) as site:
        for bomb in (zlib.compress(bytes(20 << 20)), zlib.compress(zlib.compress(bytes(20 << 20)))):
            reply = site.post(DOUBLE, bomb, {"Content-Encoding": "deflate"})
            assert reply.status in (400, 413)
            assert reply.error
        assert site.is_well()
        assert site.taken == 0


def test_errors_of_a_compressed_body_are_those_of_a_plain_one(site: Site) -> None:
    for body in (b"", b"{", b'{"inputs": []}', json.dumps(request(id="a")).encode() + b" "):
        plain, packed = (
            site.post(DOUBLE, sent, {"Content-Encoding": encoding})
            for sent, encoding in (
                (body, "identity"),
                (gzip.compress(body), "gzip"),
            )
        )
        assert (plain.status, plain.body) == (packed.status, packed.body)
