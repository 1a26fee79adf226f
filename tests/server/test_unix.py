"""A frontend on a Unix socket: who may connect, what is left at its path, and what stands in its way."""

import http.client
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from latebind.bench.server import launched
from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from latebind.server.listening import check_addresses, listen_at
from tests.server.conftest import PATIENCE, opened, scalar
from tests.versions import WIDTH, add_version


class Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(self._path))


def infer(path: Path, model: str, given: object, host: str = "localhost") -> tuple[int, object]:
    connection = Connection(path)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [given]}), {"Host": host})
    reply = connection.getresponse()
    found = reply.status, json.load(reply)["outputs"][0]["data"]
    connection.close()
    return found


def test_a_frontend_answers_on_its_socket_which_its_group_may_open_and_which_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "latebind.sock"
    with opened(FrontendConfig(unix=str(path))) as site:
        assert site.port == 0
        mode = path.stat().st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o660)
        for host in ("localhost", "shop.example"):  # as proxies send it
            assert infer(path, "scalar", scalar(21.0), host) == (200, [42.0])
    assert not path.exists()


def test_the_socket_of_a_server_that_was_killed_is_replaced_and_that_of_one_that_lives_is_not(tmp_path: Path) -> None:
    config = FrontendConfig(unix=str(tmp_path / "latebind.sock"))
    listen_at(config.unix).close()  # its file stays
    check_addresses(config)
    with opened(config):
        with pytest.raises(ConfigError, match="another process listens"):
            check_addresses(config)
        with pytest.raises(ConfigError, match="another process listens"):
            listen_at(config.unix)
        assert infer(Path(config.unix), "scalar", scalar(21.0)) == (200, [42.0])


def test_a_socket_that_took_the_place_of_ones_own_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "latebind.sock"
    with opened(FrontendConfig(unix=str(path))):
        path.rename(tmp_path / "aside")
        other = listen_at(str(path))
    assert path.exists()
    other.close()


def test_a_path_at_which_no_socket_can_be_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path, told in (
        (file, "is not a socket"),
        (tmp_path, "is not a socket"),
        (tmp_path / "nowhere" / "socket", "make that folder writable"),
        (file / "socket", "cannot listen"),
        (tmp_path / ("long" * 40), "too long"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_addresses(FrontendConfig(unix=str(path)))
    assert file.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_lends")
def test_latebind_serve_speaks_on_a_socket_and_on_no_port(tmp_path: Path) -> None:
    add_version(tmp_path / "models", "scale", 1, 3.0)
    path = tmp_path / "latebind.sock"
    with launched(tmp_path / "models", "--unix", str(path)) as server:
        assert server.url == f"unix:{path}"
        given = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [2.0] * WIDTH}
        assert infer(path, "scale", given) == (200, [6.0] * WIDTH)
        connections = Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
        inodes = {os.readlink(one) for one in Path(f"/proc/{server.process.pid}/fd").iterdir() if one.is_symlink()}
        listening = [line.split()[9] for line in connections if line.split()[3] == "0A"]
        assert not {f"socket:[{inode}]" for inode in listening} & inodes
    assert not path.exists()
