"""What reads the raw inputs of models comes and goes with the engine that has them; engines here have no processes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latebind.compiled import is_compiled
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.domain.model import About, Media, RawInput
from latebind.engine.engines import EngineStartFailed
from latebind.preprocessing.preprocessor import USUAL, Given, Prepared, Reading, columns
from latebind.program.metadata import read_model
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes
from tests.engine.pretended import open_shop
from tests.versions import WIDTH, add_version

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled code takes real engines alone, and these are pretended")
RAW = (RawInput("text", Media.TEXT),)
FILE = "preprocessing.json"


class Reads:
    """Says how long a text is; `word` is what its file has."""

    raw = RAW

    def __init__(self, word: bytes) -> None:
        self.word = word
        self.makes = frozenset({word.decode()})

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        return [Prepared({"x": np.full(WIDTH, len(text), np.float32)}) for text in columns(self.raw, given)["text"]]


class Opened:
    """Opens preprocessors, and counts how often for each folder."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def __call__(self, directory: ModelDirectory, about: About) -> Reads:
        self.folders.append(directory.path.name)
        word = directory.read(FILE)
        if word == b"broken":
            raise RepositoryError(f"{directory.path / FILE} is broken")
        if word == b"foreign":
            raise ConfigError("tokenizers is not installed")
        return Reads(word)


def add_reading(root: Path, version: int, word: bytes = b"x", name: str = "scale") -> Path:
    """Write a version of `scale` that reads texts."""
    place = add_version(root, name, version, float(version))
    directory = ModelDirectory.open(place)
    model = replace(read_model(directory), about=About(raw=RAW))
    directory.write_files({MODEL: json_bytes(model), FILE: word})
    return place


async def test_a_model_with_raw_inputs_has_its_preprocessor_and_others_have_none(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    add_reading(tmp_path, 1)
    add_version(tmp_path, "other", 1, 5.0)
    opened = Opened()
    async with open_shop(tmp_path, monkeypatch, opens=opened) as shop:
        reads = shop.engines.preprocessor("scale")
        assert isinstance(reads, Reads)
        assert shop.engines.preprocessor("other") is None
        assert shop.engines.models["scale"].about.raw == RAW
        assert opened.folders == ["1"]


async def test_what_has_not_changed_is_not_loaded_again_and_a_new_version_has_its_own(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    add_reading(tmp_path, 1)
    opened = Opened()
    async with open_shop(tmp_path, monkeypatch, opens=opened) as shop:
        before = shop.engines.preprocessor("scale")
        shop.engine.die()
        await shop.ended()
        assert shop.engines.ready()
        assert shop.engines.preprocessor("scale") is before
        add_reading(tmp_path, 2)
        assert await shop.catalogue.reload() == ["scale"]
        after = shop.engines.preprocessor("scale")
        assert after is not None
        assert after is not before
        assert opened.folders == ["1", "2"]
        await shop.catalogue.unload("scale")
        assert shop.engines.preprocessor("scale") is None
        await shop.catalogue.load("scale", "1")
        assert opened.folders == ["1", "2", "1"]  # what is served no more was forgotten


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (b"broken", "is broken"),
        (b"foreign", "not installed"),
        (b"y", r"takes \['x'\], but its preprocessor makes \['y'\]"),
    ],
)
async def test_a_version_whose_preprocessor_cannot_be_loaded_leaves_the_old_one_serving_and_says_why(
    tmp_path: Path, monkeypatch: Patch, word: bytes, says: str
) -> None:
    add_reading(tmp_path, 1)
    async with open_shop(tmp_path, monkeypatch, opens=Opened()) as shop:
        before = shop.engines.preprocessor("scale")
        add_reading(tmp_path, 2, word)
        add_version(tmp_path, "other", 1, 5.0)
        assert await shop.catalogue.reload() == ["other"]
        with pytest.raises(RepositoryError, match=says):
            await shop.catalogue.load("scale")
        assert shop.states() == {"scale": "1", "other": "1"}
        assert shop.engines.preprocessor("scale") is before
        (reason,) = [one["reason"] for one in shop.catalogue.index() if one["name"] == "scale"]
        assert str(tmp_path) not in reason


async def test_a_model_whose_preprocessor_is_gone_after_a_crash_is_left_out_and_the_others_are_served(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    place = add_reading(tmp_path, 1)
    add_version(tmp_path, "other", 1, 5.0)
    async with open_shop(tmp_path, monkeypatch, opens=Opened()) as shop:
        ModelDirectory.open(place).write_files({FILE: b"broken"})
        shop.engine.die()
        assert await shop.ask("other") == "1"
        await shop.ended()
        assert shop.states() == {"scale": "UNAVAILABLE", "other": "1"}
        assert "is broken" in shop.engines.unavailable["scale"]
        assert shop.engines.preprocessor("scale") is None


async def test_files_that_changed_before_a_crash_are_read_anew_with_their_engine(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    place = add_reading(tmp_path, 1)
    add_version(tmp_path, "other", 1, 5.0)
    async with open_shop(tmp_path, monkeypatch, opens=Opened()) as shop:
        before = shop.engines.preprocessor("scale")
        ModelDirectory.open(place).write_files({"more.json": b"{}"})
        shop.engine.lost_calls["scale"] = 1  # it would come first, by itself
        shop.engine.die()
        await shop.ended()
        assert shop.engines.ready()
        assert shop.engines.preprocessor("scale") is not before
        assert [list(engine.models) for engine in shop.machine.engines if engine.live()] == [["other", "scale"]]


async def test_files_that_change_while_an_engine_starts_do_not_take_over_half(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    place = add_reading(tmp_path, 1)

    class Changing(Opened):
        def __call__(self, directory: ModelDirectory, about: About) -> Reads:
            found = super().__call__(directory, about)
            ModelDirectory.open(place).write_files({FILE: b"x", "more.json": b"{}"})
            return found

    with pytest.raises(EngineStartFailed, match="was replaced while it was loaded"):
        async with open_shop(tmp_path, monkeypatch, opens=Changing()):
            raise AssertionError
