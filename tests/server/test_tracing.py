"""Which calls are traced and what is told of them; trace and log settings."""

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from latebind.domain.errors import InvalidRequest, Unavailable
from latebind.domain.tracing import Trace
from latebind.server.calls import Call
from latebind.server.gateway import Array
from latebind.server.service import Service
from latebind.server.settings import Log, Traces, TraceSettings
from latebind.server.tracing import Tracing
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import PATIENCE, logging_as_before
from tests.server.real import json_body, real_frontend
from tests.server.test_service import ones

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def nothing() -> Sequence[Trace]:
    return ()


async def until_told(service: Service, calls: int) -> list[dict[str, Any]]:
    """Return what is told of the calls that have ended, once the engine has been asked for all of them."""
    collecting = service.tracing._collecting
    assert collecting is not None, "no call is traced"
    await asyncio.wait_for(collecting, PATIENCE)
    told = service.tracing.last()
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
        await service.tracing.close()

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


# Trace and logging settings -------------------------------------------------------------------------------------------


OFF = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"}
log = logging.getLogger("latebind.tests.settings")


def traced(traces: Traces, calls: int, model: str = "m") -> list[int]:
    """The calls, counted from 1, that are to be traced."""
    return [number for number in range(1, calls + 1) if traces.wanted(model)]


# Traces -------------------------------------------------------------------------------------------------------------


def test_one_of_so_many_calls_is_traced_until_enough_were() -> None:
    traces = Traces(TraceSettings("TIMESTAMPS", rate=3, count=2))
    assert traced(traces, 20) == [3, 6]
    traces.update({"trace_rate": "5", "trace_count": None})
    assert traced(traces, 20) == [5, 10]
    traces.update({"trace_count": "-1", "log_frequency": "0"})
    assert traced(traces, 20) == [5, 10, 15, 20]


WRONG: list[dict[str, Any]] = [{"trace_file": "/etc/passwd"}, {"log_frequency": "5"}, {"trace_count": "-2"}]
WRONG += [{"trace_level": ["TENSORS"]}, {"trace_level": ["OFF", "TIMESTAMPS"]}, {"trace_level": 1}]
WRONG += [{"trace_rate": rate} for rate in ("0", "-1", "x", "9" * 30, 1.5, ["1", "2"])]


@pytest.mark.parametrize("given", WRONG, ids=map(str, WRONG))
def test_a_trace_setting_that_is_none_is_refused_and_changes_nothing(given: dict[str, Any]) -> None:
    traces = Traces()
    with pytest.raises(InvalidRequest):
        traces.update({"trace_level": ["TIMESTAMPS"], **given})
    assert traces.as_dict() == OFF


# The log ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log_at_info(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with logging_as_before():
        logging.getLogger().setLevel(logging.INFO)
        yield caplog


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        log.log(level, logging.getLevelName(level))
    return caplog.messages


NO_LOG: list[dict[str, Any]] = [{"log_color": True}, {"log_file": "/etc/passwd"}, {"log_format": "ISO8601"}]
NO_LOG += [{"log_info": "false"}, {"log_info": None}]
NO_LOG += [{"log_verbose_level": level} for level in (-1, True, 2**40, "1")]


@pytest.mark.parametrize("given", NO_LOG, ids=map(str, NO_LOG))
def test_a_log_setting_that_is_none_is_refused_and_changes_nothing(
    log_at_info: pytest.LogCaptureFixture, given: dict[str, Any]
) -> None:
    log = Log()
    before = log.as_dict()
    with pytest.raises(InvalidRequest):
        log.update({"log_error": False, **given})
    assert log.as_dict() == before
    assert logged(log_at_info) == ["INFO", "WARNING", "ERROR"]
