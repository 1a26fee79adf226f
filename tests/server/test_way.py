"""The way of a call: which files of the package it passes from the socket to the scheduler's `Run`, and back.

One call is traced in the frontend and in an engine that runs in a thread of this process.
"""

import asyncio
import os
import re
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
from latebind.domain.config import EngineConfig, FrontendConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.engine.process import Engine
from latebind.engine.shared import Running
from latebind.forks.client import ForkServer
from latebind.server.frontend import Frontend
from tests.server.real import json_body, written
from tests.server.rpc.conftest import tensor

PACKAGE = str(Path(latebind.__file__).parent) + "/"

ARCHITECTURE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()


class Trace:
    """The files of the package that a call passes, from `begin` to the scheduler's `Run` and from its `Reply` on.

    Only the frontend's thread and the one that told the scheduler count, for in the engine another one listens
    meanwhile, and that one only until it has sent the reply.
    """

    def __init__(self) -> None:
        self.to_run: set[str] = set()
        self.back: set[str] = set()
        self._frontend = threading.get_ident()
        self._told = 0
        self._passed: set[tuple[int, str]] = set()
        self._on = False

    def begin(self) -> None:
        self.to_run, self.back, self._told = set(), set(), 0
        self._passed, self._on = set(), True

    def note(self, frame: FrameType, event: str, result: Any) -> None:
        path = frame.f_code.co_filename
        if not self._on or not path.startswith(PACKAGE):
            return
        file, thread = path.removeprefix(PACKAGE), threading.get_ident()
        if event == "c_return" and thread == self._told and result.__name__ == "sendall":
            self._told = -1
        elif event not in ("call", "return"):  # a function that waited for the call has a return alone
            pass
        elif self._told and thread in (self._frontend, self._told):
            self.back.add(file)
        elif not self._told:
            self._passed.add((thread, file))
        if event == "return" and frame.f_code.co_name in ("handle", "handle_all") and isinstance(result, list):
            if any(isinstance(action, Run) for action in result):
                if self._told:
                    self._on = False
                elif not self.to_run:
                    self.to_run = {file for ran, file in self._passed if ran in (self._frontend, thread)}
            elif any(isinstance(action, Reply) for action in result):
                self._told = thread


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
            engine = Engine(order, slots, Running(order.engine.worker_count, running), told, asked)
            engine.serve()


def listed(way: str) -> list[str]:
    """Return the files that the page of the architecture lists for one of its ways."""
    (line,) = re.findall(rf"^\* {way}: (.*)$", ARCHITECTURE, re.MULTILINE)
    return re.findall(r"`(\S+\.py)`", line)


async def check(trace: Trace, transport: str, call: Callable[[], Awaitable[object]]) -> None:
    """Compare the page with what each of some traces has: a single one may have the end of the call before, too."""
    traces = []
    for _ in range(8):
        await asyncio.sleep(0.05)
        trace.begin()
        await call()
        traces.append((trace.to_run, trace.back))
    to_run, back = (set.intersection(*(set(one[way]) for one in traces)) for way in (0, 1))
    assert to_run == set(listed(f"{transport}, to `Run`"))
    # A driver that was not interrupted counts figures and listens again before the frontend has answered.
    others = {file for file in back if file.startswith("domain/") or file == "engine/process.py"}
    assert back - others == set(listed(f"{transport}, back"))


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
            async with Frontend(client, FrontendConfig(port=0, grpc_port=0)) as frontend:
                reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
                async with triton.InferenceServerClient(f"127.0.0.1:{frontend.grpc_port}") as stub:
                    await check(trace, "HTTP", partial(over_http, reader, writer))
                    await check(trace, "gRPC", partial(stub.infer, "chain", [tensor(image, "image")]))
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
