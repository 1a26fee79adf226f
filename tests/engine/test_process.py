"""An engine's process that does not come to serve: its frontend goes, or it fails as nobody foresaw."""

import asyncio
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

import msgspec
import pytest

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import Unavailable
from latebind.engine.client import NAME, PROCESS, EngineClient
from latebind.engine.order import EngineOrder
from latebind.engine.slots import create_file
from latebind.repository.listing import find_models
from tests.forked import FORKS


@pytest.mark.parametrize("name", ["chain", "none"])
def test_it_ends_in_silence(models: Path, name: str) -> None:
    path = find_models(models, ["chain"])[0].parent.parent / name / "1"
    order = EngineOrder((str(path),), EngineConfig(), PolicyConfig())
    with ExitStack() as held:
        (messages, theirs), (control, its) = socket.socketpair(), socket.socketpair()
        files = create_file(), create_file()
        for file in files:
            held.callback(os.close, file)
        control.sendall(msgspec.json.encode(order) + b"\n")
        control.close()
        messages.close()
        with theirs, its, open(os.devnull, "rb") as nothing, TemporaryFile() as out:
            inherited, standard = (
                (*files, theirs.fileno(), its.fileno()),
                (nothing.fileno(), out.fileno(), out.fileno()),
            )
            process = FORKS.fork(PROCESS, ["text"], name=NAME, inherited=inherited, standard=standard)
            held.callback(process.kill)
            assert process.ended(60.0)
            out.seek(0)
            assert out.read() == b""


def test_one_that_fails_while_it_begins_is_not_killed_before_its_last_words(
    models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    order = EngineOrder(tuple(map(str, find_models(models, ["chain"]))), EngineConfig(cores=(4000,)), PolicyConfig())
    with pytest.raises(Unavailable, match="the log has its last messages"):
        asyncio.run(asyncio.wait_for(EngineClient.start(order, FORKS), 60.0))
    told = capfd.readouterr().err
    assert "the engine cannot begin" in told
    assert "OSError: [Errno 22] Invalid argument" in told
