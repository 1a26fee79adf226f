"""Bodies that ingress and replicas collect before they go on: all of them together are bounded."""

import asyncio

import pytest

from latebind.cluster.rpc import replica_route
from latebind.cluster.upstream import STATUS
from latebind.server.limits import Limits
from latebind.server.rest.infer import Context
from latebind.server.rest.protocol import Held
from latebind.server.service import Service
from tests.cluster.small import small
from tests.server.arithmetic import Arithmetic
from tests.server.bodies import SCALAR, request
from tests.server.conftest import scalar, until
from tests.server.rpc.conftest import request as message
from tests.server.taking import arriving

CALL = message(raw=[bytes(64)], inputs=[]).SerializeToString()
PATH = "inference.GRPCInferenceService/ModelInfer"


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


@pytest.mark.parametrize(("most", "status"), [(len(CALL), b"INVALID_ARGUMENT"), (len(CALL) - 1, b"RESOURCE_EXHAUSTED")])
def test_messages_that_a_replica_collects_are_counted_with_other_bodies(most: int, status: bytes) -> None:
    async def test() -> None:
        context = Context(Service(Arithmetic()), Limits(held_bytes=most))
        called = arriving([CALL[:1], CALL[1:]], context=context, METHOD=PATH)
        reply = await replica_route().verb(context, called)
        called.release()
        assert dict(reply.headers)[STATUS] == status
        assert context.held.bytes == 0

    asyncio.run(test())
