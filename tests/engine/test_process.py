"""An engine's process whose door goes while models are loaded."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.order import EngineOrder
from latebind.engine.slots import create_file
from latebind.repository.listing import find_models

MAIN = "import sys; from latebind.engine.process import main; main(sys.argv[1:])"


@pytest.mark.parametrize("name", ["chain", "none"])
def test_it_ends_in_silence(models: Path, name: str) -> None:
    path = find_models(models, ["chain"])[0].parent.parent / name / "1"
    order = EngineOrder((str(path),), EngineConfig(), PolicyConfig())
    (messages, theirs), (control, its) = socket.socketpair(), socket.socketpair()
    files = create_file(), create_file()
    control.sendall(msgspec.json.encode(order) + b"\n")
    control.close()
    messages.close()
    with theirs, its:
        inherited = (*files, theirs.fileno(), its.fileno())
        command = [sys.executable, "-c", MAIN, *map(str, inherited), "text"]
        ended = subprocess.run(command, pass_fds=inherited, capture_output=True, text=True, timeout=60, check=False)
    for file in files:
        os.close(file)
    assert (ended.returncode, ended.stderr) == (0, "")
