"""A real server from the outside: where its processes listen, and whom it answers."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address

import psutil
import pytest

from latebind.bench.server import serving
from latebind.repository.directory import ModelDirectory
from tests.server.conftest import PATIENCE
from tests.server.hostile.handmade import good
from tests.server.test_access import token_files

BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with everything turned on that listens or takes orders, and a token for either kind of call."""
    folder = tmp_path_factory.mktemp("served")
    ModelDirectory.create(folder / "models" / "tiny" / "1", good())
    files = token_files(folder)
    options = ("--token-file", files["token_file"], "--admin-token-file", files["admin_token_file"])
    with serving(folder / "models", "--grpc-port", "0", "--manage", *options) as found:
        yield found


def tree() -> list[psutil.Process]:
    """Return all that this process has started, the server and what that has forked among it, and that still runs."""
    return [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]


def plain(address: str) -> str:
    """Return an address as IPv4 where it is one that IPv6 has mapped, as gRPC listens."""
    found = ip_address(address)
    return str((found.ipv4_mapped if isinstance(found, IPv6Address) else None) or found)


def status(url: str, token: str | None, body: object = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_every_socket_that_listens_is_on_loopback(url: str) -> None:
    bound = [one for process in tree() for one in process.net_connections("inet") if not one.raddr]
    assert len(tree()) >= 3
    assert len({one.laddr.port for one in bound}) == 2, "HTTP and gRPC, and nothing else"
    assert {plain(one.laddr.ip) for one in bound} == {"127.0.0.1"}
    assert all(one.type == socket.SOCK_STREAM for one in bound)


def test_shared_memory_has_no_name_that_anybody_could_open(url: str) -> None:
    mapped = {one.path for process in tree() for one in process.memory_maps()}
    assert any(path.startswith("/memfd:latebind") for path in mapped)
    assert not [path for path in mapped if path.startswith("/dev/shm/")]


def test_without_a_token_there_is_health_alone(url: str) -> None:
    assert status(f"{url}/v2/health/ready", None) == 200
    for path in ("/v2", "/v2/models", "/metrics", "/v2/models/tiny"):
        assert status(url + path, None) == 401
    assert status(f"{url}/v2/models/tiny/infer", None, BODY) == 401
