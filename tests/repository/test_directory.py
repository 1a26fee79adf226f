import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from latebind.domain.errors import NotFound, RepositoryError
from latebind.repository.directory import (
    MANIFEST,
    MODEL,
    MOST_CHANGES,
    WEIGHTS,
    Manifest,
    ModelDirectory,
    _locked,
    entry_of,
    json_bytes,
    verify,
)
from latebind.repository.listing import Repository
from latebind.repository.tensors import read_tensors, tensor_bytes, tensor_file

FILES = {MODEL: b'{"a": 1}', WEIGHTS: tensor_bytes({"w": torch.arange(3.0)}), "caches/one.json": b"{}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ModelDirectory.create(tmp_path / "net" / "1", FILES)
    return tmp_path / "net" / "1"


def test_what_is_written_is_read_back_whether_from_bytes_or_from_where_it_lies(path: Path, tmp_path: Path) -> None:
    directory = ModelDirectory.open(path)
    assert directory.read(MODEL) == FILES[MODEL]
    assert directory.read_json(MODEL, dict[str, int]) == {"a": 1}
    assert torch.equal(read_tensors(directory, WEIGHTS)["w"], torch.arange(3.0))
    assert directory.names("caches") == ("caches/one.json",)
    tensors = {"w": torch.arange(3.0), "turned": torch.arange(6.0).reshape(2, 3).T}
    streamed = ModelDirectory.create(tmp_path / "streamed", {WEIGHTS: tensor_file(tensors)})
    assert streamed.read(WEIGHTS) == tensor_bytes(tensors)
    assert (streamed.path / WEIGHTS).stat().st_mode == (path / WEIGHTS).stat().st_mode


def changed(name: str) -> Callable[[Path], object]:
    """Change the last byte of a file."""
    return lambda path: (path / name).write_bytes(FILES[name][:-1] + bytes([FILES[name][-1] ^ 1]))


def led_out(path: Path) -> None:
    """Put a link that leads out, to a file with the same content, in the place of a file."""
    (path / MODEL).rename(path.parent / "outside.json")
    (path / MODEL).symlink_to(path.parent / "outside.json")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        *((changed(name), f"{name} differs from the manifest") for name in sorted(FILES)),
        (lambda path: (path / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
        (led_out, "leads out of the model directory"),
        (lambda path: (path / MANIFEST).unlink(), "not a model directory"),
    ],
)
def test_a_directory_that_was_spoiled_is_refused_and_the_file_named(
    path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(path)
    with pytest.raises(RepositoryError, match=says):
        ModelDirectory.open(path)


def test_only_listed_files_are_read_and_only_as_they_were_listed(path: Path) -> None:
    (path / "more.json").write_bytes(b"{}")
    directory = ModelDirectory.open(path)
    with pytest.raises(RepositoryError, match=r"more\.json is not in the manifest"):
        directory.read("more.json")
    changed(MODEL)(path)
    with pytest.raises(RepositoryError, match="differs from the manifest"):
        directory.read(MODEL)


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", ".hidden", "a/b/c", "a\\b", "", "a b", "x" * 129, "a/.."])
def test_a_manifest_with_an_odd_file_name_is_refused(path: Path, name: str) -> None:
    manifest = {"format": 1, "files": {name: {"bytes": 0, "sha256": entry_of(b"").sha256}}}
    (path / MANIFEST).write_bytes(json_bytes(manifest))
    with pytest.raises(RepositoryError, match="not a valid file name in a model directory"):
        ModelDirectory.open(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "broken"),
        (b"\x80\x04.", "broken"),
        (b'{"format": 1}', "broken"),
        (b'{"format": 2, "files": {}}', "format 2"),
        (b'{"format": 1, "files": {"a": {"bytes": "many", "sha256": ""}}}', "broken"),
        (b" " * (1 << 21), "larger than"),
    ],
)
def test_a_broken_manifest_is_refused(path: Path, data: bytes, says: str) -> None:
    (path / MANIFEST).write_bytes(data)
    with pytest.raises(RepositoryError, match=says):
        ModelDirectory.open(path)


def test_files_can_be_added_replaced_and_removed_inside_the_directory_alone(path: Path) -> None:
    directory = ModelDirectory.open(path)
    for name in ("../out.json", "/tmp/out.json", MANIFEST):
        with pytest.raises(RepositoryError):
            directory.write_files({name: b"{}"})
    assert not (path.parent / "out.json").exists()
    directory.write_files({"caches/two.json": b"[]", MODEL: b'{"a": 5}'}, remove=["caches/one.json"])
    again = ModelDirectory.open(path)
    assert again.names("caches") == ("caches/two.json",)
    assert again.read(MODEL) == b'{"a": 5}'
    ModelDirectory.create(path, {MODEL: b"{}"})  # replaces the whole model
    assert sorted(entry.name for entry in path.iterdir()) == [MANIFEST, MODEL]
    assert [entry.name for entry in path.parent.iterdir()] == ["1"]


def test_what_writers_have_left_is_removed_where_it_is_old_and_nobody_has_it(tmp_path: Path) -> None:
    for name in ("fresh", "old", "held"):
        (tmp_path / f".net.{name}").mkdir()
    for name in ("old", "held"):
        os.utime(tmp_path / f".net.{name}", (0, 0))
    with _locked(tmp_path / ".net.held", seconds=0.0):
        ModelDirectory.create(tmp_path / "net", FILES)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".net.fresh", ".net.held", "net"]


@pytest.mark.parametrize("changes", [0, 1, MOST_CHANGES - 1, MOST_CHANGES])
def test_a_directory_that_changes_while_it_is_opened_is_looked_at_again(
    path: Path, changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, opened = list(range(changes)), ModelDirectory.open(path)

    def verify_later(path: Path, manifest: Manifest) -> None:
        if left:
            opened.write_files({MODEL: str(left.pop()).encode()})
        verify(path, manifest)

    monkeypatch.setattr("latebind.repository.directory.verify", verify_later)
    if changes == MOST_CHANGES:
        with pytest.raises(RepositoryError, match="changes faster than it can be read"):
            ModelDirectory.open(path)
    else:
        assert ModelDirectory.open(path).read(MODEL) == (b"0" if changes else FILES[MODEL])


def test_a_directory_with_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(RepositoryError, match="not a model"):
        ModelDirectory.create(tmp_path, FILES)
    assert (tmp_path / "letters.txt").read_text() == "mine"


def test_a_repository_lists_models_and_versions_by_number(tmp_path: Path) -> None:
    for version in ("2", "10", "1"):
        ModelDirectory.create(tmp_path / "net" / version, FILES)
    ModelDirectory.create(tmp_path / "flat", FILES)
    (tmp_path / "net" / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    repository = Repository(tmp_path)
    found = [(listed.name, listed.version) for listed in repository.models()]
    assert found == [("flat", "1"), ("net", "1"), ("net", "2"), ("net", "10")]
    assert repository.open("net").path == tmp_path / "net" / "10"
    assert repository.open("net", "2").path == tmp_path / "net" / "2"
    for name, wanted, told in (
        ("other", None, ": there are flat, net$"),
        ("net", "7", "model 'net' has no version '7' in .*: it has 1, 2, 10$"),
        ("../net", None, ": did you mean 'net'"),
    ):
        with pytest.raises(NotFound, match=told):
            repository.open(name, wanted)
    assert repository.path_for("net", "3") == tmp_path / "net" / "3"
    for name, version in (("..", "1"), ("a/b", "1"), ("net", "new"), ("", "1")):
        with pytest.raises(RepositoryError):
            repository.path_for(name, version)


def test_a_disk_that_is_full_is_told_with_the_folder_and_leaves_nothing(tmp_path: Path) -> None:
    def write(file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        ModelDirectory.create(tmp_path / "net" / "1", {MODEL: write})
    assert caught.value.filename == str(tmp_path / "net" / "1")
    assert list((tmp_path / "net").iterdir()) == []
