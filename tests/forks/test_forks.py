"""Processes from the fork server: they are as if this process had started them, and when they end is told."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from latebind.forks.client import NAME, Forked, ForkServer, lending
from latebind.prompt import be_prompt, be_usual, slice_seconds
from tests.building import on_one_core
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
        process.ended(PATIENCE)
        os.close(told)


def server_of(process: Forked) -> psutil.Process:
    """Return the fork server that forked a process."""
    found = psutil.Process(process.pid).parent()
    assert found is not None
    return found


@contextmanager
def started() -> Iterator[list[psutil.Process]]:
    """Yield a list, which is filled at the end of the block with the processes that were started within it."""
    before, found = set(psutil.Process().children()), list[psutil.Process]()
    yield found
    found += set(psutil.Process().children()) - before


def tell(*, imports: Sequence[str] = ()) -> dict[str, Any]:
    with told_by("some", "words", "tell", imports=imports) as (process, told):
        assert process.ended(PATIENCE)
        found: dict[str, Any] = json.loads(os.read(told, 1 << 16))
        return found


def test_it_is_as_if_it_were_started_by_whoever_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FORKS.warm()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOR", "green")
    with on_one_core():
        core = os.sched_getaffinity(0)
        found = tell()
    assert found == {
        "words": ["some", "words", "tell"],
        "name": "a-test",
        "directory": str(tmp_path),
        "environment": dict(os.environ),
        "cores": sorted(core),
        "engine": True,  # and it need not import that
        "wave": found["wave"],
        "files": 5,  # three standard ones, where it tells, and the folder that lists them
    }


def test_what_it_will_need_is_imported_once_for_all_that_follow() -> None:
    assert not tell()["wave"]
    assert tell(imports=["wave"])["wave"]
    assert tell()["wave"]


def test_a_process_that_an_imported_module_has_started_is_none_of_the_fork_servers() -> None:
    with ForkServer() as forks:
        for imports in ((), ("tests.forks.starting",), ()):  # whose process ends while the last one is awaited
            with told_by("some", "tell", forks=forks, imports=imports) as (process, told):
                assert process.ended(PATIENCE)
                assert os.read(told, 1)


def test_openvino_starts_no_thread_in_it() -> None:
    pytest.importorskip("openvino")
    with ForkServer() as forks, told_by("wait", forks=forks, imports=["openvino"]) as (process, told):
        assert os.read(told, 16) == b"there"
        assert server_of(process).num_threads() == 1


def test_it_has_no_descriptors_of_its_siblings() -> None:
    alone = tell()["files"]
    with told_by("wait"), told_by("wait"):
        assert tell()["files"] == alone


def test_processes_that_have_ended_are_reaped() -> None:
    with told_by("wait") as (one, _), told_by("wait") as (other, _):
        for process in (one, other):
            process.kill()
        assert not psutil.wait_procs(
            [psutil.Process(each) for each in (one.pid, other.pid) if psutil.pid_exists(each)], PATIENCE
        )[1]


def test_a_fork_server_that_nobody_asks_ends() -> None:
    with told_by("serve") as (process, told):
        assert process.ended(PATIENCE)
        assert os.read(told, 10) == b"ended"


def test_it_ends_without_taking_apart_what_it_inherited() -> None:
    with told_by("inherit") as (process, told):
        assert process.ended(PATIENCE)
        assert os.read(told, 100) == b"done"


def test_when_it_ends_is_told() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with told_by("wait") as (process, told):
        assert os.read(told, 10) == b"there"
        assert not process.ended(0.01)
        os.kill(process.pid, signal.SIGTERM)
        assert process.ended(PATIENCE)
        process.kill()  # does nothing any more
        assert process.end(0.0)
    del process
    assert len(os.listdir("/proc/self/fd")) == before


def test_standard_streams_may_be_given_and_an_error_ends_it_with_a_trace(tmp_path: Path) -> None:
    def run(what: str) -> tuple[str, str]:
        out, err = tmp_path / "out", tmp_path / "err"
        with open(os.devnull, "rb") as nothing, out.open("wb") as o, err.open("wb") as e:
            streams = nothing.fileno(), o.fileno(), e.fileno()
            assert FORKS.fork(DOING, ["0", what], name="a-test", standard=streams).ended(PATIENCE)
        return out.read_text(), err.read_text()

    assert run("say") == ("out", "err")
    assert "ValueError: this fails" in run("fail")[1]


def test_a_fork_server_that_was_killed_is_followed_by_another_as_usual_as_it_was() -> None:
    with ForkServer() as forks, told_by("wait", forks=forks) as (first, told):
        os.read(told, 10)
        before = server_of(first)
        before.kill()
        before.wait(PATIENCE)
        assert not first.ended(0.0)  # goes on
        be_prompt()
        with told_by("wait", forks=forks) as (second, there):
            os.read(there, 10)
            be_usual()
            assert slice_seconds(second.pid) == slice_seconds(first.pid)
            assert server_of(second) != before
        assert not first.end(0.0)
        assert first.ended(0.0)


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


def test_where_no_more_files_may_be_open_that_is_told_and_none_stays_open() -> None:
    with told_by("wait") as (_, told):
        os.read(told, 1 << 16)
        before = os.listdir("/proc/self/fd")
        with room_for(1), pytest.raises(OSError, match="Too many open files"):
            FORKS.fork(DOING, ["tell"], name="a-test")
        assert os.listdir("/proc/self/fd") == before
    assert tell()["name"] == "a-test"


def test_closing_ends_it_even_while_it_imports() -> None:
    forks = ForkServer()
    with started() as found:
        forks.warm()
    forks.close()
    assert not found[0].is_running()
    forks.close()  # does nothing any more


def test_a_call_that_is_cancelled_ends_only_when_its_descriptors_are_no_longer_used() -> None:
    async def test() -> None:
        told, tell = os.pipe()
        with ForkServer() as forks:
            call = asyncio.create_task(forks.forked(DOING, ["wait"], name="a-test", inherited=[tell]))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            os.close(tell)
            assert os.read(told, 10) == b"there"  # it was forked with what it was given
            for each in psutil.Process().children(recursive=True):
                if each.name() == "a-test":
                    each.kill()
        os.close(told)

    asyncio.run(test())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where somebody lends: in a folder whose path is longer than a socket takes."""
    folder = tmp_path / ("deep" * 50)
    folder.mkdir()
    with lending(FORKS, folder / "lender"):
        yield folder / "lender"


def test_fork_servers_that_borrow_are_forked_from_the_lenders_and_end_with_the_borrower(place: Path) -> None:
    with (
        ForkServer(place) as forks,
        ForkServer(place) as others,
        told_by("wait", forks=forks) as (process, _),
        told_by("wait", forks=others) as (another, _),
        told_by("wait") as (lenders, _),
    ):
        lent = server_of(process)
        assert lent.name() == NAME
        assert lent.parent() == server_of(another).parent() == server_of(lenders)
        assert lent != server_of(another)
        forks.close()
        lent.wait(PATIENCE)
        assert not process.ended(0.0)


def test_a_server_that_stands_still_is_given_up_and_another_forks(place: Path) -> None:
    with ForkServer(place) as forks, told_by("wait", forks=forks) as (process, _):
        lent = server_of(process)
        lent.suspend()
        try:
            assert forks._socket is not None
            forks._socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                forks.fork(DOING, ["say"], name="a-test")
            with told_by("tell", forks=forks) as (another, _):
                assert another.ended(PATIENCE)
            process.kill()
            assert process.ended(PATIENCE)
        finally:
            lent.resume()


def test_where_nobody_lends_it_imports_itself(tmp_path: Path) -> None:
    until = time.monotonic() + PATIENCE
    with ForkServer(tmp_path / "nobody") as forks:
        with started() as found:
            forks.warm()
        while "latebind.forks.process" not in found[0].cmdline():
            assert time.monotonic() < until


def test_a_lender_that_was_sent_nothing_lends_to_the_next(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(place.name)
        asking.send(b"?")
    with ForkServer(place) as forks, told_by("wait", forks=forks) as (process, _):
        assert server_of(process).name() == NAME
