"""An engine's process whose door goes while models are loaded."""

import os
import socket
from pathlib import Path

import msgspec
import pytest

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine import process
from latebind.engine.order import EngineOrder
from latebind.engine.slots import create_file
from latebind.repository.listing import find_models


@pytest.mark.parametrize("name", ["chain", "none"])
def test_it_ends_in_silence(models: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_models(models, ["chain"])[0].parent.parent / name / "1"
    order = EngineOrder((str(path),), EngineConfig(), PolicyConfig())
    (messages, theirs), (control, its) = socket.socketpair(), socket.socketpair()
    monkeypatch.setattr(process, "write_logs", lambda *_: None)
    monkeypatch.setattr("latebind.engine.process.signal.signal", lambda *_: None)
    files = create_file(), create_file()
    control.sendall(msgspec.json.encode(order) + b"\n")
    control.close()
    messages.close()
    process.main([*map(str, files), str(theirs.detach()), str(its.detach()), "text"])
    for file in files:
        os.close(file)
