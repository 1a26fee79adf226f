"""What the log says of models that raise."""

import logging
from collections.abc import Callable

import pytest

from latebind.engine.failures import MOST_KINDS, Failures


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


def test_two_lines_of_a_model_that_raise_alike_are_two_kinds(caplog: pytest.LogCaptureFixture) -> None:
    def error_of(model: Callable[[], object]) -> Exception:
        try:
            model()
        except ValueError as error:
            return error
        raise AssertionError

    failures = Failures(logging.getLogger("failures"))
    models = [
        lambda: int("no number"),
        lambda: int("none either"),
    ]
    for model in models * 5:
        failures.log("stage 0 of net", error_of(model))
    assert caplog.messages == ["stage 0 of net failed"] * 2


def test_kinds_beyond_a_number_are_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(logging.getLogger("failures"))
    for number in range(MOST_KINDS + 20):
        failures.log(f"stage {number} of net", failing(0))
    failures.log("stage 0 of net", failing(0))
    assert caplog.messages[MOST_KINDS:] == [
        f"stage {MOST_KINDS} of net failed",
        f"stage {MOST_KINDS + 9} of net has failed 10 times with other errors",
    ]
