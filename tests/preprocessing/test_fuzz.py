"""Drawn and altered inputs and files: nothing comes out but the errors that say what is wrong.

`HYPOTHESIS_PROFILE=thorough pytest tests/preprocessing/test_fuzz.py` draws thousands of each.
"""

import base64
import json
import os
import random
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latebind.domain.errors import ConfigError, InvalidRequest, RepositoryError
from latebind.domain.model import About, Media, RawInput
from latebind.preprocessing.opening import open_preprocessor
from latebind.preprocessing.pictures import PicturePreprocessor, picture_settings
from latebind.preprocessing.preprocessor import CUT, Preprocessor
from latebind.preprocessing.settings import (
    FORMAT,
    PREPROCESSING,
    PictureSettings,
    Role,
    SoundSettings,
    Stored,
    TextSettings,
)
from latebind.preprocessing.sounds import SoundPreprocessor, sound_settings
from latebind.preprocessing.text import TextPreprocessor
from latebind.preprocessing.tokenizer import load_tokenizer, read_tokenizer
from latebind.repository.directory import ModelDirectory, json_bytes
from tests.preprocessing import test_pictures, test_sounds
from tests.preprocessing.making import FAMILIES, HARD, bytes_of, json_of

ROWS = 5_000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 400
SOME = ROWS // 40  # of them are read at least, and as many refused: else nothing would be tried
MOST_MEMORY = 1 << 30  # bytes that a test of many inputs may add to the process's largest


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1_024 < MOST_MEMORY


def altered(data: bytes, drawn: random.Random) -> bytes:
    """Flip, cut out, repeat or put in some bytes."""
    changed = bytearray(data)
    for _ in range(drawn.choice((1, 1, 2, 8, 64))):
        place, length = drawn.randrange(len(changed) + 1), drawn.choice((1, 1, 2, 4, 100))
        match drawn.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << drawn.randrange(8)
            case 1:
                del changed[place : place + length]
            case 2:
                changed[place:place] = changed[place : place + length] * drawn.choice((1, 3, 50))
            case 3:
                changed[place : place + length] = drawn.randbytes(length)
            case _:
                changed[place : place + 4] = struct.pack("<I", drawn.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF)))
    return bytes(changed)


def counts(preprocessor: Preprocessor, name: str, inputs: Iterator[Any]) -> tuple[int, int]:
    """Return how many were read and how many refused; each row is what the model takes."""
    read = refused = 0
    for given in inputs:
        said = f"element 0 of {name!r}"
        try:
            (row,) = preprocessor.prepare({name: [given]}, CUT)
        except InvalidRequest as error:
            said = str(error)
            refused += 1
        else:
            read += 1
            assert set(row.tensors) == preprocessor.makes
        assert said.startswith(f"element 0 of {name!r}")
        assert len(said) < 400
    return read, refused


def drawn_texts(drawn: random.Random) -> Iterator[str | bytes]:
    everything = [chr(point) for point in (*range(0x250), *range(0x300, 0x370), *range(0x2000, 0x2070))]
    everything += [chr(drawn.randrange(0x110000)) for _ in range(2_000)]  # surrogates too
    for _ in range(ROWS):
        match drawn.randrange(4):
            case 0:
                yield "".join(drawn.choices(everything, k=drawn.choice((0, 1, 3, 40, 3_000))))
            case 1:
                yield drawn.randbytes(drawn.choice((0, 1, 5, 300)))
            case 2:
                yield altered(drawn.choice(HARD).encode(), drawn)
            case _:
                yield drawn.choice(everything) * drawn.choice((1, 100, 5_000))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_texts(family: str) -> None:
    settings = TextSettings({Role.IDS: "ids", Role.MASK: "mask", Role.TYPES: "types"}, 32)
    preprocessor = TextPreprocessor(settings, read_tokenizer(bytes_of(json_of(FAMILIES[family]()))), spans=True)
    read, refused = counts(preprocessor, "text", drawn_texts(random.Random(0)))
    assert read + refused == ROWS
    assert min(read, refused) > SOME


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_altered_pictures(kind: str) -> None:
    drawn = random.Random(0)
    made = [test_pictures.drawn(40, 60), test_pictures.drawn(31, 17, "L"), test_pictures.drawn(20, 20, seed=1)]
    good = [test_pictures.file_of(image, kind) for image in made]
    if kind == "JPEG":
        good += [test_pictures.file_of(made[0], kind, progressive=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12")]
    preprocessor = PicturePreprocessor(PictureSettings("pixels", shortest=32, crop=(30, 30), mask="seen"))
    read, refused = counts(preprocessor, "image", (altered(drawn.choice(good), drawn) for _ in range(ROWS)))
    assert read + refused == ROWS
    assert refused > SOME


@pytest.mark.slow
def test_altered_sounds() -> None:
    drawn = random.Random(0)
    tone = test_sounds.tone(0.05)
    good = [
        test_sounds.file_of(np.round(tone * (1 << 15)).astype(np.int16)),
        test_sounds.file_of(np.stack([tone, tone], -1).astype(np.float32), 44_100),
        test_sounds.pcm24(tone),
        test_sounds.extensible(1),
    ]
    if test_sounds.has_flac():
        good.append(test_sounds.flac(np.stack([tone, tone], -1)))
    preprocessor = SoundPreprocessor(SoundSettings("samples", 16_000, 16_000, True, "seen"))
    read, refused = counts(preprocessor, "sound", (altered(drawn.choice(good), drawn) for _ in range(ROWS)))
    assert min(read, refused) > SOME


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 1 << 31, 1 << 70, 0.5, -1e300, "", "a", "[UNK]", "(a+)+b", "\ud800", "x" * 5_000,
    [], {}, [[]], ["a", 1], {"type": "NFC"}, {"type": "Sequence"}, {"String": ""}, {"Regex": "a|b*"}, {"Regex": ""},
    [None],
)  # fmt: skip


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths to all values; of long lists and objects only some."""
    yield path
    items: Any = enumerate(content) if isinstance(content, list) else ()
    items = content.items() if isinstance(content, dict) else items
    for place, (key, value) in enumerate(items):
        if place > 12:
            break
        yield from places(value, (*path, key))


def changed(content: Any, drawn: random.Random) -> Any:
    """Replace, remove, double or move some values of a JSON text."""
    content = deepcopy(content)
    for _ in range(drawn.choice((1, 1, 2, 5))):
        paths = [path for path in places(content) if path]
        if not paths:
            break
        *way, last = drawn.choice(paths)
        place = content
        for step in way:
            place = place[step]
        match drawn.randrange(5):
            case 0 | 1:
                place[last] = deepcopy(drawn.choice(ODD))
            case 2:
                del place[last]
            case 3:
                place[last] = [deepcopy(place[last])] * drawn.choice((1, 2, 70))
            case _:
                with suppress(TypeError):
                    place[drawn.choice(("type", "vocab", "content", "pattern", 0))] = deepcopy(place[last])
    return content


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_altered_tokenizer_files(family: str) -> None:
    drawn = random.Random(0)
    content = json_of(FAMILIES[family]())
    whole = bytes_of(content)
    settings = TextSettings({Role.IDS: "ids"}, 32)
    loaded = refused = 0
    for place in range(ROWS // 2):
        data = json.dumps(changed(content, drawn)).encode() if place % 3 else altered(whole, drawn)
        try:
            preprocessor = TextPreprocessor(settings, read_tokenizer(data))
        except RepositoryError as error:
            refused += len(str(error)) < 700
            continue
        loaded += 1
        for given in HARD:
            with suppress(InvalidRequest):
                preprocessor.prepare({"text": [given]}, CUT)
    assert loaded + refused == ROWS // 2
    assert min(loaded, refused) > SOME // 5


@pytest.mark.slow
def test_drawn_tables_of_characters() -> None:
    """Trees of random units, whose lookups lead anywhere: what breaks the library is said of the text."""
    drawn = np.random.default_rng(0)
    content = json_of(FAMILIES["t5"]())
    settings = TextSettings({Role.IDS: "ids"}, 32)
    read = refused = 0
    for _ in range(ROWS // 10):
        tree = drawn.integers(0, 1 << 32, drawn.integers(1, 600), np.uint32)
        tree[:: drawn.integers(1, 4)] &= 0x0003FFFF
        texts = b"\0".join(bytes(drawn.integers(32, 127, drawn.integers(0, 20), np.uint8)) for _ in range(9))
        table = base64.b64encode(tree.nbytes.to_bytes(4, "little") + tree.tobytes() + texts).decode()
        content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": table}
        with suppress(RepositoryError):
            preprocessor = TextPreprocessor(settings, read_tokenizer(bytes_of(content)))
            for given in HARD:
                try:
                    preprocessor.prepare({"text": [given]}, CUT)
                    read += 1
                except InvalidRequest:
                    refused += 1
    assert min(read, refused) > SOME


@pytest.mark.parametrize(
    ("reads", "raw"),
    [
        (PictureSettings("p", None, 256, 512, 3, (64, 64), 0.5, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), "m", 16), "image"),
        (SoundSettings("s", 16_000, 80_000, True, "m"), "sound"),
    ],
)
def test_altered_settings(tmp_path: Path, reads: Any, raw: str) -> None:
    drawn = random.Random(0)
    content = json.loads(json_bytes(Stored(FORMAT, reads)))
    about = About(raw=(RawInput(raw, Media.PICTURE if raw == "image" else Media.SOUND),))
    given = {
        "image": test_pictures.file_of(test_pictures.drawn(20, 30)),
        "sound": test_sounds.file_of(test_sounds.tone()),
    }
    opened = 0
    for place in range(150):
        data = json.dumps(changed(content, drawn)).encode() if place % 3 else altered(bytes_of(content), drawn)
        made = ModelDirectory.create(tmp_path / "1", {PREPROCESSING: data})
        try:
            preprocessor = open_preprocessor(made, about)
        except RepositoryError:
            continue
        opened += 1
        with suppress(InvalidRequest):
            preprocessor.prepare({raw: [given[raw]]})
    assert 0 < opened < 150


CONFIGS: dict[str, Callable[[Any], object]] = {
    "pictures": picture_settings,
    "sounds": lambda config: sound_settings(config, longest=16_000),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_altered_configurations(kind: str) -> None:
    drawn = random.Random(0)
    contents = [make().to_dict() for make in test_pictures.PROCESSORS.values()]
    contents += [{"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16_000, "do_normalize": True}]
    contents = [json.loads(json.dumps(content, default=str)) for content in contents]
    for _ in range(ROWS):
        with suppress(ConfigError):
            CONFIGS[kind](changed(drawn.choice(contents), drawn))


def test_altered_files_that_pass_are_written_anew_alike() -> None:
    for make in FAMILIES.values():
        file = read_tokenizer(bytes_of(json_of(make())))
        assert read_tokenizer(file.json.encode()).json == file.json
        load_tokenizer(file)
