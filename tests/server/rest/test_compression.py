"""Compressed bodies and replies: as tritonclient sends and reads them, and what a bomb comes to."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st

from latebind.server.limits import Limits
from latebind.server.rest.compression import Inflater, accepted
from tests.server.bodies import DOUBLE, request
from tests.server.conftest import Site

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
LARGE = np.tile(np.arange(1024, dtype=np.float32), (1, 1024, 1))


def undone(parts: list[bytes], encoding: str = "gzip", limits: Limits | None = None) -> bytes:
    async def read() -> bytes:
        coming = iter([*parts, b""])

        async def receive() -> tuple[bytes, bool]:
            part = next(coming)
            return part, part != b""

        inflating = Inflater(receive, encoding.encode(), limits or Limits())
        found, more = bytearray(), True
        while more:
            piece, more = await inflating.receive()
            assert len(piece) <= 1 << 18
            found += piece
        return bytes(found)

    return asyncio.run(read())


@given(st.binary(max_size=2000), st.integers(1, 400), st.sampled_from(["gzip", "deflate"]))
def test_a_body_comes_out_as_it_was_however_it_was_cut(body: bytes, cut: int, encoding: str) -> None:
    sent = PACK[encoding](body)
    assert undone([sent[start : start + cut] for start in range(0, len(sent), cut)], encoding) == body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("more", [1, 100, 257, 258, 259, 600])
def test_what_is_made_of_the_last_bytes_is_not_lost_where_a_step_ends_there(encoding: str, more: int) -> None:
    body = bytes((1 << 18) + more)
    sent = PACK[encoding](body)
    for cut in range(1, 12):
        assert undone([sent[:-cut], sent[-cut:]], encoding) == body


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
