"""A connection from the ingress to a replica."""

import asyncio
import gc
import socket
import weakref

from latebind.cluster.upstream import Lost, Upstream


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
