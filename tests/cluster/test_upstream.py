"""Which replies an ingress need not parse."""

import asyncio
import gc
import socket
import weakref

import pytest

from latebind.cluster.upstream import Lost, Upstream, is_whole
from latebind.server.rest.request import Reply

HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: "
CUT = HEAD + b"%d\r"  # within a head, where a count of its bytes could be taken for that of a body


def test_a_usual_reply_is_whole_with_the_last_byte_of_its_body() -> None:
    assert is_whole(HEAD + b"4\r\n\r\nonce")
    assert is_whole(HEAD + b"0\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"4\r\n\r\nonc",
        HEAD + b"4\r\n\r\nonce and more",
        *(CUT % size for size in range(40, 60)),
        HEAD + b"4\r\nconnection: close\r\n\r\nonce",
        HEAD.replace(b"200 OK", b"503 Service Unavailable") + b"4\r\n\r\nonce",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_cut_closes_or_failed_is_not(data: bytes) -> None:
    assert not is_whole(data)


def test_what_looks_like_a_reply_within_a_body_is_a_part_of_that() -> None:
    """As where a body comes in several parts, and somebody else has a say in what is in it."""
    within = HEAD + b"4\r\n\r\nonce"
    told: list[Reply | Lost | bytes] = []

    async def test() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _, upstream = await asyncio.get_running_loop().create_connection(Upstream, sock=ours)
            upstream.send_on((b"asked",), told.append)
            upstream.data_received(HEAD + b"%d\r\n\r\n" % len(within))
            upstream.data_received(within)
            upstream.abort()

    asyncio.run(test())
    (reply,) = told
    assert isinstance(reply, Reply)
    assert reply.body == within


def test_the_error_of_a_lost_reply_is_freed_without_the_collector() -> None:
    async def test() -> None:
        ours, theirs = socket.socketpair()
        _, upstream = await asyncio.get_running_loop().create_connection(Upstream, sock=ours)
        asyncio.get_running_loop().call_soon(theirs.close)
        try:
            await upstream.ask((b"asked",))
        except Lost as lost:
            kept = weakref.ref(lost)
        await asyncio.sleep(0)  # the loop lets go of the future in its next turn
        assert kept() is None

    gc.disable()
    try:
        asyncio.run(test())
    finally:
        gc.enable()
