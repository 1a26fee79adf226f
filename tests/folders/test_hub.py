"""Names at the hub: what they may be, and that a folder is found in the cache where there is no network."""

import shutil
from pathlib import Path

import pytest

from latebind.domain.errors import ConfigError
from latebind.domain.model import Task
from latebind.folders.build import read_folder
from latebind.folders.hub import folder_name, local_folder
from tests.folders.making import make_folder

constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache as the hub's client leaves it: files by their sums, and links to them by revision."""
    made, storage = make_folder("bert", tmp_path / "made"), tmp_path / "hub" / "models--tests--tiny"
    (storage / "refs").mkdir(parents=True)
    (storage / "refs" / "main").write_text(COMMIT)
    snapshot, blobs = storage / "snapshots" / COMMIT, storage / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(made.iterdir())):
        shutil.copy(file, blobs / f"{number:040x}")
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / f"{number:040x}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return snapshot


@pytest.mark.parametrize("source", ["hf:tests/tiny", "hf:tests/tiny@main", f"hf:tests/tiny@{COMMIT}"])
def test_a_folder_in_the_cache_is_found_without_a_network(source: str, cache: Path) -> None:
    assert local_folder(source) == cache
    folder = read_folder(source)
    assert folder.about.task is Task.CLASSIFY
    assert folder.shown == source


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hf:tests/other", "is not in the cache, and the hub cannot be reached"),
        ("hf:tests/tiny@v2", "is not in the cache, and the hub cannot be reached"),
        ("hf:", "write it as hf:ORG/NAME"),
        ("hf:a/b/c", "write it as hf:ORG/NAME"),
        ("hf:../../etc", "write it as hf:ORG/NAME"),
        ("hf:tests/tiny@../../main", "write it as hf:ORG/NAME"),
        ("hf:https://example.org/x", "write it as hf:ORG/NAME"),
    ],
)
def test_what_is_not_there_is_told_in_a_sentence(source: str, said: str, cache: Path) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        local_folder(source)
    assert str(cache.parent) not in str(raised.value)


def test_a_model_has_the_name_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    assert folder_name("hf:sentence-transformers/all-MiniLM-L6-v2@main") == "all-MiniLM-L6-v2"
    assert folder_name("models/minilm/") == "minilm"
    assert folder_name("models/minilm/..") == "models"
    assert folder_name(".") == folder_name(str(tmp_path))
    assert folder_name("a b") == "a-b"
    assert folder_name("/") == "model"


def test_whatever_the_client_of_the_hub_raises_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("huggingface_hub")

    def broken(*_given: object, **_more: object) -> str:
        raise RuntimeError("the proxy\nsays no")

    monkeypatch.setattr(client, "snapshot_download", broken)
    with pytest.raises(ConfigError, match=r"^hf:tests/tiny cannot be fetched \(the proxy says no\)$"):
        local_folder("hf:tests/tiny")
