"""Slices of a thread, as the system tells them."""

import threading

import pytest

from latebind.prompt import SLICE, be_prompt, be_usual, slice_seconds


def test_whoever_is_prompt_and_threads_started_meanwhile_have_shorter_slices_until_the_usual_ones_will_do() -> None:
    be_usual()
    usual, found = slice_seconds(), list[float | None]()
    if usual is None:
        pytest.skip("this system has no slices to ask for")
    be_prompt()
    thread = threading.Thread(target=lambda: found.append(slice_seconds()))
    thread.start()
    thread.join()
    assert found == [slice_seconds()] == [SLICE / 1e9]
    be_usual()
    assert slice_seconds() == usual > SLICE / 1e9
