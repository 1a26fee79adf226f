"""Processes from the fork server: they are as if this process had started them, and how they end is told."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from latebind.forks.client import UNKNOWN, Forked, ForkServer
from latebind.prompt import be_prompt, be_usual, slice_seconds
from tests.forked import FORKS

DOING = "tests.forks.doing"
PATIENCE = 60.0  # with a machine that has much else to do


@contextmanager
def told_by(*words: str, forks: ForkServer = FORKS, imports: Sequence[str] = ()) -> Iterator[tuple[Forked, int]]:
    """Fork a process with these words; yields it and where it tells something."""
    told, tell = os.pipe()
    process = forks.fork(DOING, words, name="a-test", inherited=[tell], imports=imports)
    os.close(tell)
    try:
        yield process, told
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(told)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


def tell(*, imports: Sequence[str] = ()) -> dict[str, Any]:
    with told_by("some", "words", "tell", imports=imports) as (process, told):
        assert process.wait(PATIENCE) == 0
        found: dict[str, Any] = json.loads(os.read(told, 1 << 16))
        return found


def test_it_gets_its_words_and_a_name_and_need_not_import_torch() -> None:
    found = tell()
    assert found["words"] == ["some", "words", "tell"]
    assert found["name"] == "a-test"
    assert found["torch"]


def test_what_it_will_need_is_imported_once_for_all_that_follow() -> None:
    assert not tell()["wave"]
    assert tell(imports=["wave"])["wave"]
    assert tell()["wave"]


def test_its_descriptors_are_closed_once_its_end_is_known() -> None:
    with told_by("wait") as (process, told):
        os.read(told, 1 << 16)
        before = len(os.listdir("/proc/self/fd"))
        assert process.poll() is None
        assert len(os.listdir("/proc/self/fd")) == before
        process.kill()
        process.wait(PATIENCE)
        assert len(os.listdir("/proc/self/fd")) == before - 2
        process.kill()
        assert process.poll() == -signal.SIGKILL


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
    assert found["environment"] == dict(os.environ)
    assert found["cores"] == [min(cores)]


def test_it_has_no_descriptors_of_the_fork_server_or_of_its_siblings() -> None:
    alone = tell()["files"]
    with told_by("wait"), told_by("wait"):
        assert tell()["files"] == alone
    assert alone == 5  # three standard ones, where it tells, and the folder that lists them


def test_it_hears_of_its_own_children_as_any_process_does() -> None:
    found = tell()
    assert found["wakes"] == -1  # else a signal would be written to whatever has that number now
    assert not found["hears of children"]


def test_all_that_end_at_once_are_told_of() -> None:
    with told_by("wait") as (one, _), told_by("wait") as (other, _):
        server = psutil.Process(one.pid).parent()
        assert server is not None
        server.suspend()  # so that it wakes once for both
        for process in (one, other):
            process.kill()
            until_it_is_a_zombie(psutil.Process(process.pid))
        server.resume()
        assert [process.wait(PATIENCE) for process in (one, other)] == [-signal.SIGKILL] * 2


def until_it_is_a_zombie(process: psutil.Process) -> None:
    until = time.monotonic() + PATIENCE
    while process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until


def test_a_fork_server_that_nobody_asks_ends_and_wakes_for_nothing() -> None:
    with told_by("serve") as (process, told):
        assert process.wait(PATIENCE) == 0
        assert os.read(told, 10) == b"ended"


def test_it_ends_without_taking_apart_what_it_inherited() -> None:
    with told_by("inherit") as (process, told):
        assert process.wait(PATIENCE) == 0
        assert os.read(told, 100) == b"done"


def test_how_it_ended_is_told() -> None:
    with told_by("wait") as (process, told):
        assert os.read(told, 10) == b"there"
        assert process.poll() is None
        with pytest.raises(TimeoutError, match=r"still runs after 0\.01 s"):
            process.wait(0.01)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    with told_by("wait") as (process, _):
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        process.kill()  # does nothing any more
        assert process.poll() == -signal.SIGKILL


def test_standard_streams_may_be_given_and_an_error_ends_it_with_a_trace(tmp_path: Path) -> None:
    def run(what: str) -> tuple[int, str, str]:
        out, err = tmp_path / "out", tmp_path / "err"
        with open(os.devnull, "rb") as nothing, out.open("wb") as o, err.open("wb") as e:
            streams = nothing.fileno(), o.fileno(), e.fileno()
            status = FORKS.fork(DOING, ["0", what], name="a-test", standard=streams).wait(PATIENCE)
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
        before.wait(PATIENCE)
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
        assert first.wait(PATIENCE) == UNKNOWN  # nobody was there to be told


def test_it_ends_with_whoever_started_it() -> None:
    script = "from latebind.forks.client import ForkServer; f = ForkServer(); f.warm(); print(); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline()
        (started,) = psutil.Process(parent.pid).children()
        parent.kill()
    assert not psutil.wait_procs([started], timeout=PATIENCE)[1]


@contextmanager
def room_for(count: int) -> Iterator[None]:
    """Let this process open so many files and no more."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + count + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(1))
        for one in taken[-count:]:
            os.close(one)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in taken[:-count]:
            os.close(one)


@pytest.mark.parametrize("more", [0, 1])
def test_where_no_more_files_may_be_open_that_is_told_and_none_stays_open(more: int) -> None:
    before = os.listdir("/proc/self/fd")
    with told_by("wait") as (_, told):
        os.read(told, 1 << 16)
        with room_for(1 + more), pytest.raises(OSError, match="Too many open files"):
            FORKS.fork(DOING, ["tell"], name="a-test")
    assert os.listdir("/proc/self/fd") == before
    assert tell()["name"] == "a-test"


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
