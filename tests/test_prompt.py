"""Slices of a thread, as the system tells them."""

import threading
from collections.abc import Iterator

import pytest

from latebind.prompt import SLICE, be_prompt, be_usual, slice_seconds


@pytest.fixture
def usual() -> Iterator[float]:
    be_usual()
    seconds = slice_seconds()
    if seconds is None:
        pytest.skip("this system has no slices to ask for")
    yield seconds
    be_usual()


def test_whoever_is_prompt_has_shorter_slices_until_the_usual_ones_will_do(usual: float) -> None:
    be_prompt()
    assert slice_seconds() == SLICE / 1e9 < usual
    be_usual()
    assert slice_seconds() == usual


def test_threads_that_are_started_meanwhile_are_prompt_too(usual: float) -> None:
    found: list[float | None] = []
    be_prompt()
    thread = threading.Thread(target=lambda: found.append(slice_seconds()))
    thread.start()
    thread.join()
    assert found == [SLICE / 1e9]
