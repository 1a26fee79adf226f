"""Model directories that somebody made or altered with bad intent: each is refused by name, and nothing in it runs."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latebind.domain.config import EngineConfig
from latebind.domain.errors import LatebindError, RepositoryError
from latebind.engine.crew import load_model
from latebind.repository.directory import ModelDirectory, write_bytes
from latebind.repository.listing import Repository, find_queries
from tests.server.hostile.handmade import GRAPH, MODEL, PROFILE, Files, good, tensors


def load(path: Path) -> None:
    load_model(path, EngineConfig())


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self._target,))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that is there once something of a directory was executed."""
    return tmp_path / "executed"


def test_the_directory_that_the_others_are_made_of_is_good(tmp_path: Path) -> None:
    ModelDirectory.create(tmp_path / "tiny", good())
    load(tmp_path / "tiny")


def model(**change: object) -> Files:
    return {**good(), "model.json": json.dumps({**MODEL, **change}).encode()}


def graph(**change: object) -> Files:
    return {**good(), "graph.json": json.dumps({**GRAPH, **change}).encode()}


def profile(**change: object) -> Files:
    return {**good(), "profile.json": json.dumps({**PROFILE, **change}).encode()}


def weights(*given: Any, **more: Any) -> Files:
    return {**good(), "weights.safetensors": tensors(*given, **more)}


NAMES = ["", "..", "../up", "/etc", "a/b", "a\nb", "a b", ".hidden", "-rf", "ü", "a\0", "a" * 129, "a\u202eb"]


def pickled(target: Path) -> bytes:
    return pickle.dumps(Payload(target))


def archive(target: Path) -> bytes:
    """What `torch.save` writes: an archive with a pickle in it."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("archive/data.pkl", pickled(target))
        file.writestr("archive/version", "3\n")
    return content.getvalue()


def objects(target: Path) -> bytes:
    """What `numpy.save` writes of objects."""
    content = BytesIO()
    np.save(content, np.array([Payload(target)], dtype=object), allow_pickle=True)
    return content.getvalue()


@pytest.mark.parametrize("name", ["weights.safetensors", "graph.json", "model.json", "profile.json"])
@pytest.mark.parametrize("make", [pickled, archive, objects])
def test_a_file_that_is_a_pickle_is_not_unpickled(
    tmp_path: Path, ran: Path, name: str, make: Callable[[Path], bytes]
) -> None:
    ModelDirectory.create(tmp_path / "tiny", {**good(), name: make(ran)})
    with pytest.raises(RepositoryError):
        load(tmp_path / "tiny")
    assert not ran.exists()


# Altered behind the manifest's back -----------------------------------------------------------------------------------


def link_out(path: Path) -> None:
    (path.parent / "stolen").write_bytes((path / "graph.json").read_bytes())
    (path / "graph.json").unlink()
    (path / "graph.json").symlink_to(path.parent / "stolen")


def link_the_manifest(path: Path) -> None:
    (path / "manifest.json").rename(path.parent / "manifest.json")
    (path / "manifest.json").symlink_to(path.parent / "manifest.json")


def pipe(path: Path) -> None:
    (path / "graph.json").unlink()
    os.mkfifo(path / "graph.json")


def device(path: Path) -> None:
    (path / "graph.json").unlink()
    (path / "graph.json").symlink_to("/dev/zero")


def loop(path: Path) -> None:
    (path / "graph.json").unlink()
    (path / "graph.json").symlink_to(path / "graph.json")


def folder(path: Path) -> None:
    (path / "graph.json").unlink()
    (path / "graph.json").mkdir()


def truncate(path: Path) -> None:
    os.truncate(path / "weights.safetensors", 100)


def flip(path: Path) -> None:
    content = bytearray((path / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "weights.safetensors").write_bytes(content)


def remanifest(**files: dict[str, object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))

    return write


ENTRY: dict[str, object] = {"bytes": 0, "sha256": "0" * 64}
ALTERED: dict[str, Callable[[Path], None]] = {
    "a link that leads out": link_out,
    "a manifest that is a link": link_the_manifest,
    "a pipe that never ends": pipe,
    "a device that never ends": device,
    "a link to itself": loop,
    "a folder for a file": folder,
    "weights that were cut off": truncate,
    "a bit that was flipped": flip,
    "a manifest that names a path": remanifest(**{"../../etc/passwd": ENTRY}),
    "a manifest that names an absolute path": remanifest(**{"/etc/passwd": ENTRY}),
    "a manifest that names a folder above": remanifest(**{"..": ENTRY}),
    "a manifest that names a hidden file": remanifest(**{".bashrc": ENTRY}),
    "a manifest with a zero byte": remanifest(**{"a\0b": ENTRY}),
    "a manifest of sizes below zero": remanifest(**{"graph.json": {**ENTRY, "bytes": -1}}),
    "a manifest with something more": remanifest(**{"graph.json": {**ENTRY, "run": "x"}}),
    "a manifest of 2 megabytes": lambda path: write_bytes(path / "manifest.json", b" " * (2 << 20)),
    "a manifest 100,000 deep": lambda path: write_bytes(path / "manifest.json", b"[" * 100_000),
    "a manifest that is not there": lambda path: (path / "manifest.json").unlink(),
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED.keys())
def test_a_directory_that_was_altered_is_refused(tmp_path: Path, alter: Callable[[Path], None]) -> None:
    ModelDirectory.create(tmp_path / "tiny", good())
    alter(tmp_path / "tiny")
    with pytest.raises(RepositoryError):
        load(tmp_path / "tiny")


# The repository around it ---------------------------------------------------------------------------------------------


def make_repository(folder: Path) -> Path:
    """Make a repository with one model, and another model outside of it."""
    ModelDirectory.create(folder / "repository" / "tiny" / "1", good())
    ModelDirectory.create(folder / "elsewhere" / "secret" / "1", good())
    return folder / "repository"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("unchanged"))


@pytest.mark.parametrize("name", [*NAMES, "../elsewhere/secret", "secret/../../elsewhere/secret", "~", "$HOME", "*"])
def test_a_name_that_leads_out_of_the_repository_finds_nothing(unchanged: Path, name: str) -> None:
    with pytest.raises(LatebindError):
        Repository(unchanged).open(name)


def test_a_model_behind_a_link_that_leads_out_is_not_served(repository: Path) -> None:
    (repository / "linked").symlink_to(repository.parent / "elsewhere" / "secret")
    (repository / "tiny" / "2").symlink_to(repository.parent / "elsewhere" / "secret" / "1")
    assert [listed.path for listed in Repository(repository).models()] == [repository / "tiny" / "1"]
    with pytest.raises(RepositoryError, match="leads out of the repository"):
        Repository(repository).open("linked")


def test_a_query_behind_a_link_that_leads_out_is_refused(repository: Path) -> None:
    (repository / "passwd.query.toml").symlink_to("/etc/passwd")
    with pytest.raises(RepositoryError, match="leads out of the repository"):
        find_queries(repository)
