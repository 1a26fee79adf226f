import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from latebind.domain.errors import InvalidRequest, RepositoryError
from latebind.domain.model import About, Media, RawInput, Task
from latebind.preprocessing.opening import open_preprocessor
from latebind.preprocessing.settings import (
    FORMAT,
    PREPROCESSING,
    TOKENIZER,
    PictureSettings,
    Role,
    SoundSettings,
    Stored,
    TextSettings,
)
from latebind.repository.directory import ModelDirectory, json_bytes
from tests.preprocessing.making import bert, bytes_of

TEXT = About(Task.EMBED, (RawInput("text", Media.TEXT),))
PICTURE = About(Task.CLASSIFY, (RawInput("image", Media.PICTURE),))
SOUND = About(Task.CLASSIFY, (RawInput("sound", Media.SOUND),))
IDS = {Role.IDS: "input_ids", Role.MASK: "attention_mask"}


def directory(folder: Path, reads: Any, **files: bytes) -> ModelDirectory:
    settings = reads if isinstance(reads, bytes) else json_bytes(Stored(FORMAT, reads))
    named = {name.replace("_", "."): data for name, data in files.items()}
    return ModelDirectory.create(folder / "1", {PREPROCESSING: settings, **named})


def test_texts_are_opened_with_spans_where_tokens_are_tagged(tmp_path: Path) -> None:
    made = directory(tmp_path, TextSettings(IDS, 16), tokenizer_json=bert().to_str().encode())
    assert TOKENIZER in made.files
    (row,) = open_preprocessor(made, TEXT).prepare({"text": ["carrot cake"]})
    assert set(row.tensors) == {"input_ids", "attention_mask"}
    assert row.spans is None
    (row,) = open_preprocessor(made, About(Task.TAG, TEXT.raw)).prepare({"text": ["carrot cake"]})
    assert row.spans is not None


def test_pictures_and_sounds_are_opened(tmp_path: Path) -> None:
    picture = open_preprocessor(directory(tmp_path / "a", PictureSettings("pixels", size=(8, 8), mask="seen")), PICTURE)
    assert picture.raw == PICTURE.raw
    assert picture.makes == {"pixels", "seen"}
    sound = open_preprocessor(directory(tmp_path / "b", SoundSettings("samples", 16_000, 16_000)), SOUND)
    assert sound.raw == SOUND.raw
    assert sound.makes == {"samples"}


@pytest.mark.parametrize(
    "reads",
    [
        TextSettings(IDS, 16, True, {"query": "query: "}, "query", "end"),
        PictureSettings("p", None, 256, 512, 3, (224, 224), 0.5, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), "m", 16),
        SoundSettings("s", 16_000, 80_000, True, "m"),
    ],
)
def test_settings_are_read_as_they_were_written(tmp_path: Path, reads: Any) -> None:
    assert directory(tmp_path, reads).read_json(PREPROCESSING, Stored).reads == reads


@pytest.mark.parametrize(
    ("reads", "reason"),
    [
        (b"{}", "is invalid"),
        (b'{"format":1,"reads":{"kind":"smell"}}', "is invalid"),
        (b'{"format":1,"reads":{"kind":"text","inputs":{"ids":"a"},"longest":9,"run":"x"}}', "is invalid"),
        (b'{"format":1,"reads":{"kind":"text","inputs":{"code":"a"},"longest":9}}', "is invalid"),
        (b'{"format":7,"reads":{"kind":"text","inputs":{"ids":"a"},"longest":9}}', "format 7"),
        (b"[" * 100_000, "is invalid"),
        (TextSettings(IDS, 0), "longest 0"),
        (TextSettings(IDS, 1 << 40), "longest"),
        (TextSettings({Role.MASK: "m"}, 9), "no input for the ids"),
        (TextSettings({Role.IDS: "m", Role.MASK: "m"}, 9), "twice"),
        (TextSettings({Role.IDS: ""}, 9), "by nothing"),
        (TextSettings(IDS, 9, prompt="q"), "does not have"),
        (TextSettings(IDS, 9, prompts={"q": "x" * 99_999}), "bytes of the prompt"),
        (TextSettings(IDS, 9, prompts={str(place): "" for place in range(999)}), "prompts 999"),
        (PictureSettings("p", size=(8, 8), shortest=8), "only one"),
        (PictureSettings("p", longest=8), "without a shortest"),
        (PictureSettings("p", size=(1 << 30, 8)), "size"),
        (PictureSettings("p", crop=(0, 8)), "crop"),
        (PictureSettings("p", shortest=1 << 30), "shortest"),
        (PictureSettings("p", shortest=8, longest=4), "longest"),
        (PictureSettings("p", resample=99), "resample"),
        (PictureSettings("p", multiple=0), "multiple"),
        (PictureSettings("p", scale=-1.0), "scales by"),
        (PictureSettings("p", mean=(0.0,) * 3), "without a deviation"),
        (PictureSettings("p", mean=(0.0,) * 3, deviation=(1.0, 0.0, 1.0)), "of 0"),
        (PictureSettings("p", mean=(0.0,), deviation=(1.0,)), "three channels"),
        (PictureSettings("p", mask="p"), "twice"),
        (SoundSettings("s", 1, 9), "rate"),
        (SoundSettings("s", 16_000, 0), "longest"),
        (SoundSettings("s", 16_000, 1 << 60), "longest"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, reads: Any, reason: str) -> None:
    about = PICTURE if isinstance(reads, PictureSettings) else SOUND if isinstance(reads, SoundSettings) else TEXT
    made = directory(tmp_path, reads, tokenizer_json=bert().to_str().encode())
    with pytest.raises(RepositoryError, match=reason):
        open_preprocessor(made, about)


def test_a_hostile_tokenizer_is_refused(tmp_path: Path) -> None:
    made = directory(tmp_path, TextSettings(IDS, 16), tokenizer_json=bytes_of({"version": "1.0"}))
    with pytest.raises(RepositoryError, match="no model"):
        open_preprocessor(made, TEXT)


def test_a_tokenizer_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"tokenizer\.json is not in the manifest"):
        open_preprocessor(directory(tmp_path, TextSettings(IDS, 16)), TEXT)


def test_a_second_text_must_be_there_where_the_model_says_so(tmp_path: Path) -> None:
    made = directory(tmp_path, TextSettings(IDS, 16, pair=True), tokenizer_json=bert().to_str().encode())
    both = (RawInput("text", Media.TEXT), RawInput("text_pair", Media.TEXT))
    preprocessor = open_preprocessor(made, About(Task.RERANK, both))
    assert preprocessor.raw == both
    with pytest.raises(InvalidRequest, match="'text_pair' is missing"):
        preprocessor.prepare({"text": ["carrot cake"]})


def test_what_it_reads_must_be_what_the_model_says(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"reads image, which does not match model\.json"):
        open_preprocessor(directory(tmp_path, PictureSettings("p")), TEXT)


WITHOUT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked here")
sys.meta_path.insert(0, Blocker())
from latebind.repository.directory import ModelDirectory
from latebind.domain.model import About, Media, RawInput
from latebind.domain.errors import ConfigError
from latebind.preprocessing.opening import open_preprocessor
import latebind.preprocessing.pictures
try:
    raw = (RawInput({name!r}, Media({media!r})),)
    print(open_preprocessor(ModelDirectory.open({path!r}), About(raw=raw)).makes)
except ConfigError as error:
    print("ConfigError", error)
"""


def opens_without(path: Path, name: str, media: str, *blocked: str) -> str:
    code = WITHOUT.format(blocked=blocked, path=str(path), name=name, media=media)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reading_takes_one_library_and_neither_torch_nor_transformers(tmp_path: Path) -> None:
    text = directory(tmp_path / "a", TextSettings(IDS, 16), tokenizer_json=bert().to_str().encode())
    picture = directory(tmp_path / "b", PictureSettings("pixels", size=(8, 8)))
    heavy = ("torch", "transformers", "huggingface_hub", "soundfile")
    assert "input_ids" in opens_without(text.path, "text", "text", "PIL", *heavy)
    assert "pixels" in opens_without(picture.path, "image", "picture", "tokenizers", *heavy)
    assert "ConfigError" in (said := opens_without(text.path, "text", "text", "tokenizers", *heavy))
    assert "latebind[hf]" in said
    assert "latebind[hf]" in opens_without(picture.path, "image", "picture", "PIL", *heavy)
