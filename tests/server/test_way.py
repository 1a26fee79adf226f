"""The way of a call: which files of the package it passes from the socket to the scheduler's `Run`, and back.

One call is traced in the frontend and in an engine that runs in a thread of this process.
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
import tritonclient.grpc.aio as triton

import latebind
from latebind.compiled import is_compiled
from latebind.domain.actions import Reply, Run
from latebind.domain.config import DoorConfig, EngineConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.engine.process import Engine
from latebind.engine.running import map_running
from latebind.forks.client import ForkServer
from latebind.server.door import Door
from tests.server.real import json_body, written
from tests.server.rpc.conftest import tensor

PACKAGE = str(Path(latebind.__file__).parent) + "/"

# The frontend's share, and how many files a call passes at most in all.
HTTP = ["rest/protocol.py", "rest/request.py", "rest/app.py", "rest/infer.py", "service.py", "calls.py"]
GRPC = ["rpc/server.py", "rpc/infer.py", "service.py", "calls.py"]
MOST_TO_RUN, MOST_BACK = 21, 12


class Trace:
    """The files of the package that threads run, from `begin` to the scheduler's `Run` and from its `Reply` on."""

    def __init__(self) -> None:
        self.to_run: dict[str, None] = {}
        self.back: dict[str, None] = {}
        self._now: dict[str, None] | None = None

    def begin(self) -> None:
        self.to_run, self.back = {}, {}
        self._now = self.to_run

    def note(self, frame: FrameType, event: str, result: Any) -> None:
        file = frame.f_code.co_filename
        if self._now is None or not file.startswith(PACKAGE):
            return
        if event == "call":
            self._now.setdefault(file.removeprefix(PACKAGE))
        elif event == "return" and frame.f_code.co_name in ("handle", "handle_all") and isinstance(result, list):
            if any(isinstance(action, Run) for action in result):
                self._now = None if self._now is self.back else {}
            elif any(isinstance(action, Reply) for action in result):
                self._now = self.back


class Engines:
    """Takes the place of a fork server: an engine is a thread of this process."""

    def __init__(self, trace: "Trace") -> None:
        self.pid = os.getpid()
        self._trace = trace
        self._thread: threading.Thread | None = None

    async def forked(self, module: str, arguments: Sequence[str], *, inherited: Sequence[int], **rest: object) -> Any:
        self._thread = threading.Thread(target=self._serve, args=[os.dup(one) for one in inherited])
        threading.setprofile(self._trace.note)  # for this thread and those that it starts
        self._thread.start()
        return self

    def end(self, patience: float) -> bool:
        assert self._thread is not None
        self._thread.join(patience)
        return True

    def kill(self) -> None:
        """It ends once its sockets are closed."""

    def _serve(self, slots: int, running: int, messages: int, control: int) -> None:
        with socket.socket(fileno=messages) as told, socket.socket(fileno=control) as asked:
            with asked.makefile("rb") as lines:
                order = msgspec.json.decode(lines.readline(), type=EngineOrder)
            engine = Engine(order, slots, map_running(running, order.engine.crew), told, asked)
            engine.serve()


async def check(trace: Trace, frontend: list[str], call: Callable[[], Awaitable[object]]) -> None:
    """Take the shortest of some traces: others have what is made once, or the end of the call before."""
    traces = []
    for _ in range(8):
        trace.begin()
        await call()
        traces.append((list(trace.to_run), list(trace.back)))
    to_run, back = min(traces, key=lambda both: len(both[0]) + len(both[1]))
    assert [file for file in to_run if file.startswith("server/")] == [f"server/{file}" for file in frontend]
    assert {file for file in back if file.startswith("server/")} <= {f"server/{file}" for file in frontend}
    assert "scheduler.py" in to_run
    assert len(to_run) <= MOST_TO_RUN, to_run
    assert len(back) <= MOST_BACK, back


@pytest.mark.skipif(is_compiled(), reason="compiled functions are not traced")
def test_a_call_passes_few_files_and_no_others_of_the_frontend(models: Path) -> None:
    threads = torch.get_num_threads()
    image = np.zeros((1, 3, 8, 8), np.float32)
    trace = Trace()

    async def over_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in written("chain", [json_body({"image": image})], None, chunked=False):
            writer.write(piece)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))

    async def test() -> None:
        order = EngineOrder((str(models / "chain" / "1"),), EngineConfig(), PolicyConfig())
        client = await EngineClient.start(order, cast(ForkServer, Engines(trace)))
        try:
            async with Door(client, DoorConfig(port=0, grpc_port=0)) as door:
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                async with triton.InferenceServerClient(f"127.0.0.1:{door.grpc_port}") as stub:
                    await check(trace, HTTP, partial(over_http, reader, writer))
                    await check(trace, GRPC, partial(stub.infer, "chain", [tensor(image, "image")]))
                writer.close()
        finally:
            await client.close()

    sys.setprofile(trace.note)
    try:
        asyncio.run(test())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        torch.set_num_threads(threads)
