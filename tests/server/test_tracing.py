"""Which calls are traced, and what is told of them."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from latebind.domain.errors import Unavailable
from latebind.domain.tracing import Trace
from latebind.server.calls import Call
from latebind.server.gateway import Array
from latebind.server.service import Service
from latebind.server.settings import Traces
from latebind.server.tracing import Tracing
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import PATIENCE
from tests.server.real import json_body, real_frontend
from tests.server.test_service import ones

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def nothing() -> Sequence[Trace]:
    return ()


async def until_told(service: Service, calls: int) -> list[dict[str, Any]]:
    """Return what is told of the calls that have ended, once the engine has been asked for all of them."""
    collecting = service._tracing._collecting
    assert collecting is not None, "no call is traced"
    await asyncio.wait_for(collecting, PATIENCE)
    told = service.traces()
    assert len(told) == calls
    return told


@pytest.mark.parametrize(
    ("parent", "wanted"),
    [
        (PARENT, True),
        (PARENT[:-2] + "00", False),
        (PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), False),
        (PARENT + "\n", False),
        ("nonsense", False),
    ],
)
def test_a_call_is_followed_whose_caller_is(parent: str, wanted: bool) -> None:
    assert Tracing(nothing, Traces()).wanted("m", parent) is wanted


def test_a_followed_call_is_told_with_its_rows_from_its_beginning() -> None:
    gateway = Arithmetic()

    async def test() -> None:
        service = Service(gateway, trace_rate=1.0)
        await service.infer(gateway.models["scalar"], Call((), 1, (), id="mine", priority=3), ones)
        (call,) = await until_told(service, 1)
        assert (call["id"], call["model"], call["outcome"]) == ("mine", "scalar", "answered")
        (row,) = call["rows"]
        assert (row["priority"], row["outcome"], row["slack"]) == (3, "answered", 0.5)
        assert [span["what"] for span in row["spans"]] == ["wait", "stage"]
        assert 0.0 <= row["arrived"] <= row["spans"][0]["start"] <= row["ended"] <= call["seconds"]
        await service.close()

    asyncio.run(test())


def test_a_call_whose_engine_is_lost_is_told_without_its_rows_in_the_end() -> None:
    async def lost() -> Sequence[Trace]:
        raise Unavailable("the engine has ended")

    async def test() -> None:
        told = asyncio.get_running_loop().create_future()
        traces = Tracing(lost, Traces(), export=told.set_result, soon=0.001, patience=0.02)
        with traces.following("m", "1", 1, id="", parent="") as call:
            call.sent = True
        async with asyncio.timeout(PATIENCE):
            call = await told
        assert call.rows == []
        await traces.close()

    asyncio.run(test())


def test_a_real_request_is_explained_stage_by_stage(models: Path) -> None:
    async def test() -> None:
        async with real_frontend(models, "chain") as (_, frontend):
            image = np.zeros((2, 3, 8, 8), np.float32)
            call = (await asyncio.to_thread(_infer, frontend.port, "chain", {"image": image}))[0]
            assert (call["id"], call["model"], call["outcome"]) == ("order-1", "chain", "answered")
            assert len(call["rows"]) == 2
            stages = [span for span in call["rows"][0]["spans"] if span["what"] == "stage"]
            assert [span["stage"] for span in stages] == list(range(len(stages)))
            assert stages[0]["batch"] in (1, 2)  # as pays on this machine
            ends = [call["rows"][0]["arrived"], *[span["end"] for span in stages], call["seconds"]]
            assert ends == sorted(ends)

    asyncio.run(test())


def _infer(port: int, model: str, inputs: dict[str, Array]) -> list[dict[str, Any]]:
    """Make a traced call and return what is told of the last ones once it is there."""
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    before = len(json.load(urlopen(url + "/v2/traces"))["traces"])
    body = json_body(inputs, id="order-1")
    urlopen(Request(f"{url}/v2/models/{model}/infer", body, {"traceparent": PARENT})).read()
    while time.monotonic() < deadline:
        told: list[dict[str, Any]] = json.load(urlopen(url + "/v2/traces"))["traces"]
        if len(told) > before:
            return told
        time.sleep(0.01)
    raise AssertionError("the call is not told of")
