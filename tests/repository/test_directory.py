import errno
import os
from pathlib import Path

import pytest
import torch

from latebind.domain.errors import NotFound, RepositoryError
from latebind.repository.directory import (
    MANIFEST,
    MODEL,
    MOST_CHANGES,
    READY,
    WEIGHTS,
    Manifest,
    ModelDirectory,
    _locked,
    entry_of,
    json_bytes,
    read_manifest,
    verify,
)
from latebind.repository.listing import Repository
from latebind.repository.tensors import read_tensors, tensor_bytes, tensor_file

FILES = {MODEL: b'{"a": 1}', WEIGHTS: tensor_bytes({"w": torch.arange(3.0)}), "caches/one.json": b"{}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ModelDirectory.create(tmp_path / "net" / "1", FILES)
    return tmp_path / "net" / "1"


def test_what_is_written_is_read_back(path: Path) -> None:
    directory = ModelDirectory.open(path)
    assert directory.read(MODEL) == FILES[MODEL]
    assert directory.read_json(MODEL, dict[str, int]) == {"a": 1}
    assert torch.equal(read_tensors(directory, WEIGHTS)["w"], torch.arange(3.0))
    assert directory.names("caches") == ("caches/one.json",)


def test_tensors_written_from_where_they_lie_are_the_same_file(path: Path, tmp_path: Path) -> None:
    tensors = {"w": torch.arange(3.0), "turned": torch.arange(6.0).reshape(2, 3).T}
    streamed = ModelDirectory.create(tmp_path / "streamed", {WEIGHTS: tensor_file(tensors)})
    assert streamed.read(WEIGHTS) == tensor_bytes(tensors)
    assert (streamed.path / WEIGHTS).stat().st_mode == (path / WEIGHTS).stat().st_mode
    assert torch.equal(read_tensors(streamed, WEIGHTS)["turned"], tensors["turned"])


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_changed_byte_is_found_and_the_file_named(path: Path, name: str) -> None:
    data = bytearray((path / name).read_bytes())
    data[-1] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(RepositoryError, match=f"{name} differs from the manifest"):
        ModelDirectory.open(path)


def test_a_file_altered_after_opening_is_found_when_it_is_read(path: Path) -> None:
    directory = ModelDirectory.open(path)
    (path / MODEL).write_bytes(b'{"a": 2}')
    with pytest.raises(RepositoryError, match="differs from the manifest"):
        directory.read(MODEL)


def test_a_missing_file_is_named(path: Path) -> None:
    (path / WEIGHTS).unlink()
    with pytest.raises(RepositoryError, match=f"{WEIGHTS} is missing"):
        ModelDirectory.open(path)


def test_a_file_that_the_manifest_does_not_list_is_never_read(path: Path) -> None:
    (path / "more.json").write_bytes(b"{}")
    with pytest.raises(RepositoryError, match=r"more\.json is not in the manifest"):
        ModelDirectory.open(path).read("more.json")


def test_a_link_that_leads_out_is_refused_even_if_its_content_fits(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_bytes(FILES[MODEL])
    (path / MODEL).unlink()
    (path / MODEL).symlink_to(outside)
    with pytest.raises(RepositoryError, match="leads out of the model directory"):
        ModelDirectory.open(path)


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", ".hidden", "a/b/c", "a\\b", "", "a b", "x" * 129, "a/.."])
def test_a_manifest_with_an_odd_file_name_is_refused(path: Path, name: str) -> None:
    manifest = {"format": 1, "files": {name: {"bytes": 0, "sha256": entry_of(b"").sha256}}}
    (path / MANIFEST).write_bytes(json_bytes(manifest))
    with pytest.raises(RepositoryError, match="no file name of a model directory"):
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


def test_a_directory_without_a_manifest_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="not a model directory"):
        ModelDirectory.open(tmp_path)


def test_files_can_be_added_replaced_and_removed(path: Path) -> None:
    directory = ModelDirectory.open(path)
    directory.write_files({"caches/two.json": b"[]", MODEL: b'{"a": 5}'}, remove=["caches/one.json"])
    again = ModelDirectory.open(path)
    assert again.names("caches") == ("caches/two.json",)
    assert again.read(MODEL) == b'{"a": 5}'
    assert not (path / "caches" / "one.json").exists()


def test_files_can_only_be_written_inside_the_directory(path: Path) -> None:
    for name in ("../out.json", "/tmp/out.json", MANIFEST):
        with pytest.raises(RepositoryError):
            ModelDirectory.open(path).write_files({name: b"{}"})
    assert not (path.parent / "out.json").exists()
    assert set(read_manifest(path).files) == set(FILES)


def test_creating_again_replaces_the_whole_model(path: Path) -> None:
    ModelDirectory.create(path, {MODEL: b"{}"})
    assert set(ModelDirectory.open(path).files) == {MODEL}
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
        with pytest.raises(RepositoryError, match="replaced faster than it can be read"):
            ModelDirectory.open(path)
    else:
        assert ModelDirectory.open(path).read(MODEL) == (b"0" if changes else FILES[MODEL])


def test_the_manifest_is_the_last_to_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, rename = list[str](), Path.replace

    def noted(file: Path, place: Path) -> Path:
        if file.is_relative_to(path / READY):
            moved.append(file.name)
        return rename(file, place)

    monkeypatch.setattr(Path, "replace", noted)
    ModelDirectory.create(path, FILES)
    assert len(moved) == len(FILES) + 1
    assert moved[-1] == MANIFEST


def test_a_file_that_is_replaced_by_another_name_of_itself_stays(path: Path) -> None:
    def link(to: Path) -> None:
        os.link(path / MODEL, to)

    replaced = ModelDirectory.create(path, {MODEL: link})
    assert replaced.read(MODEL) == FILES[MODEL]
    assert sorted(entry.name for entry in path.iterdir()) == [MANIFEST, MODEL]


def test_a_directory_with_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(RepositoryError, match="not a model"):
        ModelDirectory.create(tmp_path, FILES)
    assert (tmp_path / "letters.txt").read_text() == "mine"


def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    directory = ModelDirectory.create(tmp_path / "m", {WEIGHTS: b"\x80\x04."})
    with pytest.raises(RepositoryError, match="no safetensors file"):
        read_tensors(directory, WEIGHTS)


def test_a_repository_lists_models_and_versions_by_number(tmp_path: Path) -> None:
    for version in ("2", "10", "1"):
        ModelDirectory.create(tmp_path / "net" / version, FILES)
    ModelDirectory.create(tmp_path / "flat", FILES)
    (tmp_path / "net" / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    found = [(listed.name, listed.version) for listed in Repository(tmp_path).models()]
    assert found == [("flat", "1"), ("net", "1"), ("net", "2"), ("net", "10")]
    assert Repository(tmp_path).open("net").path == tmp_path / "net" / "10"
    assert Repository(tmp_path).open("net", "2").path == tmp_path / "net" / "2"


def test_a_model_that_is_not_there_is_answered_with_those_that_are(path: Path) -> None:
    repository = Repository(path.parent.parent)
    for name, version, told in (
        ("other", None, ": there is net$"),
        ("net", "7", "model 'net' has no version '7' in .*: it has 1$"),
        ("../net", None, ": there is net$"),
    ):
        with pytest.raises(NotFound, match=told):
            repository.open(name, version)


def test_names_and_versions_for_new_models_are_checked(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    assert repository.path_for("net", "3") == tmp_path / "net" / "3"
    for name, version in (("..", "1"), ("a/b", "1"), ("net", "new"), ("", "1")):
        with pytest.raises(RepositoryError):
            repository.path_for(name, version)


def test_a_repository_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="is not a directory"):
        Repository(tmp_path / "nowhere").models()


def test_a_disk_that_is_full_is_told_with_the_folder_and_leaves_nothing(tmp_path: Path) -> None:
    def write(file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        ModelDirectory.create(tmp_path / "net" / "1", {MODEL: write})
    assert caught.value.filename == str(tmp_path / "net" / "1")
    assert list((tmp_path / "net").iterdir()) == []
