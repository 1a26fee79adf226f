"""Compressed bodies that are bombs, broken or not what they say."""

import gzip
import json
import zlib

import pytest

from tests.server.bodies import DOUBLE, request
from tests.server.conftest import Site
from tests.server.hostile.wire import check_clean

PLAIN = json.dumps(request()).encode()
GZIP = gzip.compress(PLAIN)
DEFLATE = zlib.compress(PLAIN)
LARGE = bytes(100 << 20)


def raw_deflate(content: bytes) -> bytes:
    """Deflate without zlib's head, as some clients understand the word."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


def with_field(flag: int, field: bytes) -> bytes:
    """A gzip head that says of a field that it follows."""
    return GZIP[:3] + bytes([flag]) + GZIP[4:10] + field


BROKEN: dict[str, tuple[str, bytes]] = {
    "zeros without end, gzip": ("gzip", gzip.compress(LARGE)),
    "zeros without end, deflate": ("deflate", zlib.compress(LARGE)),
    "a bomb in a bomb": ("gzip", gzip.compress(gzip.compress(LARGE))),
    "spaces of JSON without end": ("gzip", gzip.compress(b'{"inputs":' + b" " * (70 << 20))),
    "a stream behind a stream": ("gzip", GZIP + GZIP),
    "a thousand empty streams": ("gzip", gzip.compress(b"") * 1000),
    "something behind the stream": ("deflate", DEFLATE + b"x"),
    "half a stream": ("gzip", GZIP[: len(GZIP) // 2]),
    "a head alone": ("gzip", GZIP[:10]),
    "a stream without its check": ("gzip", GZIP[:-8]),
    "a check that is wrong": ("gzip", GZIP[:-8] + b"\0\0\0\0" + GZIP[-4:]),
    "a length that is wrong": ("gzip", GZIP[:-4] + b"\xff\xff\xff\xff"),
    "a check of deflate that is wrong": ("deflate", DEFLATE[:-1] + b"\0"),
    "a name in the head without end": ("gzip", with_field(8, b"a" * 2_000_000)),
    "a comment in the head without end": ("gzip", with_field(16, b"a" * 2_000_000)),
    "an extra field past the end": ("gzip", with_field(4, b"\xff\xff")),
    "flags that are reserved": ("gzip", with_field(0xE0, GZIP[10:])),
    "another method": ("gzip", GZIP[:2] + b"\7" + GZIP[3:]),
    "a dictionary that nobody has": ("deflate", b"\x78\xf9\0\0\0\1" + DEFLATE[2:]),
    "a window that is too large": ("deflate", b"\x98\x25" + DEFLATE[2:]),
    "a block of an unknown kind": ("deflate", b"\x78\x9c\x07"),
    "a distance before the beginning": ("deflate", b"\x78\x9c" + bytes.fromhex("4b04c20000")),
    "deflate for gzip": ("gzip", DEFLATE),
    "gzip for deflate": ("deflate", GZIP),
    "deflate without its head": ("deflate", raw_deflate(PLAIN)),
    "no stream at all": ("gzip", PLAIN),
    "nothing": ("gzip", b""),
    "gzip twice": ("gzip, gzip", gzip.compress(GZIP)),
    "an encoding that nobody knows": ("zstd", PLAIN),
    "an encoding of 5 kB": ("g" * 5000, PLAIN),
}


@pytest.mark.parametrize(("encoding", "body"), BROKEN.values(), ids=BROKEN.keys())
def test_a_compressed_body_that_is_broken_or_a_bomb_is_refused(site: Site, encoding: str, body: bytes) -> None:
    reply = site.post(DOUBLE, body, {"Content-Encoding": encoding})
    assert reply.status in {400, 413, 415}
    check_clean(reply)


ACCEPTED = ["gzip;q=nan", "gzip;q=-1", "gzip;q=1e999", ";;;,,,", "*" * 5000, "gzip;q=" + "9" * 5000]


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda text: text[:20])
def test_an_accepted_encoding_that_is_none_harms_nobody(site: Site, accepted: str) -> None:
    reply = site.post(DOUBLE, request(), {"Accept-Encoding": accepted})
    assert reply.status == 200
