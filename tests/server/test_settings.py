"""Trace and logging settings: what tritonclient sets holds, and what is none is refused and changes nothing."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from latebind.domain.errors import InvalidRequest
from latebind.server.settings import Log, Traces, TraceSettings
from tests.server.conftest import logging_as_before

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


WRONG: list[dict[str, Any]] = [
    {"trace_file": "/etc/passwd"},
    {"trace_level": ["TENSORS"]},
    {"trace_level": ["OFF", "TIMESTAMPS"]},
    {"trace_level": 1},
    {"trace_level": {}},
    {"log_frequency": "5"},
    {"trace_rate": "0"},
    {"trace_rate": "-1"},
    {"trace_rate": "x"},
    {"trace_rate": "9" * 30},
    {"trace_rate": 1.5},
    {"trace_rate": ["1", "2"]},
    {"trace_count": "-2"},
    {"trace_rate": "7", "trace_level": [None]} | {"x": 1},
]


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


@pytest.mark.parametrize(
    "given",
    [
        {"log_colour": True},
        {"log_file": "/etc/passwd"},
        {"log_format": "ISO8601"},
        {"log_info": "false"},
        {"log_info": None},
        {"log_verbose_level": -1},
        {"log_verbose_level": True},
        {"log_verbose_level": 2**40},
        {"log_verbose_level": "1"},
    ],
)
def test_a_log_setting_that_is_none_is_refused_and_changes_nothing(
    log_at_info: pytest.LogCaptureFixture, given: dict[str, Any]
) -> None:
    log = Log()
    before = log.as_dict()
    with pytest.raises(InvalidRequest):
        log.update({"log_error": False, **given})
    assert log.as_dict() == before
    assert logged(log_at_info) == ["INFO", "WARNING", "ERROR"]
