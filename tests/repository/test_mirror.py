"""A repository at a URL, in a folder here: only what changed is fetched, and nothing is seen half."""

import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latebind.domain.config import RepositoryConfig
from latebind.domain.errors import ConfigError, NotFound, RepositoryError
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Selection
from latebind.repository.mirror import Mirror, Remote, arrange, open_selection

fsspec = pytest.importorskip("fsspec")

QUERY = b'[nodes.one]\nmodels = ["a"]\n'
PLENTY = 1 << 20


def add(store: Path, place: str, **files: bytes) -> None:
    """Put a model there, with a file of weights and those given."""
    wanted = {"weights": b"w" * 100, **files}
    ModelDirectory.create(store / place, {f"{name}.bin": data for name, data in wanted.items()})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A shared folder with models a, in two versions, and b, and a query over a."""
    folder = tmp_path / "shared" / "models"
    add(folder, "a/1")
    add(folder, "a/2", more=b"2")
    add(folder, "b/1", other=b"b")
    (folder / "ask.query.toml").write_bytes(QUERY)
    return folder


@pytest.fixture
def mirror(store: Path, tmp_path: Path) -> Mirror:
    return Mirror(Remote(f"file://{store}"), tmp_path / "here", most=PLENTY)


@pytest.fixture
def memory() -> Iterator[Any]:
    """The store behind `memory://`, which a process has one of."""
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def there(folder: Path) -> list[str]:
    """Return the versions and queries in a folder that are seen, each whole."""
    found = sorted(str(path.relative_to(folder)) for path in folder.glob("*/[0-9]*"))
    for place in found:
        ModelDirectory.open(folder / place)
    return found + sorted(path.name for path in folder.glob("*.toml"))


def log_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_stores_of_each_kind_are_mirrored_whole(memory: Any, store: Path, tmp_path: Path) -> None:
    memory.put(str(store), "/bucket/models", recursive=True)
    add(store, "c")  # without a version it is the first
    found = ["a/1", "a/2", "b/1", "ask.query.toml"]
    for url, expected in (
        ("memory://bucket/models", found),
        (f"file://{store}", [*found[:3], "c/1", *found[3:]]),
        (f"file://{store}/a/2", ["a/2"]),
        (f"file://{store}/b/1", ["b/1"]),
    ):
        here = tmp_path / url.replace("/", "-")
        Mirror(Remote(url), here, most=PLENTY).refresh()
        assert there(here) == expected


def test_of_a_model_that_is_named_and_of_a_query_its_models_are_fetched(mirror: Mirror) -> None:
    mirror.refresh(["ask"])
    assert there(mirror.folder) == ["a/1", "a/2", "ask.query.toml"]
    mirror.refresh(["b"])
    assert there(mirror.folder) == ["a/1", "a/2", "b/1", "ask.query.toml"]


def test_only_what_changed_is_fetched(store: Path, mirror: Mirror, caplog: pytest.LogCaptureFixture) -> None:
    mirror.refresh()
    before = {path: path.stat().st_ino for path in mirror.folder.glob("*/[0-9]*/*")}
    add(store, "a/3", more=b"3")
    caplog.set_level(logging.INFO)
    caplog.clear()
    mirror.refresh()
    assert log_of(caplog) == "fetching a version 3, 101 bytes"
    assert before.items() <= {path: path.stat().st_ino for path in mirror.folder.glob("*/[0-9]*/*")}.items()


def test_a_version_that_was_exchanged_there_or_cut_off_here_is_fetched_again(store: Path, mirror: Mirror) -> None:
    mirror.refresh()
    add(store, "b/1", other=b"another")
    mirror.refresh()
    assert (mirror.folder / "b/1/other.bin").read_bytes() == b"another"
    (mirror.folder / "b/1/weights.bin").write_bytes(b"w")
    mirror.refresh()
    assert there(mirror.folder)[2] == "b/1"


def test_what_has_gone_there_goes_here_and_learned_versions_stay(store: Path, mirror: Mirror) -> None:
    mirror.refresh()
    (mirror.folder / "a/.adapted-1").mkdir()
    (mirror.folder / "a/.2.x8fk2").mkdir()  # left by a process that was killed
    for place in (store / "a/1", store / "b/1"):
        place.rename(store.parent / place.parent.name)
    (store / "ask.query.toml").unlink()
    mirror.refresh()
    assert there(mirror.folder) == ["a/2"]
    assert sorted(path.name for path in mirror.folder.glob("*/.*")) == [".adapted-1"]


def test_a_version_that_is_half_uploaded_is_left_until_it_is_whole(
    store: Path, mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    add(store, "a/3", more=b"three")
    for late, name in ((store / "a/3/more.bin", "a/3"), (store / "b/1/manifest.json", "b/1")):
        late.rename(aside := store.parent / "late")
        mirror.refresh()
        assert name not in there(mirror.folder)
        aside.rename(late)
    assert "a version 3 is not complete yet: more.bin is missing" in log_of(caplog)
    mirror.refresh()
    assert {"a/3", "b/1"} <= {*there(mirror.folder)}


def test_what_differs_from_its_manifest_is_left_and_what_was_here_stays(
    store: Path, mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    mirror.refresh()
    add(store, "b/1", other=b"c")
    (store / "b/1/other.bin").write_bytes(b"d")
    (store / "a/1/manifest.json").write_bytes(b"{")
    mirror.refresh()
    assert (mirror.folder / "b/1/other.bin").read_bytes() == b"b"
    assert there(mirror.folder) == ["a/1", "a/2", "b/1", "ask.query.toml"]
    assert "/b/1/other.bin differs from the manifest" in log_of(caplog)
    assert "/a/1/manifest.json is invalid" in log_of(caplog)


def test_a_file_that_is_longer_than_its_manifest_says_is_not_read_to_its_end(store: Path, tmp_path: Path) -> None:
    entry = ModelDirectory.open(store / "a/1").files["weights.bin"]
    (store / "a/1/weights.bin").write_bytes(b"w" * 5_000_000)
    with pytest.raises(RepositoryError, match="differs from the manifest"):
        Remote(f"file://{store}").fetch("a/1/weights.bin", entry, tmp_path / "file")
    assert (tmp_path / "file").stat().st_size == 101


def test_more_than_is_allowed_is_refused_before_anything_is_fetched(store: Path, tmp_path: Path) -> None:
    mirror = Mirror(Remote(f"file://{store}"), tmp_path / "here", most=301)
    with pytest.raises(RepositoryError, match="302 bytes to be served and 301 are allowed: raise --cache-size"):
        mirror.refresh()
    assert there(mirror.folder) == ["ask.query.toml"]
    mirror.refresh(["a"])
    assert there(mirror.folder) == ["a/1", "a/2", "ask.query.toml"]


def test_an_empty_store_takes_nothing_away(store: Path, mirror: Mirror) -> None:
    mirror.refresh()
    store.rename(store.with_name("gone"))
    with pytest.raises(RepositoryError, match=r"contains no model|cannot be read"):
        mirror.refresh()
    assert there(mirror.folder) == ["a/1", "a/2", "b/1", "ask.query.toml"]


@pytest.mark.parametrize(
    "place",
    [
        "../evil/1/manifest.json",
        "/etc/1/manifest.json",
        "a//1/manifest.json",
        "./a/manifest.json",
        "a/..\\1/manifest.json",
        "a/1\n/manifest.json",
        "a/1/b/manifest.json",
        "a/x/manifest.json",
        "-rf/1/manifest.json",
    ],
)
def test_names_in_a_listing_lead_nowhere(place: str) -> None:
    assert arrange({place: 1}, "bucket/models") == ((), ())


def test_a_listing_that_names_places_elsewhere_is_not_followed(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ModelDirectory.create(tmp_path / "a", {"weights.bin": b"w"})
    memory.put(str(tmp_path / "a"), "/bucket/models/a/1", recursive=True)
    memory.put(str(tmp_path / "a"), "/bucket/secret/1", recursive=True)
    found = memory.find("/bucket", detail=True)
    found["/bucket/models/../secret/1/manifest.json"] = found["/bucket/secret/1/manifest.json"]
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: found)
    listed, _ = Remote("memory://bucket/models").look()
    assert [(one.name, one.version, sorted(one.files)) for one in listed] == [
        ("a", "1", ["manifest.json", "weights.bin"])
    ]


def test_a_manifest_that_leads_elsewhere_is_refused(
    store: Path, mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = store / "b/1/manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"other.bin", b"../../b.bin"))
    mirror.refresh()
    assert "is not a valid file name in a model directory" in log_of(caplog)
    assert "b/1" not in there(mirror.folder)


def test_links_in_a_shared_folder_are_not_followed(store: Path, mirror: Mirror) -> None:
    (store / "b/1/other.bin").rename(store.parent / "other.bin")
    (store / "b/1/other.bin").symlink_to(store.parent / "other.bin")
    mirror.refresh()
    assert "b/1" not in there(mirror.folder)


def test_an_error_tells_no_credentials(store: Path, tmp_path: Path) -> None:
    remote = Remote(f"file://user:secret@{store}")
    with pytest.raises(RepositoryError) as told:
        Mirror(remote, tmp_path / "here", most=PLENTY).refresh()
    assert "secret" not in str(told.value)


def test_an_unknown_scheme_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere://bucket cannot be opened: Protocol not known"):
        open_selection("nowhere://bucket", (), RepositoryConfig(cache=str(tmp_path)))


def selection(store: Path, tmp_path: Path) -> Selection:
    return open_selection(f"file://{store}", (), RepositoryConfig(cache=str(tmp_path / "cache")))


def test_what_is_served_of_a_url_is_what_lies_there(store: Path, tmp_path: Path) -> None:
    found: Selection = pickle.loads(pickle.dumps(selection(store, tmp_path)))  # as it is sent to replicas
    serving = found.first()
    assert {name: path.name for name, path in serving.models.items()} == {"a": "2", "b": "1"}
    assert all(path.is_relative_to(tmp_path / "cache") for path in serving.models.values())
    add(store, "a/3")
    add(store, "c/1")
    assert found.names() == ("a", "b", "c", "ask")
    assert found.find("a").models["a"].name == "3"


def test_a_version_that_is_asked_for_is_fetched_first(store: Path, tmp_path: Path) -> None:
    found = selection(store, tmp_path)
    found.first()
    add(store, "b/7")
    with pytest.raises(NotFound):
        found.find("b", "7")
    assert found.fresh("b", "7").models["b"].name == "7"


def test_a_server_starts_without_the_store_from_what_it_fetched_before(store: Path, tmp_path: Path) -> None:
    selection(store, tmp_path).first()
    os.rename(store, store.with_name("away"))
    again = selection(store, tmp_path)
    assert set(again.first().models) == {"a", "b"}
    assert again.fresh("a").models["a"].name == "2"
    with pytest.raises(RepositoryError):
        again.names()
    with pytest.raises(RepositoryError):  # one that never saw it
        selection(tmp_path / "nothing", tmp_path).first()


def test_two_processes_that_share_the_folder_take_turns(store: Path, tmp_path: Path) -> None:
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:
            for _ in range(5):
                Mirror(Remote(f"file://{store}"), tmp_path / "here", most=PLENTY).refresh()
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert there(tmp_path / "here") == ["a/1", "a/2", "b/1", "ask.query.toml"]
