"""What the log says of models that raise."""

import logging

import pytest

from latebind.engine.failures import Failures


def failing(number: int) -> ValueError:
    try:
        raise ValueError(f"row {number} is bad")
    except ValueError as error:
        return error


def test_each_kind_is_told_once_and_then_how_often(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(logging.getLogger("failures"))
    for number in range(619):
        failures.log("stage 0 of net", failing(number), f" for request {number}")
    failures.log("stage 1 of net", failing(7), " for request 7")
    failures.log("stage 0 of net", KeyError("another"), " for request 8")
    first, tenth, hundredth, *others = caplog.messages
    assert first == "stage 0 of net failed for request 0"
    assert tenth.startswith("stage 0 of net has failed 10 times with ValueError at ")
    assert hundredth.startswith("stage 0 of net has failed 100 times with ValueError at ")
    assert others == ["stage 1 of net failed for request 7", "stage 0 of net failed for request 8"]
    assert caplog.text.count("Traceback") == 2
    assert "row 0 is bad" in caplog.text
