"""`latebind models --url`: a running server's figures as it tells them itself."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from latebind.cli.console import console
from latebind.cli.main import app
from latebind.cli.models import read_statistics
from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from tests.server.conftest import opened, scalar

CALL = {"inputs": [scalar(1.0)]}


@pytest.fixture
def unused() -> int:
    """A port at which nobody listens."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Have one caller of a port get this, whatever it asks."""
    with socket.create_server(("127.0.0.1", 0)) as place:

        def answer() -> None:
            caller, _ = place.accept()
            with caller:
                caller.recv(4096)
                caller.sendall(reply)

        thread = Thread(target=answer)
        thread.start()
        yield place.getsockname()[1]
        thread.join(60)


def test_the_table_and_the_route_tell_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 200)  # else names are cut to fit
    file = tmp_path / "told.json"
    with opened() as site:
        for _ in range(3):
            site.post("/v2/models/scalar/infer", CALL)
        url = f"http://127.0.0.1:{site.port}"
        result = CliRunner().invoke(app, ["models", "--url", url, "--json", str(file)])
        told = site.get("/v2/models/stats").json()
    assert result.exit_code == 0
    rows = {
        name: line.split()
        for line in result.output.splitlines()
        for name in ("scalar", "double")
        if f"│ {name} " in line
    }
    assert [rows["scalar"][place] for place in (5, 9)] == ["3", "1.000"]  # answered, mean ms
    assert "never" in rows["double"]
    assert [model["inference_stats"] for model in json.loads(file.read_text())["model_stats"]] == [
        model["inference_stats"] for model in told["model_stats"]
    ]


def test_a_server_that_wants_a_token_is_given_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-s3cret-s3cret\n")
    file.chmod(0o600)
    with opened(FrontendConfig(port=0, token_file=str(file))) as site:
        url = f"http://127.0.0.1:{site.port}"
        assert read_statistics(url, file)
        with pytest.raises(ConfigError, match="answers 401"):
            read_statistics(url)


@pytest.mark.parametrize("content", ["", "s3cret-s3cret-s3crét", "s3cret-s3cret\ns3cret-s3cret"])
def test_a_file_that_holds_no_token_is_told_before_the_server_is_asked(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match=r"^token file .*/token is not one line of letters"):
        read_statistics("http://127.0.0.1:1", tmp_path / "token")
    with pytest.raises(ConfigError, match=r"^token file .*/none cannot be read: No such file or directory$"):
        read_statistics("http://127.0.0.1:1", tmp_path / "none")


def test_a_server_that_is_not_there_or_is_another_is_told_apart(unused: int) -> None:
    with pytest.raises(
        ConfigError, match=r"does not answer \(\[Errno 111\] Connection refused\): does `latebind serve`"
    ):
        read_statistics(f"http://127.0.0.1:{unused}")
    for reply in (b"\0\0\x12\4\0\0\0\0\0", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"):
        with (
            answering(reply) as port,
            pytest.raises(ConfigError, match="something else than statistics: give the addr"),
        ):
            read_statistics(f"http://127.0.0.1:{port}")
