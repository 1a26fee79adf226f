"""Fork servers that are forked from another one: they have imported what that has, and end with whoever has them."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from latebind.forks.client import NAME, UNKNOWN, ForkServer, Lender, short_path
from tests.forked import FORKS
from tests.forks.test_forks import DOING, PATIENCE, told_by


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with Lender(FORKS, tmp_path / "lender"):
        yield tmp_path / "lender"


def test_what_is_forked_comes_from_what_the_lender_has_imported(place: Path) -> None:
    with ForkServer(place) as forks, told_by("wait", forks=forks) as (process, _), told_by("wait") as (another, _):
        lent = psutil.Process(process.pid).parent()
        assert lent is not None
        assert lent.name() == NAME
        assert lent.parent() == psutil.Process(another.pid).parent()


def test_a_place_may_be_in_a_folder_of_any_depth(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 50)
    folder.mkdir()
    with (
        Lender(FORKS, folder / "lender"),
        ForkServer(folder / "lender") as forks,
        told_by("wait", forks=forks) as (process, _),
    ):
        lent = psutil.Process(process.pid).parent()
        assert lent is not None
        assert lent.name() == NAME


def test_it_ends_with_whoever_borrowed_and_what_it_forked_goes_on(place: Path) -> None:
    with ForkServer(place) as forks, told_by("wait", forks=forks) as (process, _):
        lent = psutil.Process(process.pid).parent()
        assert lent is not None
        forks.close()
        lent.wait(PATIENCE)
        assert process.poll() is None


def test_a_server_that_stands_still_is_given_up_and_another_forks(place: Path) -> None:
    with ForkServer(place) as forks, told_by("wait", forks=forks) as (process, _):
        lent = psutil.Process(process.pid).parent()
        assert lent is not None
        lent.suspend()
        try:
            assert forks._socket is not None
            forks._socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                forks.fork(DOING, ["say"], name="a-test")
            with told_by("tell", forks=forks) as (another, _):
                assert another.wait(PATIENCE) == 0
            process.kill()
            assert process.wait(PATIENCE) == UNKNOWN  # nobody tells how it ended
        finally:
            lent.resume()


def test_several_may_borrow(place: Path) -> None:
    with (
        ForkServer(place) as one,
        ForkServer(place) as two,
        told_by("wait", forks=one) as (first, _),
        told_by("wait", forks=two) as (second, _),
    ):
        assert psutil.Process(first.pid).ppid() != psutil.Process(second.pid).ppid()


def test_where_nobody_lends_it_imports_itself(tmp_path: Path) -> None:
    before, until = set(psutil.Process().children()), time.monotonic() + PATIENCE
    with ForkServer(tmp_path / "nobody") as forks:
        forks.warm()
        (started,) = set(psutil.Process().children()) - before
        while "latebind.forks.process" not in started.cmdline():
            assert time.monotonic() < until


def test_a_lender_that_was_sent_nothing_lends_to_the_next(place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        with short_path(place) as name:
            asking.connect(name)
        asking.send(b"?")
    with ForkServer(place) as forks, told_by("wait", forks=forks) as (process, _):
        assert psutil.Process(process.pid).is_running()
