"""Kills writers of a directory at each operation on files: `python -m tests.repository.kill_points FOLDER`."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree, rmtree

from latebind.repository.directory import READY, ModelDirectory

CHANGES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod")  # audit events
OLD = {"model.json": b"old", "caches/caches.json": b"old", "caches/gone.json": b"old", "same.json": b"same"}
REPLACED = {"model.json": b"new", "caches/caches.json": b"new", "same.json": b"same", "more/new.json": b"new"}
PUBLISHED = {**{name: data for name, data in OLD.items() if name != "caches/gone.json"}, "caches/caches.json": b"new"}


def create(path: Path) -> None:
    ModelDirectory.create(path, REPLACED)


def publish(path: Path) -> None:
    ModelDirectory.open(path).write_files({"caches/caches.json": b"new"}, remove=["caches/gone.json"])


def look(path: Path) -> None:
    content(path)


def content(path: Path) -> dict[str, bytes]:
    directory = ModelDirectory.open(path)
    return {name: directory.read(name) for name in directory.files}


def killed_at(number: int, work: Callable[[Path], None], path: Path) -> bool:
    """Do work in a process that is killed before its operation of this number; False if it has fewer."""
    child = os.fork()
    if child == 0:
        left = number

        def count(event: str, _arguments: object) -> None:
            nonlocal left
            left -= event in CHANGES
            if left < 0 and event != "os.kill":
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work(path)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in {0, signal.SIGKILL}, status
    return status != 0


def points(work: Callable[[Path], None], start: Path, path: Path) -> Iterator[int]:
    """Yield for each operation, once the work has been killed before it; `path` is a copy of `start` each time."""
    number = 0
    while True:
        rmtree(path, ignore_errors=True)
        copytree(start, path)
        if not killed_at(number, work, path):
            return
        yield number
        number += 1


def check(root: Path, work: Callable[[Path], None], after: dict[str, bytes]) -> tuple[int, int]:
    """Kill the work at each operation, and who mends what it left at each of his. Return how often there was which."""
    start, path, torn = root / "start" / "1", root / "models" / "1", root / "torn" / "1"
    rmtree(start, ignore_errors=True)
    ModelDirectory.create(start, OLD)
    found = [0, 0]
    for number in points(work, start, path):
        rmtree(torn, ignore_errors=True)
        copytree(path, torn)
        seen = content(path)
        assert seen in (OLD, after), (number, seen)
        found[seen == after] += 1
        if seen == after and found[1] == 1:  # it has just happened: all is still to be moved
            assert (torn / READY).exists()
            for mending in points(look, torn, path):
                assert content(path) == seen, (number, mending)
        create(path)
        assert content(path) == REPLACED
    return found[0], found[1]


if __name__ == "__main__":
    os.fsync = lambda handle: None  # type: ignore[assignment]  # the machine goes on
    print(check(Path(sys.argv[1]), create, REPLACED), check(Path(sys.argv[1]), publish, PUBLISHED))
