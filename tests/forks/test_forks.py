"""Processes from the fork server: they are as if this process had started them, and how they end is told."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from latebind.forks.client import UNKNOWN, Forked, ForkServer
from latebind.prompt import be_prompt, be_usual, slice_seconds
from tests.forked import FORKS

DOING = "tests.forks.doing"


@contextmanager
def told_by(*words: str, forks: ForkServer = FORKS) -> Iterator[tuple[Forked, int]]:
    """Fork a process with these words; yields it and where it tells something."""
    told, tell = os.pipe()
    process = forks.fork(DOING, words, name="a-test", inherited=[tell])
    os.close(tell)
    try:
        yield process, told
    finally:
        process.kill()
        process.wait(10.0)
        os.close(told)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


def tell() -> dict[str, Any]:
    with told_by("some", "words", "tell") as (process, told):
        assert process.wait(10.0) == 0
        found: dict[str, Any] = json.loads(os.read(told, 1 << 16))
        return found


def test_it_gets_its_words_and_a_name_and_need_not_import_torch() -> None:
    found = tell()
    assert found["words"] == ["some", "words", "tell"]
    assert found["name"] == "a-test"
    assert found["torch"]


def test_it_has_the_directory_environment_and_cores_of_whoever_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FORKS.warm()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOUR", "green")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        found = tell()
    finally:
        os.sched_setaffinity(0, cores)
    assert found["directory"] == str(tmp_path)
    assert found["colour"] == "green"
    assert found["cores"] == [min(cores)]


def test_it_has_no_descriptors_of_the_fork_server_or_of_its_siblings() -> None:
    alone = tell()["files"]
    with told_by("wait"), told_by("wait"):
        assert tell()["files"] == alone
    assert alone == 5  # three standard ones, where it tells, and the folder that lists them


def test_how_it_ended_is_told() -> None:
    with told_by("wait") as (process, told):
        assert os.read(told, 10) == b"there"
        assert process.poll() is None
        with pytest.raises(TimeoutError, match=r"still runs after 0\.01 s"):
            process.wait(0.01)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10.0) == -signal.SIGTERM
    with told_by("wait") as (process, _):
        process.kill()
        assert process.wait(10.0) == -signal.SIGKILL
        process.kill()  # does nothing any more
        assert process.poll() == -signal.SIGKILL


def test_standard_streams_may_be_given_and_an_error_ends_it_with_a_trace(tmp_path: Path) -> None:
    def run(what: str) -> tuple[int, str, str]:
        out, err = tmp_path / "out", tmp_path / "err"
        with open(os.devnull, "rb") as nothing, out.open("wb") as o, err.open("wb") as e:
            streams = nothing.fileno(), o.fileno(), e.fileno()
            status = FORKS.fork(DOING, ["0", what], name="a-test", standard=streams).wait(10.0)
        return status, out.read_text(), err.read_text()

    assert run("say") == (0, "out", "err")
    status, _, errors = run("fail")
    assert status == 1
    assert "ValueError: this fails" in errors


def test_a_fork_server_that_was_killed_is_followed_by_another_as_usual_as_it_was() -> None:
    with ForkServer() as forks, told_by("wait", forks=forks) as (first, told):
        os.read(told, 10)
        before = psutil.Process(first.pid).parent()
        assert before is not None
        before.kill()
        before.wait(10.0)
        assert first.poll() is None  # goes on
        be_prompt()
        with told_by("wait", forks=forks) as (second, there):
            os.read(there, 10)
            be_usual()
            assert slice_seconds(second.pid) == slice_seconds(first.pid)
            after = psutil.Process(second.pid).parent()
            assert after is not None
            assert after.pid != before.pid
        first.kill()
        assert first.wait(10.0) == UNKNOWN  # nobody was there to be told


def test_it_ends_with_whoever_started_it() -> None:
    script = "from latebind.forks.client import ForkServer; f = ForkServer(); f.warm(); input()"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    until = time.monotonic() + 20.0
    while not (children := psutil.Process(parent.pid).children()):
        assert time.monotonic() < until
    parent.kill()
    parent.wait()
    assert not psutil.wait_procs(children, timeout=20.0)[1]
    assert parent.stdin is not None
    parent.stdin.close()


def test_closing_ends_it_even_while_it_imports() -> None:
    before, forks = children(), ForkServer()
    forks.warm()
    (child,) = children() - before
    forks.close()
    assert not child.is_running()
    forks.close()  # does nothing any more


def test_a_call_that_is_cancelled_ends_only_when_its_descriptors_are_no_longer_used() -> None:
    async def test() -> None:
        told, tell = os.pipe()
        before = children()
        with ForkServer() as forks:
            call = asyncio.create_task(forks.forked(DOING, ["wait"], name="a-test", inherited=[tell]))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            os.close(tell)
            assert os.read(told, 10) == b"there"  # it was forked with what it was given
            (server,) = children() - before
            for each in server.children():
                each.kill()
        os.close(told)

    asyncio.run(test())
