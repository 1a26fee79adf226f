"""Calls whose head came before, word for word: the ingress passes them on, and their replies back, unread."""

import json
import socket

from latebind.server.limits import Limits
from tests.cluster.small import Dead, Later, Once, Small, small, until
from tests.server.bodies import SCALAR, request
from tests.server.conftest import read_response, scalar
from tests.server.test_door import STUCK_CALL

TEXT = json.dumps(request(scalar(21.0))).encode()
CALL = f"POST {SCALAR} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(TEXT)}\r\n\r\n".encode() + TEXT


def twice(connection: socket.socket) -> tuple[bytes, bytes]:
    """Send one call, word for word, two times, so that the second takes the short way; return the replies' bodies."""
    bodies = []
    for _ in range(2):
        connection.sendall(CALL)
        reply = read_response(connection)
        assert reply.status == 200
        bodies.append(reply.body)
    return bodies[0], bodies[1]


def test_calls_of_one_head_are_answered_alike() -> None:
    with small(1) as cluster, cluster.ingress.connect() as connection:
        first, second = map(json.loads, twice(connection))
    assert first["outputs"] == second["outputs"]


def asked(connection: socket.socket, replica: Dead) -> None:
    """Send a call twice: the second takes the short way, and its replica has said what it says until it is told."""
    connection.sendall(CALL)
    assert read_response(connection).status == 200
    connection.sendall(CALL)
    until(lambda: replica.called == 2)


def test_a_reply_on_the_short_way_that_comes_in_parts_is_put_together() -> None:
    later = Later(at_once=30)
    with small(0, dead=later) as cluster, cluster.ingress.connect() as connection:
        asked(connection, later)
        cluster.do(later.told.set)
        assert read_response(connection).body == b"once"


def test_a_reply_on_the_short_way_says_so_where_the_ingress_closes_behind_it() -> None:
    later = Later(at_once=0)
    with small(0, dead=later) as cluster, cluster.ingress.connect() as connection:
        asked(connection, later)
        cluster.do(cluster.ingress.door.close)
        until(lambda: refuses(cluster))
        cluster.do(later.told.set)
        reply = read_response(connection)
        assert (reply.status, reply.body, reply.headers["connection"]) == (200, b"once", "close")


def refuses(cluster: Small) -> bool:
    """Whether the ingress listens no more."""
    try:
        cluster.ingress.connect().close()
    except OSError:
        return True
    return False


def test_a_call_on_the_short_way_whose_replica_is_lost_is_answered_by_another() -> None:
    dying = Once()
    with small(1, dead=dying) as cluster, cluster.ingress.connect() as connection:
        cluster.home("scalar", "dead")
        first, second = twice(connection)
        assert first == b"once"
        assert json.loads(second)["outputs"][0]["data"] == [42.0]
        assert (dying.called, [gateway.answered["scalar"] for gateway in cluster.gateways]) == (2, [1])
        text = cluster.call("GET", "/metrics").body.decode()
        assert "latebind_ingress_moved_total 1\n" in text
        assert "latebind_ingress_short_total 1\n" in text


def test_a_client_on_the_short_way_that_hangs_up_ends_the_call_at_the_replica() -> None:
    slow = Once(lingers=True)
    with small(0, dead=slow) as cluster:
        connection = cluster.ingress.connect()
        asked(connection, slow)
        assert not slow.left.is_set()
        connection.close()
        assert slow.left.wait(60.0)
        assert cluster.do(lambda: [peer.under_way for peer in cluster.fleet.peers]) == [0]


def test_a_client_that_hangs_up_while_another_replica_is_asked_ends_the_call_there() -> None:
    with small(1, dead=Once()) as cluster:
        cluster.home("stuck", "dead")
        with cluster.ingress.connect() as connection:
            connection.sendall(STUCK_CALL)
            assert read_response(connection).body == b"once"
            connection.sendall(STUCK_CALL)
            cluster.wait(cluster.gateways[0].stuck)
        cluster.wait(cluster.gateways[0].cancelled)


def test_who_is_on_the_short_way_when_the_ingress_closes_is_told_so() -> None:
    slow = Once(lingers=True)
    with small(0, dead=slow, limits=Limits(drain_seconds=1)) as cluster:
        connection = cluster.ingress.connect()
        asked(connection, slow)
    reply = read_response(connection)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    connection.close()
